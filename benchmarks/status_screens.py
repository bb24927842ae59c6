"""Pictures of the status page and of `sluice top`: those of the docs, or all sizes for review.

    python -m benchmarks.status_screens                   # writes docs/screens
    python -m benchmarks.status_screens --all FOLDER      # 3, 300 and 10,000 clients, three widths, light and dark

A real gateway process relays Produce and Fetch requests of many clients to a scripted broker; one client in ten, at
most 30, exceeds its quota. Fails when a page is higher than two screens. Needs `make pipeline`, for Pillow.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from PIL import Image
from playwright.async_api import Browser, async_playwright

from gateway.cli.top_rows import snapshot_of
from gateway.cli.top_screen import TopScreen
from testkit import wire
from testkit.broker import FETCH, PRODUCE, BrokerConnection, Request, ScriptedBroker
from testkit.frames import produce, produce_reply
from testkit.gateway import GatewayProcess, gateway_process
from testkit.packages import require_package
from testkit.raw_client import HOST

DOCS: Final = Path(__file__).resolve().parent.parent / "docs" / "screens"
SCREENS: Final = 2
_CLIENTS: Final = (3, 300, 10_000)
_SIZES: Final = ((390, 844), (900, 1_100), (1_440, 900))
_COLUMNS: Final = (80, 120, 200)
_TERMINAL_ROWS: Final = 32
_THROTTLED: Final = 30
_PER_S: Final = 400
_SETTLE_S: Final = 20.0
_APPS: Final = (
    "checkout",
    "payments",
    "orders",
    "search",
    "audit",
    "fraud-scores",
    "cdc-connector",
    "mirror",
)
_LIMIT: Final = 20_000
_FETCHED: Final = [
    {
        "topic": "t",
        "partitions": [
            {"partition_index": 0, "error_code": 0, "high_watermark": 0, "records": bytes(20_000)},
        ],
    }
]


def _quotas(throttled: int) -> str:
    tables = [
        '[usage]\ngateway_id = "gw-1"',
        "[[quotas]]\ndefault_client_id = true\nproducer_byte_rate = 500000\nconsumer_byte_rate = 2000000",
    ]
    tables += [
        f'[[quotas]]\nclient_id = "{_heavy(at)}"\nproducer_byte_rate = {_LIMIT * (1 + at % 3)}'
        for at in range(throttled)
    ]
    return "\n".join(tables)


def _heavy(at: int) -> str:
    return f"etl-nightly-{at + 1:02}"


def _light(at: int) -> str:
    return f"{_APPS[at % len(_APPS)]}-{at // len(_APPS) + 1}"


async def _steady(port: int, clients: int) -> None:
    """Requests of clients that keep their quotas, in turns, over a few connections."""
    streams = [await asyncio.open_connection(HOST, port) for _ in range(5)]
    readers = [asyncio.create_task(_drop(reader)) for reader, _ in streams]
    frames = []
    for at in range(clients):
        fetch = wire.request("Fetch", 4, correlation_id=1, client_id=_light(at), topics=[])
        size = 2_000 + 6_000 * (at * 7 % 11) // 10
        frames.append(fetch if at % 4 == 3 else produce(1, acks=1, size=size, client_id=_light(at)))
    sent = 0
    try:
        while True:
            # The load varies, so that the page shows a trend.
            for _ in range(min(clients, _PER_S // 20 + sent // _PER_S % 4 * 5)):
                streams[sent % len(streams)][1].write(frames[sent % len(frames)])
                sent += 1
            await asyncio.sleep(0.05)
    finally:
        for reader in readers:
            reader.cancel()
        for _, writer in streams:
            writer.close()


async def _excessive(port: int, at: int) -> None:
    """One client above its quota, which sends as fast as the gateway allows."""
    reader, writer = await asyncio.open_connection(HOST, port)
    size = _LIMIT * (1 + at % 3) * (11 + at % 9)
    try:
        while True:
            writer.write(produce(1, acks=1, size=size, client_id=_heavy(at)))
            length = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(length)
    finally:
        writer.close()


async def _drop(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


def _produced(connection: BrokerConnection, request: Request) -> None:
    connection.send(produce_reply(request.correlation_id))


def _fetched(connection: BrokerConnection, request: Request) -> None:
    connection.send(wire.response("Fetch", 4, correlation_id=request.correlation_id, responses=_FETCHED))


@asynccontextmanager
async def busy_gateway(clients: int) -> AsyncIterator[GatewayProcess]:
    """A gateway that has served `clients` clients for a while."""
    throttled = min(_THROTTLED, max(1, clients // 10))
    with TemporaryDirectory() as folder:
        async with ScriptedBroker() as broker:
            broker.script(PRODUCE, _produced)
            broker.script(FETCH, _fetched)
            async with gateway_process(Path(folder), broker.port, tables=_quotas(throttled)) as gateway:
                load = [asyncio.create_task(_steady(gateway.port, clients - throttled))]
                load += [asyncio.create_task(_excessive(gateway.port, at)) for at in range(throttled)]
                try:
                    yield gateway
                finally:
                    for task in load:
                        task.cancel()
                    await asyncio.gather(*load, return_exceptions=True)


async def page_picture(
    browser: Browser,
    gateway: GatewayProcess,
    file: Path,
    size: tuple[int, int],
    scheme: str,
    *,
    settle_s: float,
    whole: bool,
) -> int:
    """Write the page, or its first screen, as a picture; the height of the page in pixels."""
    width, height = size
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = await context.new_page()
    await page.goto(f"http://{HOST}:{gateway.admin_port}/")
    await page.wait_for_selector("#clients tr")
    await asyncio.sleep(settle_s)
    found = await page.evaluate("document.documentElement.scrollHeight")
    await page.screenshot(path=file, full_page=whole)
    await context.close()
    _fewer_colours(file)
    return int(found)


def _fewer_colours(file: Path) -> None:
    """Reduce a picture to few colours, which makes the file a third as large."""
    with Image.open(file) as image:
        few = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


async def top_picture(browser: Browser, gateway: GatewayProcess, file: Path, columns: int) -> None:
    """Write a picture of top in a terminal of `columns` columns."""
    url = f"http://{HOST}:{gateway.admin_port}"
    screen = TopScreen(url, await asyncio.to_thread(snapshot_of, url), interval_s=1.0)
    async with screen.run_test(size=(columns, _TERMINAL_ROWS)) as pilot:
        await asyncio.sleep(25)
        await pilot.pause()
        drawn = screen.export_screenshot()
    page = await browser.new_page(viewport={"width": min(1_600, 12 * columns), "height": 400})
    await page.set_content(f"<body style='margin:0'>{drawn}</body>")
    await page.locator("svg").first.screenshot(path=file)
    await page.close()
    _fewer_colours(file)


async def main_async(folder: Path | None) -> int:
    """Write the pictures; 1 when the page is too high."""
    program, missed = require_package("chromium"), 0
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for clients in _CLIENTS if folder is not None else (300,):
            async with busy_gateway(clients) as gateway:
                await asyncio.sleep(_SETTLE_S)
                if folder is None:
                    for name, size, scheme in (
                        ("light", (1_280, 860), "light"),
                        ("phone", (390, 844), "dark"),
                    ):
                        file = DOCS / f"page-{name}.png"
                        found = await page_picture(
                            browser, gateway, file, size, scheme, settle_s=40, whole=False
                        )
                        missed += found > SCREENS * size[1]
                        print(f"{file.name}: {found} px")
                    await top_picture(browser, gateway, DOCS / "top.png", 120)
                    continue
                for size in _SIZES:
                    for scheme in ("light", "dark"):
                        file = folder / f"page-{clients}-{size[0]}-{scheme}.png"
                        found = await page_picture(
                            browser, gateway, file, size, scheme, settle_s=4, whole=True
                        )
                        missed += found > SCREENS * size[1]
                        print(f"{file.name}: {found} px")
                for columns in _COLUMNS:
                    await top_picture(browser, gateway, folder / f"top-{clients}-{columns}.png", columns)
        await browser.close()
    return int(missed > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.status_screens")
    parser.add_argument("--all", metavar="FOLDER", type=Path, help="all sizes, into this folder")
    folder = parser.parse_args(arguments).all
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(main_async(folder))


if __name__ == "__main__":
    sys.exit(main())
