"""Hazards H29 to H31: clients that name brokers in TLS, rightly, wrongly, or not at all."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.observability.events import CloseCause, TlsFailure
from testkit import wire
from testkit.broker import Node, ScriptedBroker
from testkit.certificates import SERVER
from testkit.frames import heartbeat, metadata
from testkit.gateway import RunningGateway, running_gateway
from testkit.raw_client import HOST, Ended, until
from testkit.tls import Pki, TlsClient, failures, handshakes, raw_hello, server_name_extension

PORT: Final = 9_093
BOOTSTRAP: Final = "kafka.test"
MISSING_EXTENSION, UNRECOGNIZED_NAME, DECODE_ERROR = (bytes.fromhex(f"1503030002 02{n:02x}") for n in (109, 112, 50))


def listener(pki: Pki, **more: Any) -> dict[str, Any]:
    """Keys of a listener whose clients name brokers; `more` is for [listeners.tls]."""
    names = {"bootstrap_name": BOOTSTRAP, "broker_name": "b{node}.kafka.test", "advertised_port": PORT}
    return pki.keys(**more) | {"sni": names}


@asynccontextmanager
async def named(pki: Pki, **options: Any) -> AsyncIterator[tuple[list[ScriptedBroker], RunningGateway]]:
    """Brokers 1 and 2, and a gateway with one port for both."""
    async with ScriptedBroker(1) as one, ScriptedBroker(2) as two:
        one.nodes = two.nodes = [Node(1, HOST, one.port), Node(2, HOST, two.port)]
        keys = options.pop("listener", {}) or listener(pki)
        async with running_gateway(one.port, listener=keys, **options) as running:
            await running.discovered()
            yield [one, two], running


def blind() -> ssl.SSLContext:
    """A client that does not look at certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def connect(running: RunningGateway, name: str, context: ssl.SSLContext | None = None) -> TlsClient:
    return await TlsClient.connect(running.port, context or blind(), server_hostname=name)


async def reached(running: RunningGateway, brokers: list[ScriptedBroker], name: str) -> int:
    """The node that answers a client with this name."""
    before = [len(each.client_connections) for each in brokers]
    async with await connect(running, name) as client:
        client.send(heartbeat(5))
        await client.receive_frame()
        (node,) = [
            each.node_id for each, count in zip(brokers, before, strict=True) if len(each.client_connections) > count
        ]
        return node


async def refused(running: RunningGateway, hello: bytes, *, pieces: int = 0) -> bytes:
    """What a client gets that sends this hello."""
    async with await running.connect() as client:
        for at in range(0, len(hello), pieces or len(hello)):
            await client.send(hello[at : at + (pieces or len(hello))])
        return await client.receive_rest()


# -- the right names -----------------------------------------------------------------------------------------
async def test_each_name_leads_to_its_broker_through_one_port(pki: Pki) -> None:
    async with named(pki) as (brokers, running):
        assert running.listener.ports.keys() == {None}
        for name, node in (("b2.kafka.test", 2), ("b1.kafka.test", 1), ("b2.kafka.test", 2)):
            assert await reached(running, brokers, name) == node
        async with await connect(running, "b2.kafka.test") as client:
            client.send(heartbeat(1))
            await client.receive_frame()
            (channel,) = running.channels
            assert channel.session.broker_id == channel.broker_id == 2
            assert channel.session._announced is running.gateway.announced.of("upstream", 2)


async def test_the_bootstrap_name_is_spread_over_the_brokers_that_are_there(pki: Pki) -> None:
    async with named(pki) as (brokers, running):
        assert {await reached(running, brokers, BOOTSTRAP) for _ in range(4)} == {1, 2}
        await brokers[0].stop()
        assert {await reached(running, brokers, BOOTSTRAP) for _ in range(4)} == {2}


