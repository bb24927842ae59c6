"""CPU cost of the status page and `sluice top` with 1,000 active clients, in browser and gateway; keeps results.

    python -m benchmarks.status_page [--clients 1000] [--rounds 4] [--seconds 10] [--before FILE] [--write]

A real gateway process relays Produce requests of all clients, at a steady rate, to a scripted broker. Chromium opens
the page with a row for each client. With `--before`, an older page of the same gateway is measured too. The gateway's
CPU time is measured in turns: with no viewer, and with page and top (in tmux) open. Goals: first paint under 1 s, an
update under 50 ms of the browser's main thread, at most 2 percent of a core more in the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
from playwright.async_api import Browser, CDPSession, Page, async_playwright
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine
from testkit.broker import PRODUCE, BrokerConnection, Request, ScriptedBroker
from testkit.frames import produce, produce_reply
from testkit.gateway import GatewayProcess, gateway_process
from testkit.packages import require_package
from testkit.raw_client import HOST

RESULTS: Final = Path(__file__).with_name("results")
FIRST_PAINT_MS: Final = 1_000
UPDATE_MS: Final = 50
CPU_PCT: Final = 2.0
_CONNECTIONS: Final = 10
_SETTLE_S: Final = 3.0
_START_S: Final = 60.0
_UPDATES: Final = 10
_PARTS: Final = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
_TMUX: Final = "sluice-bench"
_QUOTAS: Final = """
[[quotas]]
default_client_id = true
producer_byte_rate = 1000000
consumer_byte_rate = 1000000
controller_mutation_rate = 5
"""

_FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
# When the rows were first there, and how long each poll of the page took.
_WATCH: Final = """
window.renders = [];
new MutationObserver(() => {
  window.rowsAt = window.rowsAt || performance.now();
  window.renders.push(Number(document.documentElement.dataset.renderMs));
}).observe(document.documentElement, { attributes: true, attributeFilter: ["data-at"] });
"""


class Load:
    """Produce requests of many clients in turns, over a few connections, `per_s` a second."""

    def __init__(self, clients: int, per_s: int) -> None:
        self._frames = [
            produce(1, acks=1, size=100 + at % 400, client_id=f"client-{at:04d}") for at in range(clients)
        ]
        self._per_s = per_s
        self.sent = 0

    async def run(self, port: int) -> None:
        """Send requests until cancelled."""
        streams = [await asyncio.open_connection(HOST, port) for _ in range(_CONNECTIONS)]
        readers = [asyncio.create_task(self._drop(reader)) for reader, _ in streams]
        due_s = time.monotonic()
        try:
            while True:
                for _ in range(self._per_s // 50):
                    streams[self.sent % _CONNECTIONS][1].write(self._frames[self.sent % len(self._frames)])
                    self.sent += 1
                due_s += 0.02
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        finally:
            for reader in readers:
                reader.cancel()
            for _, writer in streams:
                writer.close()

    @staticmethod
    async def _drop(reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass


def _replies(connection: BrokerConnection, request: Request) -> None:
    connection.send(produce_reply(request.correlation_id))


async def measure(
    clients: int, rounds: int, seconds: float, per_s: int, before: str | None
) -> dict[str, Any]:
    """All numbers; `before` is the text of an older page."""
    admin = f"max_entity_series = {clients}"
    with TemporaryDirectory() as folder:
        async with ScriptedBroker() as broker:
            broker.script(PRODUCE, _replies)
            async with gateway_process(Path(folder), broker.port, admin=admin, tables=_QUOTAS) as gateway:
                load = Load(clients, per_s)
                running = asyncio.create_task(load.run(gateway.port))
                await asyncio.sleep(2 + clients / per_s)
                try:
                    async with async_playwright() as playwright:
                        program = require_package("chromium")
                        browser = await playwright.chromium.launch(
                            executable_path=program, args=["--no-sandbox"]
                        )
                        found = await _page_times(browser, gateway, before)
                        if rounds:
                            found |= await _cpu(browser, gateway, rounds, seconds)
                        await browser.close()
                finally:
                    running.cancel()
                    with suppress(asyncio.CancelledError):
                        await running
                return found | {"clients": clients, "requests_per_s": per_s, "sent": load.sent}


async def _page_times(browser: Browser, gateway: GatewayProcess, before: str | None) -> dict[str, Any]:
    paints, rows_at = [], []
    for _ in range(3):
        page = await _opened(browser, gateway)
        paints.append(
            await page.evaluate(
                "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)[0]"
            )
        )
        rows_at.append(await page.evaluate("window.rowsAt"))
        await page.close()
    found: dict[str, Any] = {
        "first_paint_ms": round(statistics.median(paints)),
        "rows_after_ms": round(statistics.median(rows_at)),
    }
    for rows in ("100", "1000"):
        found[f"update_{rows}"] = await _update_times(browser, gateway, rows)
        if before is not None:
            found[f"update_{rows}_before"] = await _update_times(browser, gateway, rows, before)
    return found


async def _update_times(
    browser: Browser, gateway: GatewayProcess, rows: str, text: str | None = None
) -> dict[str, float]:
    """CPU time of the browser's main thread for one update, in ms. Other programs do not affect it."""
    page = await _opened(browser, gateway, text)
    await page.select_option("#rows", rows)
    await page.wait_for_timeout(1_000)
    shown = await page.locator("#clients tr").count()
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = await _spent_s(devtools)
    first = await page.evaluate("window.renders.length")
    while (renders := await page.evaluate("window.renders.length") - first) < _UPDATES:
        await page.wait_for_timeout(200)
    after = await _spent_s(devtools)
    await page.close()
    spent = {name: round((after[name] - before[name]) / renders * 1000, 1) for name in _PARTS}
    return {"rows": shown, **spent}


