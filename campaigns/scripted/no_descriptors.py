"""``python -m campaigns.scripted.no_descriptors``: a gateway without descriptors, and how soon it accepts again.

There are two reasons why clients wait in the kernel. *places*: the process may have 256 descriptors, and idle clients
use all connections that the gateway allows for this number. *descriptors*: the process's limit is lowered while it
runs, so each accept fails with EMFILE. Established clients send requests all the time, and the CPU time includes
their part. Then descriptors are free again. The campaign measures the time until every waiting client has its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from campaigns.scripted.dead_broker import ask_until
from testkit.broker import ScriptedBroker
from testkit.frames import fetch
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import RawClient

GOAL_S: Final = 1.0
GOAL_CPU: Final = 0.5
_LIMIT: Final = 256
_ESTABLISHED: Final = 5
_WAITING: Final = 20
_OUT_S: Final = 3.0


@dataclass(slots=True)
class Found:
    """Results of one gateway.

    Attributes:
        back_s: seconds of each round from free descriptors to the answer of the last waiting client.
        cpu_s, out_s: CPU time of the gateway while it could not accept, and the length of that time.
        sent, answered: requests of the established clients.
        counted: the value of the metric that counts the shortage.
    """

    back_s: list[float]
    cpu_s: float = 0.0
    out_s: float = 0.0
    sent: int = 0
    answered: int = 0
    counted: float = 0.0

    @property
    def cpu(self) -> float:
        """CPU use in cores."""
        return self.cpu_s / self.out_s


async def wait_and_ask(client: RawClient) -> float:
    """Send a request; the time at which the client has its answer."""
    await client.receive_frame()
    return time.monotonic()


@asynccontextmanager
async def all_places(gateway: GatewayProcess) -> AsyncIterator[None]:
    """Idle clients use all allowed connections until the end of the block."""
    async with AsyncExitStack() as stack:
        limit = await gateway.metric("gateway_overall_connections_limit")
        for _ in range(int(limit) - _ESTABLISHED):
            await stack.enter_async_context(await gateway.connect())
        yield


@asynccontextmanager
async def all_descriptors(gateway: GatewayProcess) -> AsyncIterator[None]:
    """The process cannot open descriptors until the end of the block."""
    pid = gateway.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # The limit is on descriptor numbers. The numbers of the standard streams stay in use.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def one_round(gateway: GatewayProcess, found: Found, *, places: bool) -> None:
    """Exhaust connections or descriptors for some seconds, then free them."""
    async with AsyncExitStack() as stack:
        async with (all_places if places else all_descriptors)(gateway):
            waiting = []
            for _ in range(_WAITING):
                waiting.append(await stack.enter_async_context(await gateway.connect()))
                await waiting[-1].send(fetch())
            answers = [asyncio.create_task(wait_and_ask(client)) for client in waiting]
            before_s, begun_s = gateway.cpu_s(), time.monotonic()
            await asyncio.sleep(_OUT_S)
            found.cpu_s += gateway.cpu_s() - before_s
            found.out_s += time.monotonic() - begun_s
            assert not any(answer.done() for answer in answers), "there was room"
        free_s = time.monotonic()
        found.back_s.append(max(await asyncio.gather(*answers)) - free_s)
    await gateway.metric_is("gateway_connections_active", _ESTABLISHED)


async def campaign(rounds: int, *, places: bool) -> Found:
    """Run some rounds with one gateway."""
    found = Found([])
    prefix = ("prlimit", f"--nofile={_LIMIT}:{_LIMIT}") if places else ()
    series = (
        ("gateway_accept_delays_total", {"cause": "no_slot"})
        if places
        else ("gateway_accept_failures_total", {})
    )
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ScriptedBroker() as broker,
            gateway_process(
                Path(folder), broker.port, prefix=prefix, first_frame_timeout_ms=60_000
            ) as gateway,
        ):
            done = asyncio.Event()
            clients = [asyncio.create_task(ask_until(done, gateway.port)) for _ in range(_ESTABLISHED)]
            await gateway.metric_is("gateway_connections_active", _ESTABLISHED)
            try:
                for _ in range(rounds):
                    await one_round(gateway, found, places=places)
            finally:
                done.set()
            counts = await asyncio.gather(*clients)
            found.counted = await gateway.metric(series[0], **series[1])
    found.sent, found.answered = (sum(each) for each in zip(*counts, strict=True))
    return found


def main() -> int:
    """Run it; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    both = [asyncio.run(campaign(rounds, places=places)) for places in (True, False)]
    for name, found in zip(("places", "descriptors"), both, strict=True):
        print(
            f"{name}: back after {max(found.back_s):.3f} s, {found.cpu:.2f} cores, counted {found.counted:.0f}"
        )
    back_s = max(each for found in both for each in found.back_s)
    cpu = max(found.cpu for found in both)
    lost = sum(found.sent - found.answered for found in both)
    uncounted = sum(max(0.0, rounds - found.counted) for found in both)
    asked = sum(found.sent for found in both)
    print(
        f"**{2 * rounds} times without descriptors: accepts again after at most {back_s:.3f} s, {cpu * 100:.0f} % of "
        f"a core, {uncounted:.0f} not counted; {asked:,} requests of established clients, {lost} not answered**"
    )
    return int(back_s > GOAL_S or cpu > GOAL_CPU or lost > 0 or uncounted > 0)


if __name__ == "__main__":
    sys.exit(main())