async def test_clients_are_sent_to_the_brokers_names_and_the_shared_port(pki: Pki) -> None:
    async with named(pki) as (brokers, running), await connect(running, BOOTSTRAP) as client:

        async def shown() -> set[tuple[int, str, int]]:
            client.send(metadata(1))
            answer = wire.decode_response("Metadata", 12, await client.receive_frame())
            return {(each.node_id, each.host, each.port) for each in answer.brokers}

        both = {(1, "b1.kafka.test", PORT), (2, "b2.kafka.test", PORT)}
        assert await shown() == both
        # A broker that has just come is reached at once, and no port is bound for it.
        async with ScriptedBroker(2_000_000_000) as new:
            for each in brokers:
                each.nodes = [*each.nodes, Node(new.node_id, HOST, new.port)]
            assert await shown() == both | {(new.node_id, "b2000000000.kafka.test", PORT)}
            assert await reached(running, [new], "b2000000000.kafka.test") == new.node_id
        assert running.listener.ports.keys() == {None}


@pytest.mark.parametrize("name", ["B1.KAFKA.test", "b1.kafka.test."])
async def test_h30_other_spellings_of_a_host_are_the_same_host(pki: Pki, name: str) -> None:
    async with named(pki) as (brokers, running):
        assert await reached(running, brokers, name) == 1


async def test_h30_a_hello_in_pieces_of_one_byte_leads_to_its_broker(pki: Pki) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = blind().wrap_bio(incoming, outgoing, server_hostname="b2.kafka.test")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    async with named(pki) as (_, running), await running.connect() as raw:
        for at in range(len(hello)):
            await raw.send(hello[at : at + 1])
        await until(lambda: [each.broker_id for each in running.channels] == [2])


@pytest.mark.parametrize(("name", "node", "cause"), [
    ("b2.kafka.test", 2, None),
    ("b2.kafka.test", 1, CloseCause.MISROUTED),
    (BOOTSTRAP, 2, CloseCause.MISROUTED),
])  # fmt: skip
async def test_a_client_that_names_its_node_is_judged_by_its_server_name(
    pki: Pki, name: str, node: int, cause: CloseCause | None
) -> None:
    software = {"client_software_name": "tests", "client_software_version": "1"}
    async with named(pki) as (_, running), await connect(running, name) as client:
        client.send(wire.request("ApiVersions", 5, **software, cluster_id="scripted", node_id=node))
        answer = wire.decode_response("ApiVersions", 5, await client.receive_frame())
        assert answer.error_code == (0 if cause is None else 129)
        if cause is not None:
            await running.ended_by(cause)


async def test_names_count_behind_a_load_balancer(pki: Pki) -> None:
    keys = listener(pki) | {"proxy_protocol": {"trusted": [HOST]}}
    async with named(pki, listener=keys) as (_, running), await running.connect() as raw:
        await raw.send(b"PROXY TCP4 192.0.2.7 192.0.2.8 1234 9093\r\n")
        reader, writer = await asyncio.open_connection(sock=raw.sock, ssl=blind(), server_hostname="b2.kafka.test")
        async with TlsClient(reader, writer) as client:
            client.send(heartbeat(1))
            await client.receive_frame()
            (channel,) = running.channels
            assert (channel.ip, channel.broker_id) == ("192.0.2.7", 2)


# -- wrong ones ----------------------------------------------------------------------------------------------
WRONG: Final[list[bytes]] = [
    b"kafka.example",
    b"b1.kafka.test.kafka.test",
    b"b-1.kafka.test",
    b"b01.kafka.test",
    b"b99999999999.kafka.test",
    b"b2147483648.kafka.test",
    b"b{node}.kafka.test",
    b"127.0.0.1",
    b"::1",
    b"b1.kafka.test..",
    b"b1.kafka.test\0",
    b"\0",
    b"b1.kafka.\xff\xfe",
    "b1.käfka.test".encode(),
    b"a" * 15_000,
]


