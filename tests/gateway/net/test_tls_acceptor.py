"""From an admitted socket to a session that knows its user; hostile clients are in tests/hazards/test_tls.py."""

import asyncio
import ssl
from time import time

import pytest

from gateway.observability.connection_metrics import ConnectionMetrics
from gateway.observability.events import CloseCause, TlsFailure
from testkit.broker import ScriptedBroker
from testkit.frames import heartbeat
from testkit.gateway import running_gateway
from testkit.raw_client import until
from testkit.tls import Pki, TlsClient, failures, handshakes, tls_gateway


async def test_nothing_of_a_handshake_is_kept_once_it_is_over(pki: Pki) -> None:
    async with tls_gateway(pki.keys()) as (_, running):
        tls_acceptor = running.listener._tls_acceptor
        assert tls_acceptor is not None
        async with await TlsClient.connect(running.port, pki.trusting()) as client, await running.connect():
            client.send(heartbeat(1))
            await client.receive_frame()
            await until(lambda: tls_acceptor.under_way == 1)
        await until(lambda: not running.channels)
        assert tls_acceptor.under_way == 0
        assert tls_acceptor._transports == {}


async def test_a_client_that_leaves_before_its_handshake_is_counted_out(pki: Pki) -> None:
    async with tls_gateway(pki.keys()) as (_, running):
        async with await running.connect():
            await until(lambda: len(running.channels) == 1)
        await running.ended_by(CloseCause.TLS_FAILED)
        assert failures(running, TlsFailure.CLOSED) == 1


async def test_a_connection_that_gives_way_before_its_handshake_is_closed_at_once(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_gateway(pki.keys()) as (_, running):
        tls_acceptor = running.listener._tls_acceptor
        assert tls_acceptor is not None

        opened = ConnectionMetrics.connection_opened

        def evict_all(metrics: ConnectionMetrics, listener: str) -> None:
            opened(metrics, listener)
            for channel in list(running.channels):
                channel.close(CloseCause.EVICTED)

        monkeypatch.setattr(ConnectionMetrics, "connection_opened", evict_all)
        async with await running.connect() as client, asyncio.timeout(60):
            assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.EVICTED)
        assert tls_acceptor.under_way == 0
        assert tls_acceptor._transports == {}


async def test_client_that_left_while_waiting_for_the_rate_costs_no_handshake(pki: Pki) -> None:
    async with tls_gateway(pki.keys(), connections={"max_tls_handshakes_per_second": 2}) as (_, running):
        handshake_limiter = running.gateway.tls.handshake_limiter
        async with await TlsClient.connect(running.port, pki.trusting()):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            with pytest.raises(ssl.SSLWantReadError):
                pki.trusting().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
            async with await running.connect() as impatient:
                await impatient.send(outgoing.read())
                await until(lambda: handshake_limiter.waiting == 1)
            await until(lambda: failures(running, TlsFailure.CLOSED) == 1)
        assert handshakes(running, "TLSv1.3") == 1


def of_tls_1_2(pki: Pki) -> ssl.SSLContext:
    """A client's context, with a certificate."""
    context = pki.trusting(pki.authority.issue("dora", "dora"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


async def session_of(port: int, context: ssl.SSLContext) -> ssl.SSLSession:
    """What a client can resume with."""
    async with await TlsClient.connect(port, context) as client:
        session = client.tls.session
    assert session is not None
    return session


async def resume(port: int, context: ssl.SSLContext, session: ssl.SSLSession) -> asyncio.StreamWriter:
    """Connect with a session, which asyncio has no way to hand on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    plain = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1", session=session)
    for _ in range(5):
        try:
            plain.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await asyncio.wait_for(reader.read(65_536), 60))
        else:
            break
    writer.write(outgoing.read())
    assert plain.session_reused
    return writer


async def test_a_session_of_tls_1_2_is_resumed_with_its_user(pki: Pki) -> None:
    context = of_tls_1_2(pki)
    async with tls_gateway(pki.mutual()) as (_, running):
        session = await session_of(running.port, context)
        writer = await resume(running.port, context, session)
        await until(lambda: handshakes(running, "TLSv1.2") == 2)
        await until(lambda: [channel.session.user for channel in running.channels] == ["CN=dora"])
        writer.transport.abort()


@pytest.mark.parametrize("client_auth", ["required", "requested"])
@pytest.mark.parametrize("sasl", [False, True])
async def test_h19_a_session_of_tls_1_2_ends_with_its_certificate(
    pki: Pki, monkeypatch: pytest.MonkeyPatch, sasl: bool, client_auth: str
) -> None:
    keys = pki.mutual(client_auth) | {"security_protocol": "SASL_SSL" if sasl else "SSL"}
    upstream = {"security_protocol": "SASL_PLAINTEXT" if sasl else "PLAINTEXT"}
    context = of_tls_1_2(pki)
    async with ScriptedBroker() as broker, running_gateway(broker.port, listener=keys, upstream=upstream) as running:
        session = await session_of(running.port, context)
        in_eleven_days = time() + 11 * 86_400
        monkeypatch.setattr("gateway.tls.resumed.time", lambda: in_eleven_days)
        writer = await resume(running.port, context, session)
        await until(lambda: failures(running, TlsFailure.CERTIFICATE_EXPIRED) == 1)
        assert handshakes(running, "TLSv1.2") == 1
        writer.transport.abort()


async def test_h19_a_session_of_the_admin_port_ends_with_its_certificate(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = of_tls_1_2(pki)
    async with running_gateway(9, admin={"tls": pki.mutual("requested")["tls"]}) as running:
        port = running.gateway.admin.port
        session = await session_of(port, context)
        in_eleven_days = time() + 11 * 86_400
        monkeypatch.setattr("gateway.tls.resumed.time", lambda: in_eleven_days)
        writer = await resume(port, context, session)
        labels = {"listener": "admin port", "reason": TlsFailure.CERTIFICATE_EXPIRED.value}
        registry = running.gateway.registry
        await until(lambda: registry.get_sample_value("gateway_tls_handshake_failures_total", labels) == 1)
        writer.transport.abort()


async def test_a_session_without_a_certificate_is_resumed(pki: Pki) -> None:
    context = pki.trusting()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with tls_gateway(pki.mutual("requested")) as (_, running):
        session = await session_of(running.port, context)
        writer = await resume(running.port, context, session)
        await until(lambda: handshakes(running, "TLSv1.2") == 2)
        writer.transport.abort()
