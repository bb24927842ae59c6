"""Real sockets behind a load balancer that the test plays, and time that only moves when a test moves it."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from config.sections.listeners import ProxyProtocolSettings
from gateway.net.proxy_acceptor import ProxyProtocolAcceptor
from quotas.connections import AdmissionCause, ListenerLimits
from testkit.acceptors import Client, ListeningAcceptor
from testkit.clock import FakeClock

BALANCER = "127.0.0.8"
STRANGER = "127.0.0.9"
HELLO = b"\x00\x00\x00\x17\x00\x12"


def v1(ip: str, port: int = 40_000) -> bytes:
    return f"PROXY TCP4 {ip} 198.51.100.1 {port} 9092\r\n".encode()


def v2(ip: str) -> bytes:
    addresses = socket.inet_aton(ip) + socket.inet_aton("198.51.100.1") + b"\x9c\x40\x23\x84"
    return b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + addresses


class BehindBalancer(ListeningAcceptor):
    """A listener behind a load balancer; admitted sockets are kept."""

    def __init__(self, clock: FakeClock, *, max_waiting: int = 10, **options: Any) -> None:
        proxy = ProxyProtocolSettings(trusted=(BALANCER,), timeout_ms=3_000, max_waiting=max_waiting)
        super().__init__(clock, window_num=2, proxy=proxy, **options)

    def open(self, first: bytes = b"", *, source: str = BALANCER) -> Client:
        """A connection that the acceptor gets to see together with its first bytes."""
        (client,) = self.connect_unseen(source=source)
        self.send(client, first)
        return client

    def send(self, client: Client, data: bytes) -> None:
        client.sock.sendall(data)
        self.loop.run()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Connections with a place, waiting for a header, admitted."""
        total = self.quotas.snapshot(now_ms=self.loop.now_ms()).connections
        return total, self.acceptor.awaiting_header, len(self.admitted)

    def close(self) -> None:
        for accepted in self.admitted:
            self.quotas.release("EXT", accepted.ip)
        super().close()
        assert self.quotas.snapshot(now_ms=self.loop.now_ms()).connections == 0
        assert self.loop.watched == []


@pytest.fixture
def proxy_acceptors(clock: FakeClock) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(**options: Any) -> BehindBalancer:
            proxy_acceptor = BehindBalancer(clock, **options)
            stack.callback(proxy_acceptor.close)
            return proxy_acceptor

        yield make


@pytest.mark.parametrize("header", [v1("192.0.2.7"), v2("192.0.2.7")], ids=["v1", "v2"])
@pytest.mark.parametrize("cut", [0, 1, 15, 16, 20, None])
def test_h25_header_is_taken_and_nothing_behind_it(proxy_acceptors: Any, header: bytes, cut: int | None) -> None:
    proxy_acceptor = proxy_acceptors()
    if cut is None:
        proxy_acceptor.open(header + HELLO)
    else:
        client = proxy_acceptor.open(header[:cut])
        assert proxy_acceptor.counts == (1, 1, 0)
        proxy_acceptor.send(client, header[cut:] + HELLO)
    (accepted,) = proxy_acceptor.admitted
    assert (accepted.ip, accepted.port, accepted.peer) == ("192.0.2.7", 40_000, "192.0.2.7:40000")
    assert accepted.proxy.startswith(f"{BALANCER}:")
    assert accepted.connected_to == ("198.51.100.1", 9_092)
    assert accepted.sock.recv(100) == HELLO
    assert proxy_acceptor.quotas.connections_of("192.0.2.7") == 1
    assert proxy_acceptor.counts == (1, 0, 1)


def test_h25_incomplete_header_costs_no_turn_of_the_loop_while_it_waits(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors()
    proxy_acceptor.open(b"PROXY TCP4 ")
    before = proxy_acceptor.loop.scheduler
    proxy_acceptor.loop.run()
    assert proxy_acceptor.loop.scheduler == before


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00",
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8" + bytes(216),
    ],
    ids=["unknown", "local", "unix"],
)
def test_h25_header_without_addresses_leaves_the_sockets_own_address(proxy_acceptors: Any, header: bytes) -> None:
    proxy_acceptor = proxy_acceptors()
    proxy_acceptor.open(header)
    (accepted,) = proxy_acceptor.admitted
    assert (accepted.ip, accepted.connected_to) == (BALANCER, None)


