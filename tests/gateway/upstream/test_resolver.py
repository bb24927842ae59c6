import asyncio
import socket

import pytest

from gateway.upstream.resolver import Resolver
from testkit.clock import FakeClock


class Names:
    """A name service that counts questions.

    Attributes:
        asked: every question.
        answers: what it says; a missing name does not exist.
    """

    def __init__(self, **answers: list[str]) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answers = answers

    async def lookup(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.answers[host]


def resolver(clock: FakeClock, names: Names, *, ttl_ms: int = 1000) -> Resolver:
    return Resolver(lambda: clock.now_ms, ttl_ms=ttl_ms, lookup=names.lookup)


@pytest.mark.parametrize("literal", ["127.0.0.1", "::1", "2001:db8::7"])
async def test_addresses_are_not_looked_up(clock: FakeClock, literal: str) -> None:
    names = Names()
    assert await resolver(clock, names).resolve(literal, 9092) == [literal]
    assert names.asked == []


async def test_d03_answers_are_kept_for_their_time_and_failures_are_not(clock: FakeClock) -> None:
    names = Names(kafka=["10.0.0.1"])
    made = resolver(clock, names)
    assert await made.resolve("kafka", 9092) == ["10.0.0.1"]
    names.answers["kafka"] = ["10.0.0.2", "10.0.0.3"]
    clock.advance(999)
    assert await made.resolve("kafka", 9092) == ["10.0.0.1"]
    clock.advance(1)
    assert await made.resolve("kafka", 9092) == ["10.0.0.2", "10.0.0.3"]
    assert names.asked == [("kafka", 9092)] * 2
    names = Names()
    made = resolver(clock, names)
    with pytest.raises(OSError, match="not known"):
        await made.resolve("kafka", 9092)
    names.answers["kafka"] = ["10.0.0.1"]
    assert await made.resolve("kafka", 9092) == ["10.0.0.1"]


async def test_number_of_kept_names_is_bounded(clock: FakeClock) -> None:
    names = Names(**{f"kafka-{number}": ["10.0.0.1"] for number in range(3_000)})
    made = resolver(clock, names)
    for name in names.answers:
        await made.resolve(name, 9092)
    assert len(made._cache) <= 1_000


async def test_d03_lookup_of_the_system_does_not_block_the_loop() -> None:
    loop = asyncio.get_running_loop()
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    loop.call_soon(turn)
    made = Resolver(lambda: 0)
    assert "127.0.0.1" in await made.resolve("localhost", 9092)
    assert turns > 0
