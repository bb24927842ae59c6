"""Real sockets, and time that only moves when a test moves it."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.net.acceptor import ACCEPTS_PER_TURN
from gateway.upstream import keepalive
from quotas.connections import AdmissionCause, AfterHold, ConnectionLimits, ListenerLimits
from quotas.entities import DEFAULT, QuotaEntity
from tests.support.clock import FakeClock
from tests.support.doors import Door
from tests.support.raw_client import HOST

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BROKEN_BEFORE_ACCEPT = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN)


@pytest.fixture
def doors(clock: FakeClock) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(**options: Any) -> Door:
            door = Door(clock, **options)
            stack.callback(door.close)
            return door

        yield make


def test_admitted_socket_is_handed_over_unread_with_its_address(doors: Any) -> None:
    door = doors()
    (client,) = door.connect()
    (arrival,) = door.admitted
    assert arrival.peer == "{}:{}".format(*client.sock.getsockname())
    assert not arrival.accepted.getblocking()
    assert door.acceptor.accepted == 1


def test_accepted_sockets_notice_a_peer_that_is_gone_without_a_word(doors: Any) -> None:
    door = doors()
    door.connect()
    accepted = door.admitted[0].accepted
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == keepalive.IDLE_S
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


def test_b23_a_burst_is_accepted_in_small_bites_so_that_data_gets_its_turn(doors: Any) -> None:
    door = doors()
    door.connect_unseen(3 * ACCEPTS_PER_TURN)
    for bites in (1, 2, 3):
        door.loop.turn()
        assert door.acceptor.accepted == bites * ACCEPTS_PER_TURN


# -- rates ---------------------------------------------------------------------------------------------------


def test_b13_over_the_rate_nobody_is_refused_and_accepting_stops_for_the_wait(doors: Any) -> None:
    door = doors(max_connection_creation_rate=1)
    clients = door.connect(14)
    assert len(door.admitted) == 10
    assert door.loop.watched == []
    assert door.acceptor.accepted == 11
    door.loop.advance(999)
    assert len(door.admitted) == 10
    for admitted in (11, 12, 13, 14):
        door.loop.advance(1_000)
        assert len(door.admitted) == admitted
    assert [client.ended for client in clients] == [None] * 14
    assert door.seen.delayed == [(AdmissionCause.GATEWAY_RATE, 1_000)] * 4
    assert door.seen.blocked_ms == 4_000
    assert not door.seen.refused


def test_listener_over_its_rate_leaves_other_listeners_alone(doors: Any) -> None:
    slow = ListenerLimits(max_connection_creation_rate=1)
    door = doors(listeners={"EXT": slow, "OTHER": ListenerLimits()})
    door.connect(12)
    door.connect(20, listener="OTHER")
    assert len(door.admitted) == 10 + 20
    assert {cause for cause, _ in door.seen.delayed} == {AdmissionCause.LISTENER_RATE}


def test_all_ports_of_a_listener_wait_together(doors: Any) -> None:
    door = doors(max_connection_creation_rate=1)
    door.acceptor.listen((HOST, 0), 7)
    door.connect(11)
    assert door.loop.watched == []
    door.acceptor.listen((HOST, 0), 8)
    assert door.loop.watched == []
    door.loop.advance(1_000)
    assert len(door.loop.watched) == 3


# -- addresses -----------------------------------------------------------------------------------------------


def test_b14_address_over_its_rate_is_held_unread_and_closed_after_its_throttle_time(doors: Any) -> None:
    door = doors(ip_rate=1)
    door.connect(10)
    (client,) = door.connect()
    assert (len(door.admitted), len(door.acceptor.held)) == (10, 1)
    assert door.seen.held == [1_000]
    door.loop.advance(1_000)
    assert client.ended is None
    # Strictly later than the throttle's end, as Kafka does it, and not at its next look (kafka-live A10).
    door.loop.advance(1)
    assert client.ended == "closed"
    assert door.acceptor.held == {}
    assert door.seen.refused == {AdmissionCause.IP_RATE: 1}


def test_b14_other_addresses_come_in_while_one_is_held(doors: Any) -> None:
    door = doors(ip_rate=1)
    door.connect(15, source="127.0.0.2")
    door.connect(10, source="127.0.0.3")
    assert Counter(arrival.ip for arrival in door.admitted) == {"127.0.0.2": 10, "127.0.0.3": 10}


def test_held_socket_is_looked_at_again_and_let_in_when_configured_so(doors: Any) -> None:
    door = doors(ip_rate=5, window_num=2, after_hold=AfterHold.RECHECK)
    (*_, client) = door.connect(6)
    assert door.seen.held == [200]
    door.loop.advance(201)
    assert len(door.admitted) == 6
    assert client.ended is None
    assert not door.seen.refused


def test_b15_sockets_beyond_those_that_may_be_held_are_reset_at_once(doors: Any) -> None:
    door = doors(ip_rate=1, max_held=5)
    clients = door.connect(40)
    assert len(door.acceptor.held) == 5
    assert [client.ended for client in clients[10:15]] == [None] * 5
    assert [client.ended for client in clients[15:]] == ["reset"] * 25
    assert door.seen.refused == {AdmissionCause.HELD_FULL: 25}


def test_b16_what_a_held_client_sends_stays_in_the_kernel(doors: Any) -> None:
    door = doors(ip_rate=1)
    (*_, client) = door.connect(11)
    ((arrival, _),) = door.acceptor.held.items()
    sent = 0
    while select.select([], [client.sock], [], 0.05)[1] and sent < 64 << 20:
        sent += client.sock.send(bytes(1 << 16))
    # Flow control has stopped the client; nobody has read a byte.
    assert sent < 64 << 20
    assert struct.unpack("i", arrival.accepted.recv(4, socket.MSG_PEEK)) == (0,)
    door.loop.advance(1_001)
    assert client.ended == "reset"


def test_b16_a_held_client_that_goes_away_costs_nothing_but_its_hold(doors: Any) -> None:
    door = doors(ip_rate=1)
    (*_, client) = door.connect(11)
    client.sock.close()
    door.loop.advance(1_001)
    assert door.acceptor.held == {}
    assert door.loop.timers == 0


def test_observed_address_is_let_in_and_counted_as_one_that_would_be_held(doors: Any) -> None:
    door = doors(ip_rate=1)
    door.limits.set_observed({QuotaEntity(ip=DEFAULT)})
    door.connect(12)
    assert len(door.admitted) == 12
    assert door.seen.would_hold == [1_000, 1_000]
    assert door.seen.held == []


# -- counts --------------------------------------------------------------------------------------------------


def test_b18_without_a_slot_the_next_client_waits_until_one_is_free(doors: Any) -> None:
    door = doors(max_connections=2)
    clients = door.connect(5)
    assert len(door.admitted) == 2
    door.loop.advance(60_000)
    assert len(door.admitted) == 2
    door.release()
    assert len(door.admitted) == 2
    assert door.acceptor.accepted == 4
    assert [client.ended for client in clients[1:]] == [None] * 4
    assert door.seen.delayed[0] == (AdmissionCause.NO_SLOT, 0)
    assert door.seen.blocked_ms == 60_000


def test_b18_limit_of_an_address_closes_what_is_beyond_it_and_counts_by_address(doors: Any) -> None:
    door = doors(max_connections_per_ip=2, max_connections_per_ip_overrides={"127.0.0.9": 3})
    for source, let_in in (("127.0.0.2", 2), ("127.0.0.9", 3)):
        clients = door.connect(5, source=source)
        assert [client.ended for client in clients] == [None] * let_in + ["closed"] * (5 - let_in)
    assert door.seen.refused == {AdmissionCause.IP_COUNT: 5}


def test_b18_protected_listener_comes_in_when_the_gateway_is_full(doors: Any) -> None:
    door = doors(
        listeners={"EXT": ListenerLimits(), "ADMIN": ListenerLimits(max_connections=3)},
        max_connections=2,
        protected_listener="ADMIN",
    )
    door.connect(4)
    assert len(door.admitted) == 2
    door.connect(4, listener="ADMIN")
    assert len(door.admitted) == 5


def test_limits_that_were_raised_let_in_who_waits(doors: Any, clock: FakeClock) -> None:
    door = doors(max_connections=2)
    door.connect(4)
    door.quotas.update(
        ConnectionLimits(listeners={"EXT": ListenerLimits()}, max_connections=3), now_ms=clock.now_ms
    )
    door.acceptor.slot_freed()
    door.loop.run()
    assert len(door.admitted) == 3


# -- the system's own limits ---------------------------------------------------------------------------------


class BrokenSocket:
    """A listening socket that fails to accept, in the given ways, and then has nobody."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.accepts = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.accepts += 1
        error = self.errors.pop(0) if self.errors else errno.EAGAIN
        raise OSError(error, os.strerror(error))