async def _opened(browser: Browser, gateway: GatewayProcess, text: str | None = None) -> Page:
    page = await browser.new_page()
    if text is not None:
        await page.route(
            f"http://{HOST}:{gateway.admin_port}/",
            lambda route: route.fulfill(body=text, content_type="text/html"),
        )
    await page.add_init_script(f"document.addEventListener('DOMContentLoaded', () => {{{_WATCH}}});")
    await page.goto(f"http://{HOST}:{gateway.admin_port}/")
    # Not `wait_for_function`: the page's content security policy forbids it.
    # The browser reports the first paint some time later.
    while await page.evaluate(
        "window.rowsAt === undefined || !performance.getEntriesByName('first-contentful-paint').length"
    ):
        await page.wait_for_timeout(50)
    return page


async def _spent_s(devtools: CDPSession) -> dict[str, float]:
    metrics = (await devtools.send("Performance.getMetrics"))["metrics"]
    return {each["name"]: float(each["value"]) for each in metrics if each["name"] in _PARTS}


async def _cpu(browser: Browser, gateway: GatewayProcess, rounds: int, seconds: float) -> dict[str, Any]:
    require_package("tmux")
    without, with_both = [], []
    stalls, stalls_with_both = 0.0, 0.0
    for _ in range(rounds):
        before = await _stalls(gateway)
        without.append(await _share(gateway, seconds))
        stalls += await _stalls(gateway) - before
        page = await _opened(browser, gateway)
        program = Path(sys.executable).with_name("sluice")
        await _tmux(
            "new-session", "-d", "-x", "160", "-y", "50", f"{program} top --admin {HOST}:{gateway.admin_port}"
        )
        async with asyncio.timeout(_START_S):
            while "client-" not in await _tmux("capture-pane", "-p"):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        await asyncio.sleep(_SETTLE_S)
        before = await _stalls(gateway)
        with_both.append(await _share(gateway, seconds))
        stalls_with_both += await _stalls(gateway) - before
        await _tmux("kill-server")
        await page.close()
        await asyncio.sleep(1)
    return {
        "stalls": int(stalls),
        "stalls_with_page_and_top": int(stalls_with_both),
        "cpu_pct": [round(each, 2) for each in without],
        "cpu_pct_with_page_and_top": [round(each, 2) for each in with_both],
        "more_pct_of_a_core": round(statistics.median(with_both) - statistics.median(without), 2),
        "ratio": round(statistics.median(with_both) / statistics.median(without), 3),
    }


