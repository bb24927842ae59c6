"""Many connections of one counter at its bound (hazards K03, K04) are served in turn, and none waits for long."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from quotas.bound_queue import BoundQueue
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import START_MS, GatewayCore
from testkit.frames import fetch, produce, produce_reply

QUOTA = 100_000.0


class Clients:
    """Each sends a request, waits for its answer and then as long as that says."""

    def __init__(self, core: GatewayCore, count: int, request: bytes, reply: bytes) -> None:
        self.core = core
        self.request, self.reply = request, reply
        self.dice = random.Random(1)
        self.all = [Conversation(core=core) for _ in range(count)]
        self.sends_at = {number: self.dice.randint(0, 500) for number in range(count)}
        self.sent: dict[int, int] = {}
        self.broker: dict[int, int] = {}
        self.waits_ms: list[int] = []
        self.served: Counter[int] = Counter()

    @property
    def now_ms(self) -> int:
        """Since the start."""
        return self.core.clock.now_ms - START_MS

    def run(
        self, until_ms: int, broker_ms: Callable[[int], int], told_ms: Callable[[bytes], tuple[int, bool]]
    ) -> None:
        """Continue until then. `broker_ms`: of a client; `told_ms`: of an answer, and whether it has data."""
        while self.now_ms < until_ms:
            wakes = (self.all[i].session.wake_at_ms - START_MS for i in self.sent if i not in self.broker)
            due_ms = min((*self.sends_at.values(), *self.broker.values(), *wakes))
            self.core.clock.advance_to(START_MS + max(due_ms, self.now_ms))
            for i in self.dice.sample(range(len(self.all)), len(self.all)):
                self._step(i, self.all[i], broker_ms, told_ms)

    def _step(
        self, i: int, c: Conversation, broker_ms: Callable[[int], int], told_ms: Callable[[bytes], tuple[int, bool]]
    ) -> None:
        if self.sends_at.get(i, self.now_ms + 1) <= self.now_ms:
            del self.sends_at[i]
            self.sent[i] = self.now_ms
            c.at(self.now_ms).client_sends(self.request)
        elif self.broker.get(i, self.now_ms + 1) <= self.now_ms:
            del self.broker[i]
            c.upstream_answers(self.reply)
        elif i in self.sent:
            c.at(self.now_ms)
        for _ in frames_of(c.take_upstream()):
            self.broker[i] = self.now_ms + broker_ms(i)
        if answer := c.take_client():
            wait_ms, has_data = told_ms(answer)
            self.waits_ms.append(self.now_ms - self.sent.pop(i))
            self.served[i] += has_data
            self.sends_at[i] = self.now_ms + wait_ms + self.dice.randint(1, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(20, 100_000), (10, 200_000), (100, 20_000)])
def test_k04_producers_that_wait_as_told_are_served_in_turn(count: int, size: int) -> None:
    core = GatewayCore(producer_byte_rate=QUOTA)
    clients = Clients(core, count, produce(1, size=size), produce_reply(1))

    def told(answer: bytes) -> tuple[int, bool]:
        return wire.decode_response("Produce", 9, answer).throttle_time_ms, True

    clients.run(300_000, lambda _: 1, told)
    assert max(clients.waits_ms) < 30_000  # Java's request.timeout.ms
    assert min(clients.served.values()) * 2 >= max(clients.served.values()) > 4


def test_k03_a_consumer_with_a_slow_broker_gets_its_share() -> None:
    core = GatewayCore(consumer_byte_rate=QUOTA)
    partition = {"partition_index": 0, "high_watermark": 1, "aborted_transactions": None, "records": bytes(200_000)}
    responses = [{"topic": "t", "partitions": [partition]}]
    reply = wire.response("Fetch", 4, correlation_id=1, responses=responses)
    clients = Clients(core, 12, fetch(), reply)

    def told(answer: bytes) -> tuple[int, bool]:
        return int.from_bytes(answer[8:12], "big"), len(answer) > 1_000

    clients.run(400_000, lambda i: clients.dice.randint(2, 500 if i == 0 else 20), told)
    assert clients.served[0] * 3 >= max(clients.served.values()) > 4


@pytest.mark.parametrize("left_after_ms", [0, 500, 2_000])
def test_k04_a_client_with_a_connection_for_each_request_waits_for_its_debt_and_no_place_left_behind(
    left_after_ms: int,
) -> None:
    """As a program that is started for each record. The gateway notices a muted connection's end a moment later."""
    before = Conversation(producer_byte_rate=QUOTA)
    clock = before.clock
    waits_ms = []
    for number in range(1, 6):
        c = before.another()
        sent_ms = clock.now_ms
        c.client_sends(produce(number, size=2_000_000))
        if number > 1:
            c.at(sent_ms - START_MS + left_after_ms)
            before.session.ended(now_ms=clock.now_ms)
        while not c.take_upstream():
            c.at(max(c.session.wake_at_ms, clock.now_ms + 1) - START_MS)
        waits_ms.append(clock.now_ms - sent_ms)
        c.upstream_answers(produce_reply(number))
        before = c
    # 2 MB are 20 seconds of the quota.
    assert max(waits_ms) <= 20_001


def test_the_waits_of_another_quota_are_not_left_behind_with_the_counter() -> None:
    c = Conversation(producer_byte_rate=100).client_sends(produce(1, size=1_050))
    c.upstream_answers(produce_reply(1, throttle_time_ms=100_000))
    c.session.ended(now_ms=c.clock.now_ms)
    other = c.another().client_sends(produce(2, size=10)).upstream_sees()
    assert 0 < other.session.wake_at_ms - c.clock.now_ms <= 2_000


def test_places_of_connections_that_have_gone_are_forgotten() -> None:
    queue = BoundQueue()
    for number in range(10_000):
        waiter = (number,)
        most_held_ms = number % 2 * 1e12
        assert queue.wait_ms(waiter, 10.0, 1e9, most_held_ms=most_held_ms, now_ms=5) == 1e9 - 5
        queue.leave(waiter)
    assert not queue
    assert len(queue._held) + len(queue._away) < 200
