"""TLS to brokers: whom the gateway believes, and that nothing is sent to anybody else (hazard D17)."""

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.observability.events import CloseCause, TlsFailure
from gateway.upstream.connector import UpstreamChannel
from gateway.upstream.tls import BrokerNotTrusted, BrokerTls
from testkit.broker import ScriptedBroker
from testkit.certificates import CLIENT, SERVER, Authority, KeyPair
from testkit.frames import heartbeat
from testkit.gateway import RunningGateway, running_gateway
from testkit.raw_client import HOST, Ended, until
from testkit.tls import Pki, upstream_failures
from testkit.tls_conversation import TlsServer

YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
BEFORE = YESTERDAY - datetime.timedelta(days=5)


def broker_context(pair: KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


@asynccontextmanager
async def gateway_before(
    pki: Pki, context: ssl.SSLContext | None, **tls: Any
) -> AsyncIterator[tuple[ScriptedBroker, RunningGateway]]:
    """A broker with this context, and a gateway that trusts the authority."""
    keys = {"ca": str(pki.authority.certificate)} | tls
    upstream = {"security_protocol": "SSL", "tls": {k: v for k, v in keys.items() if v is not None}}
    async with ScriptedBroker(tls=context) as broker, running_gateway(broker.port, upstream=upstream) as running:
        yield broker, running


async def served(running: RunningGateway) -> None:
    async with await running.connect() as client:
        await client.send(heartbeat(5))
        assert (await client.receive_frame())[4:8] == (5).to_bytes(4, "big")


async def test_many_bytes_pass_in_both_directions(pki: Pki) -> None:
    async with gateway_before(pki, broker_context(pki.server)) as (_, running):
        await running.discovered()
        async with await running.connect() as client:
            sent = heartbeat(1) + bytes(3_000_000)
            frame = (len(sent) - 4).to_bytes(4, "big") + sent[4:]
            await client.send(frame)
            # The scripted broker answers with the request as the body.
            assert len(await client.receive_frame()) >= 3_000_000


async def test_a_broker_that_asks_for_a_certificate_gets_the_gateways(pki: Pki) -> None:
    own = pki.authority.issue("gateway", "gateway", usage=CLIENT)
    context = broker_context(pki.server)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(pki.authority.certificate)
    keys = {"certificate": str(own.certificate), "key": str(own.key)}
    async with gateway_before(pki, context, **keys) as (broker, running):
        await running.discovered()
        await served(running)
        shown: Any = broker.connections[-1].transport.get_extra_info("ssl_object").getpeercert()
        assert dict(pair[0] for pair in shown["subject"]) == {"commonName": "gateway"}


def _demanding(listening: socket.socket, context: ssl.SSLContext) -> None:
    """A broker that wants a certificate, and says why it refuses who has none; the loop's own servers do not."""
    while True:
        try:
            accepted, _ = listening.accept()
        except OSError:
            return
        with accepted, suppress(OSError):
            accepted.settimeout(60)
            try:
                context.wrap_socket(accepted, server_side=True).close()
            except ssl.SSLError:
                sleep(0.3)  # let the alert be read before the reset that unread bytes bring


async def test_d17_a_broker_that_does_not_like_the_gateways_certificate_is_counted(pki: Pki) -> None:
    context = broker_context(pki.server)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(pki.authority.certificate)
    with socket.create_server((HOST, 0)) as listening:
        broker = Thread(target=_demanding, args=(listening, context))
        broker.start()
        upstream = {"security_protocol": "SSL", "tls": {"ca": str(pki.authority.certificate)}}
        async with running_gateway(listening.getsockname()[1], upstream=upstream) as running:
            # With TLS 1.3 it only says so when the gateway believes to be connected.
            await until(lambda: upstream_failures(running, TlsFailure.REJECTED_BY_PEER) >= 1)
            assert not running.gateway.discovery.reached
        listening.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(broker.join)


def _limited(pair: KeyPair) -> ssl.SSLContext:
    context = broker_context(pair)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


Maker = Callable[[Pki, Path], ssl.SSLContext]


def _issued(name: str, *hosts: str, **options: Any) -> Maker:
    return lambda pki, _: broker_context(pki.authority.issue(name, name, hosts=hosts, **options))


BAD_BROKERS: list[tuple[str, Maker, TlsFailure]] = [
    ("expired", _issued("old", HOST, valid_from=BEFORE, valid_until=YESTERDAY), TlsFailure.CERTIFICATE_EXPIRED),
    ("of another host", _issued("away", "kafka.example"), TlsFailure.CERTIFICATE_HOST),
    ("signed by itself", lambda _, folder: broker_context(Authority(folder, "own").issue("me", "me", hosts=(HOST,))),
     TlsFailure.CERTIFICATE_UNTRUSTED),
    ("of a client", _issued("eku", HOST, usage=CLIENT), TlsFailure.CERTIFICATE_PURPOSE),
    # The loop's own server closes without the alert that a Java broker sends.
    ("tls 1.1", lambda pki, _: _limited(pki.server), TlsFailure.CLOSED),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("make", "failure"), [pytest.param(*row[1:], id=row[0]) for row in BAD_BROKERS])
async def test_d17_a_broker_that_is_not_right_gets_nothing_and_its_client_is_closed(
    pki: Pki, tmp_path: Path, make: Maker, failure: TlsFailure
) -> None:
    async with gateway_before(pki, make(pki, tmp_path)) as (broker, running):
        async with await running.connect() as client:
            await client.send(heartbeat(5))
            with pytest.raises(Ended):
                await client.receive_frame()
        await running.ended_by(CloseCause.UPSTREAM_TLS)
        # Discovery asks too, and again and again.
        assert upstream_failures(running, failure) >= 1
        assert sum(upstream_failures(running, each) for each in TlsFailure) == upstream_failures(running, failure)
        assert not any(connection.received_bytes for connection in broker.connections)
        assert not running.gateway.discovery.reached
        assert f"upstream ({HOST}:{broker.port}) not reached" in str(running.gateway.why_not_ready())


async def test_d17_a_broker_without_tls_gets_nothing_but_a_hello(pki: Pki) -> None:
    upstream = {"security_protocol": "SSL", "tls": {"ca": str(pki.authority.certificate)}, "connect_timeout_ms": 400}
    async with ScriptedBroker() as broker, running_gateway(broker.port, upstream=upstream) as running:
        async with await running.connect() as client:
            await client.send(heartbeat(5))
            with pytest.raises(Ended):
                await client.receive_frame()
        await until(
            lambda: running.closed(CloseCause.UPSTREAM_TIMEOUT) + running.closed(CloseCause.UPSTREAM_TLS) == 1
        )
        assert not any(connection.requests for connection in broker.connections)


@pytest.mark.slow
async def test_d19_a_client_that_leaves_during_the_handshake_with_the_broker_takes_it_along(pki: Pki) -> None:
    upstream = {"security_protocol": "SSL", "tls": {"ca": str(pki.authority.certificate)}}
    # It waits for the rest of what it takes for a huge frame.
    async with ScriptedBroker() as broker, running_gateway(broker.port, upstream=upstream) as running:
        await until(lambda: len(broker.connections) == 1)  # discovery's
        client = await running.connect()
        await client.send(heartbeat(5))
        await until(lambda: len(broker.connections) == 2 and broker.connections[1].received_bytes > 0)
        client.reset()
        await running.ended_by(CloseCause.CLIENT_CLOSED)
        await asyncio.wait_for(broker.connections[1].ended.wait(), 60)


class Leg:
    """A channel, as far as its upstream is concerned: what it is called with."""

    endpoints = None

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def upstream_connected(self, transport: asyncio.Transport) -> None:
        self.calls.append("connected")

    def upstream_failed(self, cause: CloseCause) -> None:
        self.calls.append(cause)

    def upstream_received(self, data: bytes) -> None:
        self.calls.append(data)

    def upstream_lost(self) -> None:
        self.calls.append("lost")

    def upstream_writable(self, writable: bool) -> None:
        self.calls.append(writable)


@pytest.mark.parametrize("goodbye", [True, False])
def test_everything_that_tls_says_reaches_the_channel_up_to_the_brokers_end(pki: Pki, goodbye: bool) -> None:
    leg = Leg()
    broker = TlsServer(pki, user=UpstreamChannel(leg)).shake_hands()
    broker.transport.pause_writing()
    broker.transport.resume_writing()
    broker.client_sends(b"reply")
    assert leg.calls == ["connected", False, True, b"reply"]
    if goodbye:
        broker.client_says_goodbye()
    else:
        assert broker.transport.eof_received() is False
    assert broker.socket.ended == "closed"
    broker.transport.connection_lost(None)
    assert leg.calls[4:] == ["lost"]


async def test_a_broker_that_closes_its_connections_ends_the_clients_without_an_error(pki: Pki) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with gateway_before(pki, broker_context(pki.server)) as (broker, running):
        await running.discovered()
        async with await running.connect() as client:
            await client.send(heartbeat(5))
            await client.receive_frame()
            for connection in broker.connections:
                connection.transport.close()
            assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.UPSTREAM_CLOSED)
    assert errors == []


