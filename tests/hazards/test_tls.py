"""Hazards H17 to H19 and B09: what clients do wrong, or on purpose, with TLS."""

import asyncio
import datetime
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.observability.events import CloseCause, TlsFailure
from testkit import broker as scripts
from testkit import wire
from testkit.broker import FETCH
from testkit.certificates import CLIENT, SERVER, Authority, KeyPair
from testkit.frames import heartbeat, produce
from testkit.gateway import RunningGateway
from testkit.raw_client import Ended, until
from testkit.tls import Pki, TlsClient, failures, handshakes, tls_gateway


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def fails(running: RunningGateway, failure: TlsFailure) -> None:
    """Wait until exactly one handshake has failed, of this; its connection is counted out."""
    await until(lambda: failures(running, failure) == 1)
    assert sum(failures(running, each) for each in TlsFailure) == 1
    await running.ended_by(CloseCause.TLS_FAILED)
    assert not running.channels


async def test_a_client_is_served_over_tls(pki: Pki) -> None:
    async with tls_gateway(pki.keys()) as (broker, running):
        async with await TlsClient.connect(running.port, pki.trusting()) as client:
            client.send(heartbeat(7))
            assert (await client.receive_frame())[4:8] == (7).to_bytes(4, "big")
            assert client.tls.version() == "TLSv1.3"
            assert client.tls.compression() is None
        assert handshakes(running, "TLSv1.3") == 1
        assert broker.connections
        await running.ended_by(CloseCause.CLIENT_CLOSED)


async def test_m01_over_tls_what_is_announced_and_not_sent_reaches_no_broker_and_is_not_charged(pki: Pki) -> None:
    quota = {"client_id": "tests", "producer_byte_rate": 1_000_000}
    head = (100_000_000).to_bytes(4, "big") + produce(1, size=60_000)[4:]
    async with tls_gateway(pki.keys(), quotas=[quota]) as (broker, running):
        attackers = [await TlsClient.connect(running.port, pki.trusting()) for _ in range(20)]
        for attacker in attackers:
            attacker.send(head)
        await until(lambda: running.gateway.memory.used_bytes >= len(attackers) * len(head))
        assert not broker.client_connections
        async with await TlsClient.connect(running.port, pki.trusting()) as honest:
            honest.send(produce(7, size=1_000))
            assert (await honest.receive_frame())[4:8] == (7).to_bytes(4, "big")
        for attacker in attackers:
            await attacker.close()
        await until(lambda: not running.channels)
        (row,) = running.gateway.client_quotas.produce.snapshot(now_ms=running.gateway._now_ms())
        assert row.rate * 10 < 2_000


@pytest.mark.slow
async def test_b09_client_that_never_reads_over_tls_is_cut_at_the_same_deadline(pki: Pki) -> None:
    async with tls_gateway(pki.keys(), write_timeout_ms=400) as (broker, running):
        broker.script(FETCH, scripts.huge(64 * 1024 * 1024))
        streams = asyncio.open_connection(
            "127.0.0.1", running.port, ssl=pki.trusting(), server_hostname="localhost", limit=8192
        )
        client = TlsClient(*await streams)
        client.send(wire.request("Fetch", 4, correlation_id=1, topics=[]))
        await until(lambda: bool(running.channels))
        channel = running.channels[0]
        await running.ended_by(CloseCause.WRITE_TIMEOUT)
        # Ended means that the transport is gone too, not only that its end was asked for.
        await until(lambda: channel._transport is None)
        await client.close()


# -- H17 -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sent_of_hello", [0, 1, 5, 60, None], ids=str)
async def test_h17_client_that_stops_before_the_handshake_is_done_ends_at_the_deadline(
    pki: Pki, sent_of_hello: int | None
) -> None:
    hello = client_hello(pki.trusting())
    async with tls_gateway(pki.keys(handshake_timeout_ms=600)) as (_, running):
        began = asyncio.get_running_loop().time()
        async with await running.connect() as client:
            await client.send(hello[:sent_of_hello])
            # It has a place from accept on, so that the limits of connections hold for it.
            await until(lambda: running.opened == 1)
            assert len(running.channels) == 1
            await fails(running, TlsFailure.TIMEOUT)
            took_s = asyncio.get_running_loop().time() - began
            assert took_s > 0.55
            await client.receive_rest()


async def test_h17_silence_after_the_handshake_ends_at_the_deadline_of_the_first_frame(pki: Pki) -> None:
    async with tls_gateway(pki.keys(), first_frame_timeout_ms=400) as (_, running):
        async with await TlsClient.connect(running.port, pki.trusting()) as client:
            with pytest.raises(Ended):
                await client.receive_frame()
        await running.ended_by(CloseCause.FIRST_FRAME_TIMEOUT)


