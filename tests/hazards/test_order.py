"""The short version of ``benchmarks.order``, and that its two ends would notice (hazards A38, C03)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import cast

import pytest

from testkit.broker import ScriptedBroker
from testkit.order.frames import Kind, correlation_id, kinds
from testkit.order.peers import Broker, Client, Counts
from testkit.order.run import run

pytestmark = pytest.mark.asyncio

REQUESTS = 50_000


@pytest.mark.integration
async def test_fifty_thousand_small_frames_keep_their_order_through_throttles_and_chaos(
    tmp_path: Path,
) -> None:
    outcome = await run(REQUESTS, folder=tmp_path, seed=4, limit_s=120)
    assert outcome.faults == []
    assert outcome.requests == REQUESTS
    throttled = {what.split()[0] for what, count in outcome.throttled_requests.items() if count}
    assert throttled == {"produce", "fetch", "request"}
    assert set(outcome.closed) == {"client_closed"}


# -- would they notice? --------------------------------------------------------------------------------------


class Sink:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass


def produce() -> Kind:
    return kinds()[0]


def broker_that_got(*numbers: int) -> Counts:
    counts = Counts(left=0)
    broker = Broker(counts, random.Random(1), ScriptedBroker())
    broker.connection_made(cast("asyncio.Transport", Sink()))
    for number in numbers:
        broker.data_received(produce().request_frame(b"order-0", number))
    return counts


async def test_requests_in_order_are_no_fault() -> None:
    assert broker_that_got(0, 1, 2).wrong == []


@pytest.mark.parametrize("numbers", [(0, 2, 1), (0, 2), (0, 0)], ids=["swapped", "lost", "doubled"])
async def test_requests_out_of_order_are_a_fault(numbers: tuple[int, ...]) -> None:
    assert broker_that_got(*numbers).wrong != []


def client_that_got(*replies: tuple[int, int]) -> Counts:
    """(number that its correlation id says, number that it carries) of replies to requests 0 and 1."""
    counts = Counts(left=0)
    client = Client(0, b"order-0", counts, random.Random(1))
    client.connection_made(cast("asyncio.Transport", Sink()))
    client._owed.extend((produce(), correlation_id(number), number) for number in (0, 1))
    for asked, carried in replies:
        client.data_received(produce().reply_frame(correlation_id(asked), carried))
    return counts


async def test_replies_in_order_are_no_fault() -> None:
    assert client_that_got((0, 0), (1, 1)).wrong == []


@pytest.mark.parametrize(
    "replies",
    [[(1, 1), (0, 0)], [(0, 1)], [(1, 0)], [(0, 0), (1, 1), (2, 2)]],
    ids=["swapped", "another's number", "another's correlation id", "one too many"],
)
async def test_replies_that_are_not_owed_next_are_a_fault(replies: list[tuple[int, int]]) -> None:
    assert client_that_got(*replies).wrong != []
