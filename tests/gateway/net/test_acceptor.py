"""Real sockets, and time that only moves when a test moves it."""

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.net.acceptor import ACCEPTS_PER_TURN
from gateway.upstream import keepalive
from quotas.connections import AdmissionCause, AfterHold, ConnectionLimits, ListenerLimits
from testkit.acceptors import ListeningAcceptor
from testkit.clock import FakeClock
from testkit.raw_client import HOST

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BROKEN_BEFORE_ACCEPT = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN)


@pytest.fixture
def acceptors(clock: FakeClock) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(**options: Any) -> ListeningAcceptor:
            acceptor = ListeningAcceptor(clock, **options)
            stack.callback(acceptor.close)
            return acceptor

        yield make


def test_admitted_socket_is_handed_over_unread_with_its_address(acceptors: Any) -> None:
    acceptor = acceptors()
    (client,) = acceptor.connect()
    (accepted,) = acceptor.admitted
    assert accepted.peer == "{}:{}".format(*client.sock.getsockname())
    assert acceptor.acceptor.accepted == 1


def test_accepted_sockets_notice_a_peer_that_is_gone_without_a_word(acceptors: Any) -> None:
    acceptor = acceptors()
    acceptor.connect()
    accepted = acceptor.admitted[0].sock
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == keepalive.IDLE_S
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


def test_b23_a_burst_is_accepted_in_small_batches_so_that_data_is_handled_in_between(acceptors: Any) -> None:
    acceptor = acceptors()
    acceptor.connect_unseen(3 * ACCEPTS_PER_TURN)
    for bites in (1, 2, 3):
        acceptor.loop.turn()
        assert acceptor.acceptor.accepted == bites * ACCEPTS_PER_TURN


# -- rates ---------------------------------------------------------------------------------------------------
def test_b13_over_the_rate_none_is_refused_and_accepting_stops_for_the_wait(acceptors: Any) -> None:
    acceptor = acceptors(max_connection_creation_rate=1)
    clients = acceptor.connect(14)
    assert len(acceptor.admitted) == 10
    assert acceptor.loop.watched == []
    assert acceptor.acceptor.accepted == 11
    acceptor.loop.advance(999)
    assert len(acceptor.admitted) == 10
    for admitted in (11, 12, 13, 14):
        acceptor.loop.advance(1_000)
        assert len(acceptor.admitted) == admitted
    assert [client.ended for client in clients] == [None] * 14
    assert acceptor.seen.delayed == [(AdmissionCause.GATEWAY_RATE, 1_000)] * 4
    assert acceptor.seen.blocked_ms == 4_000
    assert not acceptor.seen.refused


def test_all_ports_of_a_listener_wait_together(acceptors: Any) -> None:
    acceptor = acceptors(max_connection_creation_rate=1)
    acceptor.acceptor.listen((HOST, 0), 7)
    acceptor.connect(11)
    assert acceptor.loop.watched == []
    acceptor.acceptor.listen((HOST, 0), 8)
    assert acceptor.loop.watched == []
    acceptor.loop.advance(1_000)
    assert len(acceptor.loop.watched) == 3


# -- addresses -----------------------------------------------------------------------------------------------
def test_b14_address_over_its_rate_is_held_unread_and_closed_after_its_throttle_time(acceptors: Any) -> None:
    acceptor = acceptors(ip_rate=1)
    acceptor.connect(10)
    (client,) = acceptor.connect()
    assert (len(acceptor.admitted), len(acceptor.acceptor.held)) == (10, 1)
    assert acceptor.seen.held == [1_000]
    acceptor.loop.advance(1_000)
    assert client.ended is None
    # Strictly later than the throttle's end, as Kafka does it, and not at its next look (kafka-live A10).
    acceptor.loop.advance(1)
    assert client.ended == "closed"
    assert acceptor.acceptor.held == {}
    assert acceptor.seen.refused == {AdmissionCause.IP_RATE: 1}


def test_held_socket_is_looked_at_again_and_let_in_when_configured_so(acceptors: Any) -> None:
    acceptor = acceptors(ip_rate=5, window_num=2, after_hold=AfterHold.RECHECK)
    (*_, client) = acceptor.connect(6)
    assert acceptor.seen.held == [200]
    acceptor.loop.advance(201)
    assert len(acceptor.admitted) == 6
    assert client.ended is None
    assert not acceptor.seen.refused


def test_b15_sockets_beyond_those_that_may_be_held_are_reset_at_once(acceptors: Any) -> None:
    acceptor = acceptors(ip_rate=1, max_held=5)
    clients = acceptor.connect(40)
    assert len(acceptor.acceptor.held) == 5
    assert [client.ended for client in clients[10:15]] == [None] * 5
    assert [client.ended for client in clients[15:]] == ["reset"] * 25
    assert acceptor.seen.refused == {AdmissionCause.HELD_FULL: 25}


def test_b16_what_a_held_client_sends_stays_in_the_kernel(acceptors: Any) -> None:
    acceptor = acceptors(ip_rate=1)
    (*_, client) = acceptor.connect(11)
    ((accepted, _),) = acceptor.acceptor.held.items()
    sent = 0
    while select.select([], [client.sock], [], 0.05)[1] and sent < 64 << 20:
        sent += client.sock.send(bytes(1 << 16))
    # Flow control has stopped the client; no one has read a byte.
    assert sent < 64 << 20
    assert struct.unpack("i", accepted.sock.recv(4, socket.MSG_PEEK)) == (0,)
    acceptor.loop.advance(1_001)
    assert client.ended == "reset"


def test_b16_a_held_client_that_goes_away_costs_nothing_but_its_hold(acceptors: Any) -> None:
    acceptor = acceptors(ip_rate=1)
    (*_, client) = acceptor.connect(11)
    client.sock.close()
    acceptor.loop.advance(1_001)
    assert acceptor.acceptor.held == {}
    assert acceptor.loop.timers == 0


