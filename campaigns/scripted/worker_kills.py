"""``python -m campaigns.scripted.worker_kills``: workers are killed one after the other, and each is replaced.

In each round one random worker gets SIGKILL. Clients of the other workers send requests all the time, and must lose
none. The worker serves again when a client of the new process has its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
from typing import Final

from campaigns.scripted.worker_quotas import one_on_each, throttle_ms, workers_serving
from testkit.broker import ScriptedBroker
from testkit.gateway import GatewayProcess
from testkit.process_group import children
from testkit.raw_client import PATIENCE_S, Ended, RawClient

WORKERS: Final = 3
GOAL_S: Final = 2.0
_PAUSE_S: Final = 0.01


async def ask(client: RawClient, done: asyncio.Event) -> tuple[int, int]:
    """Send requests until done; how many were sent and answered."""
    sent = answered = 0
    while not done.is_set():
        sent += 1
        try:
            await throttle_ms(client, "survivor")
        except (Ended, OSError):
            break
        answered += 1
        await asyncio.sleep(_PAUSE_S)
    return sent, answered


async def served_by(gateway: GatewayProcess, worker: int, restarts: int) -> tuple[RawClient, float]:
    """Connect until a new worker answers; the client, and the time of its answer.

    Args:
        gateway: the gateway.
        worker: number of the old and the new worker.
        restarts: number of workers replaced before.
    """
    # The supervisor hands a connection to the worker with the fewest. So open connections lead to the new worker.
    kept: list[RawClient] = []
    end_s = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < end_s:
            client = await gateway.connect()
            try:
                await throttle_ms(client, "new")
            except (Ended, OSError):  # it was handed to the killed worker
                client.close()
                continue
            answered_s = time.monotonic()
            replaced = await gateway.metric("gateway_worker_restarts_total") > restarts
            if replaced and await gateway.metric("gateway_worker_connections", worker=str(worker)):
                return client, answered_s
            kept.append(client)
        raise TimeoutError(f"worker {worker} is not replaced")
    finally:
        for each in kept:
            each.close()


async def campaign(kills: int, seed: int) -> tuple[list[float], int, int]:
    """Seconds from each kill to an answer of the new worker; requests that other workers received and answered."""
    dice = random.Random(seed)
    took_s = []
    sent = answered = 0
    async with ScriptedBroker() as broker, workers_serving(WORKERS, broker) as (gateway, clients):
        (nursery,) = children(gateway.process.pid)
        pids = children(nursery)  # in the order of the workers' numbers
        try:
            for restarts in range(kills):
                victim = dice.randrange(WORKERS)
                done = asyncio.Event()
                others = [
                    asyncio.create_task(ask(each, done)) for each in clients if each is not clients[victim]
                ]
                await asyncio.sleep(_PAUSE_S)
                begun_s = time.monotonic()
                os.kill(pids[victim], signal.SIGKILL)
                client, at_s = await served_by(gateway, victim, restarts)
                took_s.append(at_s - begun_s)
                done.set()
                for of_one in await asyncio.gather(*others):
                    sent, answered = sent + of_one[0], answered + of_one[1]
                clients[victim].close()
                clients[victim] = client
                (pids[victim],) = set(children(nursery)) - set(pids)
                await one_on_each(gateway, WORKERS)
        finally:
            for each in clients:
                each.close()
    return took_s, sent, answered


def main() -> int:
    """Run it; 1 when a worker was missing for too long or another one lost a request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=21)
    options = parser.parse_args()
    took_s, sent, answered = asyncio.run(campaign(options.kills, options.seed))
    print(
        f"**{len(took_s)} kills: served by the new worker after {statistics.median(took_s):.3f} s at the median and "
        f"at most {max(took_s):.3f} s; {sent:,} requests to other workers, {sent - answered} not answered**"
    )
    return int(max(took_s) > GOAL_S or sent != answered)


if __name__ == "__main__":
    sys.exit(main())