async def _share(gateway: GatewayProcess, seconds: float) -> float:
    """CPU time of the gateway, in percent of a core."""
    began, spent = time.monotonic(), gateway.cpu_s()
    await asyncio.sleep(seconds)
    return (gateway.cpu_s() - spent) / (time.monotonic() - began) * 100


async def _stalls(gateway: GatewayProcess) -> float:
    """The number of times so far that the loop was blocked for more than 20 ms."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{HOST}:{gateway.admin_port}/metrics") as answer,
    ):
        families = text_string_to_metric_families(await answer.text())
    buckets = {
        sample.labels["le"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "gateway_event_loop_stall_seconds_bucket"
    }
    return buckets["+Inf"] - buckets["0.02"]


async def _tmux(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "tmux", "-L", _TMUX, "-f", "/dev/null", *command, stdout=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[0].decode()


def page(found: dict[str, Any]) -> str:
    """Markdown."""
    return "\n".join(
        [
            "# Status page and top",
            "",
            f"`python -m benchmarks.status_page --write`, {found['started']}: {found['clients']} active clients, "
            f"{found['requests_per_s']} requests a second.",
            "",
            "| What | Measured | Goal |",
            "|---|---|---|",
            f"| first paint | {found['first_paint_ms']} ms | {FIRST_PAINT_MS} ms |",
            f"| first rows | {found['rows_after_ms']} ms | |",
            *(
                f"| one update of {each['rows']} rows, CPU of the main thread: all "
                f"(script, layout, style) | {each['TaskDuration']} ms ({each['ScriptDuration']}, "
                f"{each['LayoutDuration']}, {each['RecalcStyleDuration']}) | {goal} |"
                for each, goal in ((found["update_100"], f"{UPDATE_MS} ms"), (found["update_1000"], ""))
            ),
            *(
                f"| the same of {found[name]['rows']} rows with the page before | {found[name]['TaskDuration']} ms "
                f"({found[name]['ScriptDuration']}, {found[name]['LayoutDuration']}, "
                f"{found[name]['RecalcStyleDuration']}) | |"
                for name in ("update_100_before", "update_1000_before")
                if name in found
            ),
            *_cpu_lines(found),
            "",
        ]
    )


def _cpu_lines(found: dict[str, Any]) -> list[str]:
    if "cpu_pct" not in found:
        return []
    return [
        f"| gateway's CPU, page and top closed | {found['cpu_pct']} % of a core | |",
        f"| the same, both open, in turns | {found['cpu_pct_with_page_and_top']} % | |",
        f"| loop blocked over 20 ms, closed and open, as often | {found['stalls']} and "
        f"{found['stalls_with_page_and_top']} | 0 more |",
        f"| more, of medians | {found['more_pct_of_a_core']} % of a core, ratio {found['ratio']} | {CPU_PCT} % |",
    ]


def main() -> int:
    """Run and report; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.status_page")
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=4, help="of the gateway's CPU; 0: the page alone")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--per-second", type=int, default=500)
    parser.add_argument("--before", type=Path, help="an older page, as `git show COMMIT:...` gives it")
    parser.add_argument("--write", action="store_true", help="keep the results")
    options = parser.parse_args()
    before = None if options.before is None else options.before.read_text()
    found = asyncio.run(measure(options.clients, options.rounds, options.seconds, options.per_second, before))
    found |= {"started": datetime.now(UTC).isoformat(timespec="seconds"), "machine": describe_machine()}
    text = page(found)
    print(text)
    if options.write:
        keep_results(found, text, RESULTS, "status-page")
    kept = (
        found["first_paint_ms"] <= FIRST_PAINT_MS,
        found["update_100"]["TaskDuration"] <= UPDATE_MS,
        found.get("more_pct_of_a_core", 0.0) <= CPU_PCT,
        found.get("stalls_with_page_and_top", 0) <= found.get("stalls", 0),
    )
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
