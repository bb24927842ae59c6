"""``python -m campaigns.scripted.scrapers``: a hundred scrapers at a time, then one scrape a second.

The admin port accepts a bounded number of connections at a time; further scrapers wait. With one scrape a second,
periods with scrapes and without them alternate, so that the machine's load affects both alike. The scraper is a
separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp

from campaigns.scripted.dead_broker import ask_until
from testkit.broker import ScriptedBroker
from testkit.frames import fetch
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import HOST, RawClient

GOAL_MS: Final = 5.0
_PATIENCE: Final = aiohttp.ClientTimeout(total=60)
_SPELL_S: Final = 5.0
_ASK_EVERY_S: Final = 0.005
_SCRAPES: Final = """
import sys, urllib.request
for _ in sys.stdin:
    urllib.request.urlopen(sys.argv[1], timeout=60).read()
"""


async def scrape(url: str, rounds: int) -> int:
    """Scrape repeatedly, each time on a new connection; how many scrapes failed."""
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


async def spell(
    client: RawClient, numbers: Iterator[int], scraper: asyncio.StreamWriter | None = None
) -> list[float]:
    """Send requests for some seconds, with one scrape a second or none; the seconds until each answer."""
    took_s = []
    begun_s = time.monotonic()
    scrapes = 0
    while (at_s := time.monotonic() - begun_s) < _SPELL_S:
        if scraper is not None and at_s >= scrapes:
            scraper.write(b"\n")
            scrapes += 1
        asked_s = time.perf_counter()
        await client.send(fetch(next(numbers)))
        await client.receive_frame()
        took_s.append(time.perf_counter() - asked_s)
        await asyncio.sleep(_ASK_EVERY_S)
    return took_s


async def alternate(gateway: GatewayProcess, spells: int) -> tuple[list[float], list[float]]:
    """The times of one client's requests, without scrapes and with one a second."""
    quiet_s: list[float] = []
    scraped_s: list[float] = []
    url = f"http://{HOST}:{gateway.admin_port}/metrics"
    scraper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SCRAPES, url, stdin=asyncio.subprocess.PIPE
    )
    assert scraper.stdin is not None
    try:
        async with await gateway.connect() as client:
            numbers = itertools.count(1)
            await spell(client, numbers, scraper.stdin)
            for _ in range(spells):
                quiet_s += await spell(client, numbers)
                scraped_s += await spell(client, numbers, scraper.stdin)
    finally:
        scraper.stdin.close()
        await scraper.wait()
    return quiet_s, scraped_s


async def each_second(spells: int) -> tuple[float, float]:
    """The p99 of a client in milliseconds, without scrapes and with one a second."""
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedBroker() as broker, gateway_process(Path(folder), broker.port) as gateway:
            quiet_s, scraped_s = await alternate(gateway, spells)
    return p99_ms(quiet_s), p99_ms(scraped_s)


def p99_ms(took_s: list[float]) -> float:
    """The 99th percentile in milliseconds."""
    return statistics.quantiles(took_s, n=100)[98] * 1_000


def main() -> int:
    """Run it; 1 when a scrape failed, a request got no answer, or scrapes delayed a client too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scrapers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--spells", type=int, default=4)
    options = parser.parse_args()
    quiet_ms, scraped_ms = asyncio.run(each_second(options.spells))
    print(f"p99 without scrapes {quiet_ms:.2f} ms, with one a second {scraped_ms:.2f} ms")
    failed, sent, answered = asyncio.run(campaign(options.scrapers, options.rounds))
    print(
        f"**{options.scrapers * options.rounds:,} scrapes by {options.scrapers} at a time, {failed} failed; "
        f"{sent:,} requests meanwhile, {sent - answered} not answered; "
        f"p99 {scraped_ms - quiet_ms:.2f} ms more at one a second**"
    )
    return int(failed > 0 or sent != answered or scraped_ms - quiet_ms > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