@pytest.mark.parametrize(
    ("ip", "trusted"),
    [
        (BALANCER, True),
        (f"::ffff:{BALANCER}", True),
        (STRANGER, False),
        ("::1", False),
        ("fe80::1%lo", False),
        ("2001:db8:1::7", True),
    ],
)
def test_h24_trust_is_by_address_however_the_socket_spells_it(ip: str, trusted: bool) -> None:
    settings = ProxyProtocolSettings(trusted=(BALANCER, "2001:db8:1::/48"))
    proxy_acceptor = ProxyProtocolAcceptor(
        settings,
        loop=None,
        on_header=lambda *_: None,
        on_refused=lambda *_: None,  # type: ignore[arg-type]
    )
    assert proxy_acceptor.trusts(ip) is trusted
    assert proxy_acceptor.trusts(ip) is trusted


def test_h24_stranger_is_closed_unread_and_uses_up_nothing(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors(listeners={"EXT": ListenerLimits(1, 1)})
    for _ in range(5):
        assert proxy_acceptor.open(v1("192.0.2.7"), source=STRANGER).ended
    assert proxy_acceptor.seen.refused == {AdmissionCause.PROXY_UNTRUSTED: 5}
    proxy_acceptor.open(v1("192.0.2.7"))
    assert proxy_acceptor.counts == (1, 0, 1)


@pytest.mark.parametrize(
    ("first", "cause"),
    [
        (HELLO, AdmissionCause.PROXY_MISSING),
        (b"\x16\x03\x01\x02\x00", AdmissionCause.PROXY_MISSING),
        (b"PROXY " + b"x" * 102, AdmissionCause.PROXY_INVALID),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff", AdmissionCause.PROXY_INVALID),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n", AdmissionCause.PROXY_INVALID),
    ],
)
def test_h25_missing_and_broken_headers_close(proxy_acceptors: Any, first: bytes, cause: AdmissionCause) -> None:
    proxy_acceptor = proxy_acceptors()
    assert proxy_acceptor.open(first).ended
    assert proxy_acceptor.seen.refused == {cause: 1}
    assert proxy_acceptor.counts == (0, 0, 0)