@pytest.mark.parametrize("error", OUT_OF_RESOURCES, ids=lambda error: errno.errorcode[error])
def test_f02_without_resources_accepting_pauses_and_goes_on(doors: Any, error: int) -> None:
    door = doors()
    broken = BrokenSocket(*[error] * 5)
    door.acceptor._accept(broken, None)  # type: ignore[arg-type]
    assert broken.accepts == 1  # and not once for each client in the backlog
    assert door.loop.watched == []
    assert door.seen.failures == 1
    door.connect_unseen()
    door.loop.advance(100)
    assert len(door.admitted) == 1


@pytest.mark.parametrize("error", BROKEN_BEFORE_ACCEPT, ids=lambda error: errno.errorcode[error])
def test_f02_a_connection_that_broke_before_it_was_accepted_is_passed_over(doors: Any, error: int) -> None:
    door = doors()
    broken = BrokenSocket(error, error)
    door.acceptor._accept(broken, None)  # type: ignore[arg-type]
    assert broken.accepts == 3
    door.connect()
    assert len(door.admitted) == 1
    assert door.seen.failures == 0


def test_f02_an_error_that_does_not_go_away_is_tried_a_bounded_number_of_times(doors: Any) -> None:
    door = doors()
    broken = BrokenSocket(*[errno.ECONNABORTED] * 1000)
    door.acceptor._accept(broken, None)  # type: ignore[arg-type]
    assert broken.accepts == ACCEPTS_PER_TURN


# -- ending --------------------------------------------------------------------------------------------------


def test_stopping_closes_ports_and_everybody_who_was_not_let_in(doors: Any) -> None:
    door = doors(ip_rate=1, listeners={"EXT": ListenerLimits(max_connection_creation_rate=2)})
    held = door.connect(12, source="127.0.0.2")[10:]
    waiting = door.connect(11, source="127.0.0.3")[10:]
    assert (len(door.acceptor.held), len(door.admitted)) == (2, 20)
    door.acceptor.stop()
    assert [client.ended for client in [*held, *waiting]] == ["closed"] * 3
    assert door.loop.watched == []
    assert door.loop.timers == 0
    assert door.quotas.snapshot(now_ms=door.loop.now_ms()).held == 0
    assert door.acceptor.ports == {}


def test_every_accepted_socket_is_let_in_refused_held_or_waits(doors: Any) -> None:
    door = doors(ip_rate=1, max_held=3, max_connections=15)
    for source in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
        door.connect(14, source=source)
        door.loop.advance(100)
    waiting = int(door.acceptor.waits_since_ms is not None)
    refused = sum(door.seen.refused.values())
    assert waiting == 1
    assert door.acceptor.accepted == len(door.admitted) + refused + len(door.acceptor.held) + waiting
