"""``python -m campaigns.scripted.scrapers``: a hundred scrapers at a time, and what clients notice.

The admin port takes a bounded number of connections at a time. The scoreboard judges how many scrapes fail for it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import aiohttp

from campaigns.scripted.dead_broker import ask_until
from testkit.broker import ScriptedBroker
from testkit.gateway import gateway_process
from testkit.raw_client import HOST

_PATIENCE: aiohttp.ClientTimeout = aiohttp.ClientTimeout(total=60)


async def scrape(url: str, rounds: int) -> int:
    """One scraper, each time on a new connection; how many of its scrapes failed."""
    failed = 0
    for _ in range(rounds):
        try:
            async with aiohttp.ClientSession(timeout=_PATIENCE) as session, session.get(url) as answer:
                text = await answer.text()
                failed += answer.status != 200 or "gateway_connections_opened_total" not in text
        except (aiohttp.ClientError, TimeoutError):
            failed += 1
    return failed


async def campaign(scrapers: int, rounds: int) -> tuple[int, int, int]:
    """Failed scrapes, and requests of five clients that were sent and answered meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedBroker() as broker, gateway_process(Path(folder), broker.port) as gateway:
            done = asyncio.Event()
            clients = [asyncio.create_task(ask_until(done, gateway.port)) for _ in range(5)]
            url = f"http://{HOST}:{gateway.admin_port}/metrics"
            try:
                failed = sum(await asyncio.gather(*(scrape(url, rounds) for _ in range(scrapers))))
            finally:
                done.set()
            counts = await asyncio.gather(*clients)
    return failed, sum(sent for sent, _ in counts), sum(answered for _, answered in counts)


def main() -> int:
    """Run it; 1 when a request had no answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scrapers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    failed, sent, answered = asyncio.run(campaign(options.scrapers, options.rounds))
    print(
        f"**{options.scrapers * options.rounds:,} scrapes by {options.scrapers} at a time, {failed} failed; "
        f"{sent:,} requests meanwhile, {sent - answered} not answered**"
    )
    return int(sent != answered)


if __name__ == "__main__":
    sys.exit(main())