def test_h25_slow_header_ends_at_its_deadline_however_it_trickles(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors()
    silent, slow = proxy_acceptor.open(), proxy_acceptor.open(b"P")
    for byte in b"ROXY":
        proxy_acceptor.loop.advance(599)
        proxy_acceptor.send(slow, bytes([byte]))
    proxy_acceptor.loop.advance(2_999 - 4 * 599)
    assert not silent.ended
    assert not slow.ended
    proxy_acceptor.loop.advance(1)
    assert silent.ended
    assert slow.ended
    assert proxy_acceptor.seen.refused == {AdmissionCause.PROXY_TIMEOUT: 2}
    assert proxy_acceptor.counts == (0, 0, 0)


def test_l06_header_that_came_while_the_process_stood_still_is_read(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors()
    client = proxy_acceptor.open(b"PROXY TCP4 ")
    proxy_acceptor.loop.clock.advance(10_000)
    client.sock.sendall(b"192.0.2.1 192.0.2.2 1 2\r\n")
    proxy_acceptor.loop.advance(10_000)
    assert not client.ended
    assert proxy_acceptor.seen.refused == {}


def test_client_that_leaves_before_its_header_frees_its_place(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors()
    proxy_acceptor.open(b"PROX").sock.close()
    proxy_acceptor.loop.run()
    assert proxy_acceptor.seen.refused == {AdmissionCause.PROXY_CLOSED: 1}
    assert proxy_acceptor.loop.timers == 0


def test_h25_sockets_without_header_are_bounded(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors(max_waiting=3)
    clients = [proxy_acceptor.open() for _ in range(5)]
    assert [client.ended for client in clients] == [None] * 3 + ["reset"] * 2
    assert proxy_acceptor.seen.refused == {AdmissionCause.PROXY_FULL: 2}
    proxy_acceptor.send(clients[0], v1("192.0.2.7"))
    assert proxy_acceptor.counts == (3, 2, 1)


def test_waiting_for_a_header_takes_a_place_among_the_connections(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors(max_connections=2)
    first, _, third = (proxy_acceptor.open(), proxy_acceptor.open(), proxy_acceptor.open(v1("192.0.2.7")))
    assert proxy_acceptor.counts == (2, 2, 0)
    first.sock.close()
    proxy_acceptor.loop.run()
    assert proxy_acceptor.counts == (2, 1, 1)
    assert not third.ended


def test_rate_of_the_listener_is_applied_at_accept_and_a_header_can_not_hurry_it(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors(listeners={"EXT": ListenerLimits(max_connection_creation_rate=1)})
    proxy_acceptor.open(v1("192.0.2.1"))
    proxy_acceptor.open(v1("192.0.2.2"))
    assert proxy_acceptor.counts == (1, 0, 1)
    proxy_acceptor.loop.advance(1_000)
    assert proxy_acceptor.counts == (2, 0, 2)


def test_h26_rate_of_an_address_is_that_of_the_client_and_not_of_the_balancer(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors(ip_rate=1)
    for ip in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1"):
        proxy_acceptor.open(v1(ip))
    assert [accepted.ip for accepted in proxy_acceptor.admitted] == ["192.0.2.1", "192.0.2.2"]
    assert (len(proxy_acceptor.seen.held), len(proxy_acceptor.acceptor.held)) == (2, 2)
    assert proxy_acceptor.counts == (2, 0, 2)
    proxy_acceptor.loop.advance(1_001)
    assert proxy_acceptor.seen.refused == {AdmissionCause.IP_RATE: 2}


def test_h26_stranger_can_not_use_up_the_rate_of_an_address_it_names(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors(ip_rate=1)
    for _ in range(5):
        proxy_acceptor.open(v1("192.0.2.1"), source=STRANGER)
    proxy_acceptor.open(v1("192.0.2.1"))
    assert [accepted.ip for accepted in proxy_acceptor.admitted] == ["192.0.2.1"]


def test_number_of_connections_is_counted_by_client(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors(max_connections_per_ip=1)
    clients = [proxy_acceptor.open(v2(ip)) for ip in ("192.0.2.1", "192.0.2.1", "192.0.2.2")]
    assert [client.ended for client in clients] == [None, "closed", None]
    assert proxy_acceptor.seen.refused == {AdmissionCause.IP_COUNT: 1}
    assert proxy_acceptor.counts == (2, 0, 2)


def test_refused_client_passes_its_place_on(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors(max_connections=2, max_connections_per_ip=1)
    proxy_acceptor.open(v1("192.0.2.1"))
    slow = proxy_acceptor.open()
    proxy_acceptor.open(v1("192.0.2.2"))
    assert proxy_acceptor.counts == (2, 1, 1)
    proxy_acceptor.send(slow, v1("192.0.2.1"))
    assert [accepted.ip for accepted in proxy_acceptor.admitted] == ["192.0.2.1", "192.0.2.2"]


def test_j04_stop_closes_sockets_that_wait(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors()
    client = proxy_acceptor.open(b"PROXY")
    proxy_acceptor.acceptor.stop()
    assert client.ended
    assert proxy_acceptor.counts == (0, 0, 0)
    assert proxy_acceptor.loop.timers == 0


def test_h27_descriptor_is_unwatched_before_it_can_be_another_connections(proxy_acceptors: Any) -> None:
    proxy_acceptor = proxy_acceptors()
    for _ in range(20):
        assert proxy_acceptor.open(HELLO).ended
        client = proxy_acceptor.open(b"PROX")
        client.sock.close()
        proxy_acceptor.loop.run()
        assert len(proxy_acceptor.loop.watched) == 1  # the listening socket's
    proxy_acceptor.open(v1("192.0.2.7"))
    assert len(proxy_acceptor.loop.watched) == 1
    assert proxy_acceptor.counts == (1, 0, 1)
