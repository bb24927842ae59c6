"""Handshakes begin evenly, addresses in turns, and cost nothing before it is their turn."""

import asyncio
import random
from functools import partial
from typing import cast

import pytest

from gateway.tls.handshake_rate import HandshakeRateLimiter
from testkit.clock import FakeClock
from testkit.fake_loop import FakeLoop


class Crowd:
    """Clients that want to begin.

    Attributes:
        began: who has, in order.
        gone: who has left without a word.
        refused: who was, in order.
    """

    def __init__(self, per_second: int | None, *, max_waiting: int = 1_000) -> None:
        self.loop = FakeLoop(FakeClock(5_000))
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.handshake_limiter = HandshakeRateLimiter(loop, per_second=per_second, max_waiting=max_waiting)
        self.began: list[int] = []
        self.gone: set[int] = set()
        self.refused: list[int] = []

    def come(self, *numbers: int, network: str = "192.0.2.1", left_s: float = 1e9, protected: bool = False) -> None:
        for number in numbers:
            self.handshake_limiter.request(
                number,
                lambda _, number=number: self._begin(number),  # type: ignore[misc]
                partial(self.refused.append, number),
                network=network,
                left_s=left_s,
                protected=protected,
            )

    def _begin(self, number: int) -> bool:
        if number in self.gone:
            return False
        self.began.append(number)
        return True


def test_rates_are_kept_at_any_grain_and_lateness() -> None:
    crowd = Crowd(100)
    crowd.come(*range(200))
    assert crowd.began == [0]
    for _ in range(100):
        before = len(crowd.began)
        crowd.loop.advance(10)
        assert len(crowd.began) - before == 1
    assert crowd.began == list(range(101))
    assert crowd.handshake_limiter.delayed == 199
    assert crowd.handshake_limiter.waiting == 99
    crowd = Crowd(5_000, max_waiting=20_000)
    crowd.come(*range(12_000))
    crowd.loop.advance(1_000)
    assert 5_000 <= len(crowd.began) <= 5_020
    crowd = Crowd(200)
    crowd.come(*range(400))
    crowd.loop.clock.advance(100)  # the loop was busy
    began = len(crowd.began)
    crowd.loop.advance(1)
    assert len(crowd.began) - began <= 2
    crowd.loop.advance(899)
    assert 198 <= len(crowd.began) <= 204
    crowd = Crowd(100)
    for number in range(50):
        crowd.come(number)
        assert crowd.began[-1] == number
        crowd.loop.advance(20)
    assert crowd.handshake_limiter.delayed == 0


def test_permits_go_to_those_who_still_wait() -> None:
    crowd = Crowd(100)
    crowd.come(*range(10))
    for number in range(1, 9):
        crowd.handshake_limiter.cancel(number)
    crowd.handshake_limiter.cancel(77)
    crowd.loop.advance(10)
    assert crowd.began == [0, 9]
    crowd = Crowd(100)
    crowd.gone = {1, 2, 3}
    crowd.come(*range(6))
    crowd.loop.advance(10)
    assert crowd.began == [0, 4]


def test_k09_only_so_many_wait_and_as_many_as_begin_in_time() -> None:
    crowd = Crowd(100, max_waiting=4)
    crowd.come(*range(6))
    assert crowd.refused == [4, 5]
    crowd.loop.advance(100)
    assert crowd.began == [0, 1, 2, 3]
    crowd.come(6)
    assert crowd.began[-1] == 6
    crowd = Crowd(100)
    crowd.come(*range(200), left_s=1.0)
    assert crowd.refused == list(range(81, 200))
    crowd.loop.advance(800)
    assert crowd.began == list(range(81))


# -- K09 -----------------------------------------------------------------------------------------------------


def test_k09_addresses_take_turns_and_the_one_with_most_gives_way() -> None:
    crowd = Crowd(100)
    crowd.come(*range(300), network="203.0.113.1", left_s=1.0)
    crowd.refused.clear()
    crowd.come(1_000, 1_001, network="192.0.2.7", left_s=1.0)
    crowd.come(2_000, network="2001:db8::/64", left_s=1.0)
    assert crowd.refused == [80, 79, 78], "the last ones of the address that has most"
    crowd.loop.advance(50)
    assert crowd.began == [0, 1, 1_000, 2_000, 2, 1_001]


def test_k09_the_protected_listener_has_a_quarter_and_no_more_while_others_wait() -> None:
    crowd = Crowd(100)
    crowd.come(*range(500), left_s=4.0)
    crowd.come(*range(1_000, 1_500), left_s=4.0, protected=True)
    crowd.loop.advance(1_000)
    assert sum(number >= 1_000 for number in crowd.began) == 25
    assert len(crowd.began) == 101


class Fleet:
    """Clients that try again as Java's do when they are refused: after 50 ms, then twice as long up to a second."""

    def __init__(self, crowd: Crowd, clients: int, addresses: int) -> None:
        self.crowd = crowd
        self.addresses = addresses
        self.dice = random.Random(7)
        self.tried = [0] * clients
        for number in range(clients):
            crowd.loop.call_later(self.dice.random() / 2, self.connect, number)

    def connect(self, number: int) -> None:
        self.crowd.handshake_limiter.request(
            (number, self.tried[number]),
            lambda _: self.crowd._begin(number),
            partial(self.try_again, number),
            network=f"network {number % self.addresses}",
            left_s=10.0,
        )

    def try_again(self, number: int) -> None:
        self.tried[number] += 1
        backoff_s = min(1.0, 0.05 * 2 ** self.tried[number]) * self.dice.uniform(0.8, 1.2)
        self.crowd.loop.call_later(backoff_s, self.connect, number)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "addresses", "within_ms"),
    [pytest.param(10_000, 2_000, 54_000, marks=pytest.mark.campaign), (2_500, 500, 15_000), (2_500, 1, 15_000)],
)
def test_k09_thousands_of_clients_that_reconnect_at_once_are_in_at_the_rate_of_handshakes(
    clients: int, addresses: int, within_ms: int
) -> None:
    crowd = Crowd(200, max_waiting=4_096)
    Fleet(crowd, clients, addresses)
    crowd.loop.advance(within_ms)
    assert sorted(crowd.began) == list(range(clients))


def test_another_rate_or_none_holds_from_the_next_permit_on() -> None:
    crowd = Crowd(10)
    crowd.come(*range(50))
    crowd.handshake_limiter.per_second = 100
    crowd.loop.advance(300)
    assert 18 <= len(crowd.began) <= 31
    crowd = Crowd(None)
    crowd.come(*range(50))
    assert crowd.began == list(range(50))
    crowd = Crowd(100)
    crowd.come(0, 1)
    crowd.handshake_limiter.stop()
    crowd.loop.advance(1_000)
    assert crowd.began == [0]
    assert crowd.handshake_limiter.waiting == 0