@pytest.mark.parametrize("name", WRONG, ids=lambda name: repr(name[:20]))
async def test_h29_a_wrong_name_gets_an_alert_and_reaches_no_broker(pki: Pki, name: bytes) -> None:
    async with named(pki) as (brokers, running):
        for pieces in (0, 1) if len(name) < 100 else (0,):
            assert await refused(running, raw_hello(server_name_extension(name)), pieces=pieces) == UNRECOGNIZED_NAME
        count = 2 if len(name) < 100 else 1
        await running.ended_by(CloseCause.WRONG_SERVER_NAME, count)
        assert failures(running, TlsFailure.WRONG_SERVER_NAME) == count
        assert not any(each.client_connections for each in brokers)


async def test_h29_a_client_that_names_no_host_gets_an_alert(pki: Pki) -> None:
    async with named(pki) as (_, running):
        assert await refused(running, raw_hello(None)) == MISSING_EXTENSION
        with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
            # An address is not sent as a name.
            await connect(running, HOST)
        await running.ended_by(CloseCause.WRONG_SERVER_NAME, 2)
        assert failures(running, TlsFailure.NO_SERVER_NAME) == 2


@pytest.mark.slow
async def test_h29_the_name_of_a_node_that_is_not_there_ends_without_an_alert(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.net.tls_acceptor._NEW_BROKER_S", 0.3)
    async with named(pki) as (brokers, running):
        for node in (0, 3, 2**31 - 1):
            assert await refused(running, raw_hello(server_name_extension(b"b%d.kafka.test" % node))) == b""
        await running.ended_by(CloseCause.UNKNOWN_BROKER, 3)
        assert failures(running, TlsFailure.UNKNOWN_BROKER) == 3
        # Nothing is kept for nodes that clients have made up.
        assert {node for _, node in running.gateway.announced._brokers} <= {None, 1, 2}
        assert not any(each.client_connections for each in brokers)


async def test_h29_a_client_waits_for_a_broker_that_another_gateway_or_worker_has_advertised(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients do not try again after an end without an answer."""
    monkeypatch.setattr("gateway.upstream.discovery._SOON_S", 0.02)
    monkeypatch.setattr("gateway.upstream.discovery._NAMES_S", 0.01)
    async with (
        ScriptedBroker(9) as new,
        named(pki, upstream={"topology_refresh_ms": 3_600_000}) as (brokers, running),
    ):
        for each in brokers:
            each.nodes = [*each.nodes, Node(9, HOST, new.port)]
        assert await reached(running, [new], "b9.kafka.test") == 9
        assert failures(running, TlsFailure.UNKNOWN_BROKER) == 0


@pytest.mark.parametrize(("bound", "another_waits"), [("_MOST_LOOKING", False), ("_MOST_LOOKING_OF_NETWORK", True)])
async def test_h29_many_names_of_nodes_that_are_not_there_do_not_wait(
    pki: Pki, monkeypatch: pytest.MonkeyPatch, bound: str, another_waits: bool
) -> None:
    """The bound is for all hellos, or for those of one address, which leaves places to others."""
    monkeypatch.setattr("gateway.net.tls_acceptor._NEW_BROKER_S", 3_600.0)
    monkeypatch.setattr(f"gateway.net.tls_acceptor.{bound}", 2)
    hello = raw_hello(server_name_extension(b"b9.kafka.test"))
    async with named(pki) as (_, running):
        waiting = running.listener._tls_acceptor._looking
        async with (
            await running.connect() as first,
            await running.connect() as second,
            await running.connect(source="127.0.0.2") as another,
        ):
            await first.send(hello)
            await second.send(hello)
            await until(lambda: waiting[HOST] == 2)
            assert await refused(running, hello) == b""
            await another.send(hello)
            if another_waits:
                await until(lambda: waiting["127.0.0.2"] == 1)
            else:
                assert await another.receive_rest() == b""
        # Those that leave make room.
        await until(lambda: running.channels == [])
        assert not waiting


@pytest.mark.parametrize(
    "extensions", [b"\0\0\0\x01\0", b"\0\0\0\x05\0\x03\0\0\0", b"\0\0\xff\xff"], ids=["short", "empty", "long"]
)
async def test_h30_a_hello_that_contradicts_itself_gets_an_alert(pki: Pki, extensions: bytes) -> None:
    async with named(pki) as (_, running):
        assert await refused(running, raw_hello(extensions)) == DECODE_ERROR
        await running.ended_by(CloseCause.TLS_FAILED)
        assert failures(running, TlsFailure.PROTOCOL) == 1


async def test_h30_a_hello_with_a_name_of_64_kib_is_read_no_further_than_its_size(pki: Pki) -> None:
    hello = raw_hello(server_name_extension(b"a" * 60_000))
    async with named(pki) as (_, running):
        async with await running.connect() as client:
            await client.send(hello[:64])
            assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.TLS_FAILED)


async def test_h29_silence_ends_at_the_deadline_of_the_handshake(pki: Pki) -> None:
    async with named(pki, listener=listener(pki, handshake_timeout_ms=300)) as (_, running):
        async with await running.connect() as client:
            assert await client.receive_rest() == b""
        await running.ended_by(CloseCause.TLS_FAILED)
        assert failures(running, TlsFailure.TIMEOUT) == 1


async def test_h29_wrong_names_take_no_place_in_the_queue_of_handshakes_and_few_lines_of_the_log(
    pki: Pki, capsys: pytest.CaptureFixture[str]
) -> None:
    from gateway.observability.logging_setup import setup

    setup()
    limits = {"max_tls_handshakes_per_second": 1}
    hello = raw_hello(server_name_extension(b"evil\n\x1b[31m.test"))
    async with named(pki, connections=limits) as (brokers, running):
        for _ in range(200):
            assert await refused(running, hello) == UNRECOGNIZED_NAME
        assert running.gateway.tls.handshake_limiter.delayed == 0
        assert await reached(running, brokers, "b1.kafka.test") == 1
        assert handshakes(running, "TLSv1.3") == 1
    said = capsys.readouterr().err
    assert said.count("tls_failed") <= 60
    assert "\x1b[31m" not in said
    assert "evil\\" in said


@pytest.mark.slow
async def test_h29_many_connections_reach_the_brokers_that_they_name(pki: Pki) -> None:
    async with named(pki, connections={"max_tls_handshakes_per_second": 100_000}) as (_, running):
        clients: list[TlsClient] = []
        for at in range(0, 200, 50):
            clients += await asyncio.gather(
                *(connect(running, f"b{1 + number % 2}.kafka.test") for number in range(at, at + 50))
            )
            for client in clients[at:]:
                client.send(heartbeat(1))
            for client in clients[at:]:
                await client.receive_frame()
        assert sorted(each.session.broker_id or 0 for each in running.channels) == [1] * 100 + [2] * 100
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: not running.channels)


# -- sessions ------------------------------------------------------------------------------------------------
async def shake_hands(
    running: RunningGateway, context: ssl.SSLContext, name: str, session: ssl.SSLSession | None
) -> tuple[ssl.SSLSession | None, bool]:
    """Connect, ask and leave; the session for the next time, and whether this one was resumed."""
    reader, writer = await asyncio.open_connection(HOST, running.port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name, session=session)

    async def until_done(step: Any) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                received = await asyncio.wait_for(reader.read(65_536), 60)
                if not received:
                    raise Ended(b"") from None
                incoming.write(received)

    try:
        await until_done(tls.do_handshake)
        tls.write(heartbeat(1))
        await until_done(lambda: tls.read(4))  # a ticket comes before it
        return tls.session, bool(tls.session_reused)
    finally:
        writer.transport.abort()


@pytest.mark.slow
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_h31_a_session_of_one_name_leads_to_the_broker_of_the_name_that_is_given(
    pki: Pki, newest: ssl.TLSVersion
) -> None:
    context = blind()
    context.maximum_version = newest
    async with named(pki) as (brokers, running):
        session, _ = await shake_hands(running, context, "b1.kafka.test", None)
        _, reused = await shake_hands(running, context, "b2.kafka.test", session)
        assert reused
        assert [len(each.client_connections) for each in brokers] == [1, 1]
        with pytest.raises((ssl.SSLError, Ended)):
            await shake_hands(running, context, "b3.kafka.test", session)
        with pytest.raises((ssl.SSLError, Ended)):
            await shake_hands(running, context, "other.test", session)


async def test_h31_a_session_with_one_certificate_is_not_resumed_with_another(pki: Pki) -> None:
    async with named(pki, listener=listener(pki, certificates=more_certificates(pki))) as (brokers, running):
        session, _ = await shake_hands(running, context := blind(), "b1.kafka.test", None)
        assert (await shake_hands(running, context, "b1.kafka.test", session))[1] is True
        assert (await shake_hands(running, context, "b2.kafka.test", session))[1] is False
        assert [len(each.client_connections) for each in brokers] == [2, 1]


# -- certificates by name ------------------------------------------------------------------------------------
def more_certificates(pki: Pki) -> list[dict[str, str]]:
    """One for each broker's host by a wildcard, one for broker 2 alone."""
    found = []
    for name, host in (("any", "*.kafka.test"), ("two", "b2.kafka.test")):
        pair = pki.authority.issue(name, name, hosts=(host,), usage=SERVER)
        found.append({"certificate": str(pair.certificate), "key": str(pair.key)})
    return found


def shown_to(client: TlsClient) -> str:
    shown: Any = client.tls.getpeercert()
    return str(dict(pair[0] for pair in shown["subject"])["commonName"])


async def certificate_for(running: RunningGateway, pki: Pki, name: str) -> str:
    context = pki.trusting()
    context.check_hostname = False
    async with await connect(running, name, context) as client:
        return shown_to(client)


async def test_the_certificate_is_the_one_of_the_name(pki: Pki) -> None:
    async with named(pki, listener=listener(pki, certificates=more_certificates(pki))) as (_, running):
        for name, certificate in (
            ("b1.kafka.test", "any"),
            ("B1.kafka.TEST.", "any"),
            ("b2.kafka.test", "two"),
            (BOOTSTRAP, "server"),
        ):
            assert await certificate_for(running, pki, name) == certificate


async def test_certificates_are_chosen_by_name_where_each_broker_has_a_port_too(pki: Pki) -> None:
    keys = pki.keys(certificates=more_certificates(pki))
    async with ScriptedBroker() as broker, running_gateway(broker.port, listener=keys) as running:
        await running.discovered()
        for name, certificate in (
            ("b1.kafka.test", "any"),
            ("a.b.kafka.test", "server"),
            ("b2.kafka.test", "two"),
            ("localhost", "server"),
            (HOST, "server"),
        ):
            assert await certificate_for(running, pki, name) == certificate
        assert failures(running, TlsFailure.NO_SERVER_NAME) == 0


async def test_h21_each_certificate_is_exchanged_by_itself(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.tls_setup.LOOK_S", 0.05)
    own = [tmp_path / "own.crt", tmp_path / "own.key"]

    def put(name: str, *hosts: str) -> None:
        pair = pki.authority.issue(name, name, hosts=hosts, usage=SERVER)
        own[1].write_bytes(pair.key.read_bytes())
        own[0].write_bytes(pair.certificate.read_bytes())

    put("before", "b1.kafka.test")
    certificates = [{"certificate": str(own[0]), "key": str(own[1])}]
    async with named(pki, listener=listener(pki, certificates=certificates)) as (_, running):
        first, second = running.gateway.tls.identities
        assert second.owner == "listeners.tests.tls.certificates.0"
        assert await certificate_for(running, pki, "b1.kafka.test") == "before"
        # The names change with the file.
        put("after", "b2.kafka.test")
        await until(lambda: second.reloads > 0 and not second.last_reload_failed and "b2.kafka.test" in second.hosts)
        assert await certificate_for(running, pki, "b2.kafka.test") == "after"
        assert await certificate_for(running, pki, "b1.kafka.test") == "server"
        assert first.reloads == 0
