from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gateway.upstream import keepalive


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


def option(sock: socket.socket, name: int) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, name)


def test_b05_dead_peer_is_found_out_within_two_minutes(sock: socket.socket) -> None:
    keepalive.watch_peer(sock)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    probes_s = option(sock, socket.TCP_KEEPINTVL) * option(sock, socket.TCP_KEEPCNT)
    assert option(sock, socket.TCP_KEEPIDLE) + probes_s <= 120


def test_broker_may_keep_us_from_sending_for_as_long_as_it_likes(sock: socket.socket) -> None:
    keepalive.watch_peer(sock)
    assert option(sock, socket.TCP_USER_TIMEOUT) == 0


@pytest.mark.parametrize(
    ("write_timeout_ms", "limit_ms"), [(30_000, 120_000), (200_000, 400_000), (2**31 - 1, 2**31 - 1)]
)
def test_deadline_of_writes_comes_before_the_kernels(
    sock: socket.socket, write_timeout_ms: int, limit_ms: int
) -> None:
    keepalive.limit_unacknowledged(sock, write_timeout_ms=write_timeout_ms)
    assert option(sock, socket.TCP_USER_TIMEOUT) == limit_ms
