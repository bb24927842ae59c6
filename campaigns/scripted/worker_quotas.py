"""``python -m campaigns.scripted.worker_quotas``: time from setting a quota at one worker until all enforce it.

In each round the default quota of client ids is set, and then removed. Meanwhile a producer on each worker sends one
request after the other, each under a new client id. The quota is in force when each producer has been throttled, and
removed when none is throttled any more.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from campaigns.scripted.crowd import answer
from protocol.error_codes import ErrorCode
from testkit import wire
from testkit.broker import PRODUCE, ScriptedBroker
from testkit.frames import produce
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import PATIENCE_S, RawClient

WORKERS: Final = 4
GOAL_S: Final = 1.0
_SIZE: Final = 100_000
_QUOTA: Final = 90_000.0
"""Slightly less than one request a second, so that clients are throttled only for a short time."""

_TABLES: Final = """
[server]
workers = {workers}
[client_quota]
window_num = 2
[quota_admin]
authorize = "anyone"
"""


@asynccontextmanager
async def workers_serving(
    count: int, broker: ScriptedBroker
) -> AsyncIterator[tuple[GatewayProcess, list[RawClient]]]:
    """A gateway with `workers` workers, and a client on each, in the order of the workers."""
    broker.script(PRODUCE, answer)
    tables = _TABLES.format(workers=count)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway = await stack.enter_async_context(gateway_process(folder, broker.port, tables=tables))
        clients = []
        for number in range(count):
            clients.append(await stack.enter_async_context(await gateway.connect()))
            await throttle_ms(clients[-1], f"first-{number}")
        await one_on_each(gateway, count)
        yield gateway, clients


async def one_on_each(gateway: GatewayProcess, workers: int) -> None:
    """Wait until each worker has one connection."""
    for number in range(workers):
        await gateway.metric_is("gateway_worker_connections", 1, worker=str(number))


async def throttle_ms(client: RawClient, name: str) -> int:
    """The throttle time in the answer to one Produce."""
    await client.send(produce(1, size=_SIZE, client_id=name))
    return int(wire.decode_response("Produce", 9, await client.receive_frame()).throttle_time_ms)


async def enforced(client: RawClient, names: Iterator[str], *, wanted: bool) -> float:
    """Produce under new names until a request is throttled, or until one is not; the time of its answer."""
    async with asyncio.timeout(PATIENCE_S):
        while bool(wait_ms := await throttle_ms(client, next(names))) is not wanted:
            pass
    at_s = time.monotonic()
    await asyncio.sleep(wait_ms / 1_000)  # so that the next round does not wait for this mute
    return at_s


async def alter(client: RawClient, *, remove: bool) -> None:
    """Set or remove the default quota of client ids."""
    entity = [{"entity_type": "client-id", "entity_name": None}]
    ops = [{"key": "producer_byte_rate", "value": _QUOTA, "remove": remove}]
    entries = [{"entity": entity, "ops": ops}]
    await client.send(wire.request("AlterClientQuotas", 1, entries=entries, validate_only=False))
    body = wire.decode_response("AlterClientQuotas", 1, await client.receive_frame())
    assert body.entries[0].error_code == ErrorCode.NONE


async def campaign(rounds: int) -> list[float]:
    """Seconds of each change, from its request to the answer that shows it at the last worker."""
    took_s = []
    names = (f"client-{number}" for number in itertools.count())
    async with (
        ScriptedBroker() as broker,
        workers_serving(WORKERS, broker) as (gateway, clients),
        await gateway.connect() as admin,
    ):
        for _ in range(rounds):
            for wanted in (True, False):
                begun_s = time.monotonic()
                change = asyncio.create_task(alter(admin, remove=not wanted))
                at_s = await asyncio.gather(*(enforced(each, names, wanted=wanted) for each in clients))
                await change
                took_s.append(max(at_s) - begun_s)
    return took_s


def main() -> int:
    """Run it; 1 when a quota is in force too late."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    took_s = asyncio.run(campaign(parser.parse_args().rounds))
    p99_s = statistics.quantiles(took_s, n=100, method="inclusive")[98]
    print(
        f"**{len(took_s)} changes of a quota, in force in all {WORKERS} workers: p99 {p99_s * 1_000:.1f} ms, "
        f"longest {max(took_s) * 1_000:.1f} ms**"
    )
    return int(p99_s > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