@pytest.mark.slow
async def test_h17_a_slow_handshake_leaves_the_first_frame_its_whole_time(pki: Pki) -> None:
    keys = pki.keys(handshake_timeout_ms=5_000)
    async with tls_gateway(keys, first_frame_timeout_ms=700) as (_, running):
        raw = await running.connect()
        await asyncio.sleep(0.6)
        # No one else in the process uses this socket from here on.
        reader, writer = await asyncio.open_connection(sock=raw.sock, ssl=pki.trusting(), server_hostname="localhost")
        async with TlsClient(reader, writer) as client:
            await asyncio.sleep(0.4)
            client.send(heartbeat(1))
            assert await client.receive_frame()


async def test_h17_j04_a_drain_does_not_wait_for_handshakes(pki: Pki) -> None:
    async with tls_gateway(pki.keys(), drain_timeout_ms=600_000) as (_, running):
        async with await running.connect() as client:
            await client.send(client_hello(pki.trusting())[:20])
            await until(lambda: bool(running.channels))
            await asyncio.wait_for(running.gateway.drain(hurry=asyncio.Event()), 60)
            assert await client.receive_rest() == b""
        assert running.closed(CloseCause.DRAINED) == 1


# -- H18 -----------------------------------------------------------------------------------------------------
SSLV2_HELLO = bytes.fromhex("802e0100020015000000100700c00300800100800600400400800200800500800000") + bytes(16)