# -- counts --------------------------------------------------------------------------------------------------
def test_b18_without_a_slot_the_next_client_waits_until_one_is_free(acceptors: Any) -> None:
    acceptor = acceptors(max_connections=2)
    clients = acceptor.connect(5)
    assert len(acceptor.admitted) == 2
    acceptor.loop.advance(60_000)
    assert len(acceptor.admitted) == 2
    acceptor.release()
    assert len(acceptor.admitted) == 2
    assert acceptor.acceptor.accepted == 4
    assert [client.ended for client in clients[1:]] == [None] * 4
    assert acceptor.seen.delayed[0] == (AdmissionCause.NO_SLOT, 0)
    assert acceptor.seen.blocked_ms == 60_000


def test_b18_limit_of_an_address_closes_what_is_beyond_it_and_counts_by_address(acceptors: Any) -> None:
    acceptor = acceptors(max_connections_per_ip=2, max_connections_per_ip_overrides={"127.0.0.9": 3})
    for source, let_in in (("127.0.0.2", 2), ("127.0.0.9", 3)):
        clients = acceptor.connect(5, source=source)
        assert [client.ended for client in clients] == [None] * let_in + ["closed"] * (5 - let_in)
    assert acceptor.seen.refused == {AdmissionCause.IP_COUNT: 5}


def test_raised_limits_let_in_the_socket_that_waits(acceptors: Any, clock: FakeClock) -> None:
    acceptor = acceptors(max_connections=2)
    acceptor.connect(4)
    acceptor.quotas.update(
        ConnectionLimits(listeners={"EXT": ListenerLimits()}, max_connections=3), now_ms=clock.now_ms
    )
    acceptor.acceptor.slot_freed()
    acceptor.loop.run()
    assert len(acceptor.admitted) == 3


# -- the system's own limits ---------------------------------------------------------------------------------
class BrokenSocket:
    """A listening socket that fails to accept, in the given ways, and then has no one."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.accepts = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.accepts += 1
        error = self.errors.pop(0) if self.errors else errno.EAGAIN
        raise OSError(error, os.strerror(error))


@pytest.mark.parametrize("error", OUT_OF_RESOURCES, ids=lambda error: errno.errorcode[error])
def test_f02_without_resources_accepting_pauses_and_goes_on(acceptors: Any, error: int) -> None:
    acceptor = acceptors()
    broken = BrokenSocket(*[error] * 5)
    acceptor.acceptor._accept(broken, None)  # type: ignore[arg-type]
    assert broken.accepts == 1  # and not once for each client in the backlog
    assert acceptor.loop.watched == []
    assert acceptor.seen.failures == 1
    acceptor.connect_unseen()
    acceptor.loop.advance(100)
    assert len(acceptor.admitted) == 1


@pytest.mark.parametrize("error", BROKEN_BEFORE_ACCEPT, ids=lambda error: errno.errorcode[error])
def test_f02_a_connection_that_broke_before_it_was_accepted_is_passed_over(acceptors: Any, error: int) -> None:
    acceptor = acceptors()
    broken = BrokenSocket(error, error)
    acceptor.acceptor._accept(broken, None)  # type: ignore[arg-type]
    assert broken.accepts == 3
    acceptor.connect()
    assert len(acceptor.admitted) == 1
    assert acceptor.seen.failures == 0


def test_f02_an_error_that_does_not_go_away_is_tried_a_bounded_number_of_times(acceptors: Any) -> None:
    acceptor = acceptors()
    broken = BrokenSocket(*[errno.ECONNABORTED] * 1000)
    acceptor.acceptor._accept(broken, None)  # type: ignore[arg-type]
    assert broken.accepts == ACCEPTS_PER_TURN


# -- ending --------------------------------------------------------------------------------------------------
def test_j04_stopping_closes_ports_and_sockets_that_were_not_let_in(acceptors: Any) -> None:
    acceptor = acceptors(ip_rate=1, listeners={"EXT": ListenerLimits(max_connection_creation_rate=2)})
    held = acceptor.connect(12, source="127.0.0.2")[10:]
    waiting = acceptor.connect(11, source="127.0.0.3")[10:]
    assert (len(acceptor.acceptor.held), len(acceptor.admitted)) == (2, 20)
    acceptor.acceptor.stop()
    assert [client.ended for client in [*held, *waiting]] == ["closed"] * 3
    assert acceptor.loop.watched == []
    assert acceptor.loop.timers == 0
    assert acceptor.quotas.snapshot(now_ms=acceptor.loop.now_ms()).held == 0
    assert acceptor.acceptor.ports == {}


def test_suspended_acceptor_does_not_begin_again_by_itself(acceptors: Any) -> None:
    acceptor = acceptors()
    acceptor.acceptor.suspend()
    acceptor.acceptor._pause(500)  # as after the end of a hold that has to wait
    acceptor.loop.advance(501)
    (client,) = acceptor.connect()
    assert acceptor.admitted == []
    acceptor.acceptor.resume()
    acceptor.loop.run()
    assert len(acceptor.admitted) == 1
    assert client.ended is None


def test_every_accepted_socket_is_let_in_refused_held_or_waits(acceptors: Any) -> None:
    acceptor = acceptors(ip_rate=1, max_held=3, max_connections=15)
    for source in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
        acceptor.connect(14, source=source)
        acceptor.loop.advance(100)
    waiting = int(acceptor.acceptor.waits_since_ms is not None)
    refused = sum(acceptor.seen.refused.values())
    assert waiting == 1
    assert acceptor.acceptor.accepted == len(acceptor.admitted) + refused + len(acceptor.acceptor.held) + waiting