async def test_d17_verification_and_the_name_of_brokers_are_as_configured(pki: Pki, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger").issue("me", "me", hosts=("elsewhere",))
    async with gateway_before(pki, broker_context(stranger), ca=None, verify=False) as (_, running):
        await running.discovered()
        await served(running)
    named = pki.authority.issue("named", "named", hosts=("kafka.example",), usage=SERVER)
    async with gateway_before(pki, broker_context(named), server_name="kafka.example") as (_, running):
        await running.discovered()
        await served(running)


def test_a_reason_is_logged_once_until_it_changes_or_a_handshake_succeeds() -> None:
    counted: list[TlsFailure] = []
    parts: Any = SimpleNamespace(upstream_failed=lambda _, failure: counted.append(failure))
    tls = BrokerTls("upstream", parts, server_name=None, buffer=parts, steps=parts, metrics=parts)
    wrong = BrokerNotTrusted(TlsFailure.CERTIFICATE_UNTRUSTED, "CERTIFICATE_VERIFY_FAILED")
    old = BrokerNotTrusted(TlsFailure.CERTIFICATE_EXPIRED, "")
    steps = [("a", wrong), ("a", wrong), ("b", wrong), ("a", wrong), ("a", old), ("a", old), ("a", None), ("a", old)]
    with capture_logs() as lines:
        for host, error in steps:
            if error is None:
                tls.trusted(host)
            else:
                tls.failed(host, error)
    assert [(line["broker"], line["error"]) for line in lines] == [
        ("a", str(wrong)),
        ("b", str(wrong)),
        ("a", str(old)),
        ("a", str(old)),
    ]
    assert len(counted) == 7