NOT_TLS: list[tuple[str, bytes, TlsFailure]] = [
    ("kafka", heartbeat(1), TlsFailure.NOT_TLS),
    ("http", b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", TlsFailure.NOT_TLS),
    ("sslv2", SSLV2_HELLO, TlsFailure.NOT_TLS),
    ("junk", b"\xff" * 600, TlsFailure.NOT_TLS),
    ("alert", bytes.fromhex("15030100020100"), TlsFailure.PROTOCOL),
    ("huge record", b"\x16\x03\x01\xff\xff" + b"\x01" * 600, TlsFailure.PROTOCOL),
]


@pytest.mark.parametrize(("sent", "failure"), [pytest.param(*row[1:], id=row[0]) for row in NOT_TLS])
async def test_h18_what_is_not_tls_is_counted_and_closed(
    pki: Pki, sent: bytes, failure: TlsFailure, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_gateway(pki.keys()) as (_, running):
        async with await running.connect() as client:
            await client.send(sent)
            await client.receive_rest()
        await until(lambda: running.closed(CloseCause.TLS_FAILED) == 1)
        counted = {each for each in TlsFailure if failures(running, each)}
        assert counted == {failure}
        assert "Traceback" not in caplog.text


def _old(context: ssl.SSLContext) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1


def _null_cipher(context: ssl.SSLContext) -> None:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-NULL-SHA:@SECLEVEL=0")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("change", "failure"),
    [(_old, TlsFailure.PROTOCOL_VERSION), (_null_cipher, TlsFailure.NO_SHARED_CIPHER)],
    ids=["tls 1.1", "a cipher that does not encrypt"],
)
async def test_h18_what_is_too_weak_gets_an_alert(
    pki: Pki, change: Callable[[ssl.SSLContext], None], failure: TlsFailure
) -> None:
    context = pki.trusting()
    change(context)
    async with tls_gateway(pki.keys()) as (_, running):
        with pytest.raises(ssl.SSLError, match="ALERT"):
            await TlsClient.connect(running.port, context)
        await fails(running, failure)


async def test_h18_a_flood_of_failures_is_a_few_lines_in_the_log(
    pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    from gateway.observability.logging_setup import setup

    setup()
    async with tls_gateway(pki.keys()) as (_, running):
        for _ in range(200):
            async with await running.connect() as client:
                await client.send(b"\xff" * 16)
                await client.receive_rest()
        await until(lambda: failures(running, TlsFailure.NOT_TLS) == 200)
    said = capsys.readouterr().err
    assert said.count("tls_failed") <= 60
    assert "Traceback" not in said


# -- H19 -----------------------------------------------------------------------------------------------------
YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
BEFORE = YESTERDAY - datetime.timedelta(days=5)


async def _refused(running: RunningGateway, context: ssl.SSLContext) -> None:
    """With TLS 1.3 the client believes in its handshake until it reads."""

    async def ask() -> None:
        async with await TlsClient.connect(running.port, context) as client:
            client.send(heartbeat(1))
            await client.receive_frame()

    with pytest.raises((ssl.SSLError, Ended, ConnectionError)):
        await ask()


Maker = Callable[[Pki, Path], KeyPair | None]

BAD_CLIENTS: list[tuple[str, Maker, TlsFailure]] = [
    ("none", lambda _pki, _folder: None, TlsFailure.NO_CERTIFICATE),
    (
        "expired",
        lambda pki, _: pki.authority.issue("old", "eve", valid_from=BEFORE, valid_until=YESTERDAY),
        TlsFailure.CERTIFICATE_EXPIRED,
    ),
    (
        "not valid yet",
        lambda pki, _: pki.authority.issue(
            "new", "eve", valid_from=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        ),
        TlsFailure.CERTIFICATE_EXPIRED,
    ),
    (
        "of another authority",
        lambda _, folder: Authority(folder, "stranger").issue("eve", "eve"),
        TlsFailure.CERTIFICATE_UNTRUSTED,
    ),
    ("of a server", lambda pki, _: pki.authority.issue("eku", "eve", usage=SERVER), TlsFailure.CERTIFICATE_PURPOSE),
]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize(("make", "failure"), [pytest.param(*row[1:], id=row[0]) for row in BAD_CLIENTS])
async def test_h19_client_without_a_good_certificate_is_refused_where_one_is_required(
    pki: Pki, tmp_path: Path, make: Maker, failure: TlsFailure, version: ssl.TLSVersion
) -> None:
    context = pki.trusting(make(pki, tmp_path))
    context.minimum_version = context.maximum_version = version
    async with tls_gateway(pki.mutual()) as (broker, running):
        before = len(broker.connections)
        await _refused(running, context)
        await fails(running, failure)
        assert len(broker.connections) == before, "nothing of it reached the broker"


async def test_h19_a_revoked_certificate_is_refused(pki: Pki) -> None:
    good = pki.authority.issue("kept", "carol", usage=CLIENT)
    bad = pki.authority.issue("revoked", "mallory", usage=CLIENT)
    keys = pki.mutual(client_crl=str(pki.authority.revoke(bad)))
    async with tls_gateway(keys) as (_, running):
        async with await TlsClient.connect(running.port, pki.trusting(good)) as client:
            client.send(heartbeat(1))
            await client.receive_frame()
            assert running.channels[0].session.user == "CN=carol"
        await _refused(running, pki.trusting(bad))
        await until(lambda: failures(running, TlsFailure.CERTIFICATE_REVOKED) == 1)


async def test_h19_client_without_a_certificate_is_anonymous_where_one_is_only_requested(
    pki: Pki, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("eve", "eve")
    async with tls_gateway(pki.mutual("requested")) as (_, running):
        async with await TlsClient.connect(running.port, pki.trusting()) as client:
            client.send(heartbeat(1))
            await client.receive_frame()
            assert running.channels[0].session.user == "ANONYMOUS"
        # A bad one is not as good as none.
        await _refused(running, pki.trusting(stranger))
        await until(lambda: failures(running, TlsFailure.CERTIFICATE_UNTRUSTED) == 1)


@pytest.mark.slow
async def test_connections_count_for_the_user_of_the_certificate_from_the_handshake_on(pki: Pki) -> None:
    alice, bob = (pki.authority.issue(name, name, usage=CLIENT) for name in ("alice", "bob"))
    keys = pki.mutual(principal_mapping_rules="RULE:^CN=(.*)$/$1/")
    async with tls_gateway(keys, quotas=[{"default_user": True, "connection_count": 1}]) as (_, running):
        clients = [await TlsClient.connect(running.port, pki.trusting(own)) for own in (alice, alice, bob)]
        await running.ended_by(CloseCause.USER_CONNECTION_COUNT)
        assert running.gateway.user_connections.by_user == {"alice": 1, "bob": 1}
        for client in (clients[0], clients[2]):
            client.send(heartbeat(7))
            await client.receive_frame()
        for client in clients:
            await client.close()


async def test_h19_the_certificate_names_the_user_or_the_client_is_refused(pki: Pki) -> None:
    own = pki.authority.issue("alice", "alice", usage=CLIENT)
    keys = pki.mutual(principal_mapping_rules="RULE:^CN=(.*)$/$1/U")
    async with tls_gateway(keys) as (_, running), await TlsClient.connect(running.port, pki.trusting(own)):
        await until(lambda: handshakes(running, "TLSv1.3") == 1)
        assert running.channels[0].session.user == "ALICE"
    own = pki.authority.issue("bob", "bob", usage=CLIENT)
    async with tls_gateway(pki.mutual(principal_mapping_rules="RULE:^CN=alice$/a/")) as (_, running):
        await _refused(running, pki.trusting(own))
        await fails(running, TlsFailure.NO_PRINCIPAL)
