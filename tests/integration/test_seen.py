"""What a real browser and a real terminal show of a gateway is what /metrics says, and names do nothing there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect
from prometheus_client.parser import text_string_to_metric_families

from gateway.cli.top_rows import number
from gateway.observability.status import MUTATION_FIELDS, RATE_FIELDS
from quotas.entities import client_name
from testkit.gateway import RunningGateway, broker_and_gateway, running_gateway
from testkit.packages import require_package
from testkit.secrets import CANARY
from tests.attacks.test_status import HOSTILE, QUOTAS, url, use

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TMUX = f"sluice-test-{os.getpid()}"
WITHIN_MS = 60_000  # only a hang reaches it


@asynccontextmanager
async def standing_still(clients: int = 0) -> AsyncIterator[RunningGateway]:
    """A gateway whose counters are looked at as of one moment, so that two looks say the same."""
    async with broker_and_gateway(quotas=QUOTAS) as (_, running):
        now_ms = running.gateway._now_ms()
        running.gateway._quota_metrics._now_ms = lambda: now_ms + 1_000
        for at, name in enumerate((*HOSTILE, "zero", *(f"client-{at}" for at in range(clients)))):
            use(running, name, size=0 if name == "zero" else 900 * (at + 12))
        yield running


async def scraped(running: RunningGateway, name: str) -> dict[str, float]:
    """A series by client id."""
    async with aiohttp.ClientSession() as session, session.get(url(running, "/metrics")) as answer:
        text = await answer.text()
    return {
        sample.labels["client_id"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels["rule"] != "other"
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Chromium, started once: its start and that of its driver take two seconds of CPU."""
    program = require_package("chromium")
    async with async_playwright() as playwright:
        # Without a sandbox, since tests may run as root; what is shown is ours.
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(browser: Browser, running: RunningGateway) -> AsyncIterator[tuple[Page, list[str]]]:
    """The page in a context of its own, and what went wrong in it."""
    async with await browser.new_context() as context:
        page = await context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        await page.goto(url(running, "/"))
        await page.wait_for_selector("#clients tr")
        yield page, faults
        assert [each for each in requests if not each.startswith(url(running, "/"))] == []


async def test_page_and_its_stream_take_a_token_as_the_password_of_the_browser(browser: Browser) -> None:
    token = f"{CANARY}for-a-browser-0123456789"
    key = {"name": "k", "roles": ["read"], "token": token}
    async with (
        running_gateway(9, admin={"keys": [key]}) as running,
        await browser.new_context(http_credentials={"username": "anybody", "password": token}) as context,
    ):
        page = await context.new_page()
        await page.goto(url(running, "/"))
        # Written by the first snapshot of the stream.
        await expect(page.locator("#ready")).to_have_text(re.compile("^not ready"), timeout=WITHIN_MS)


_ROWS = """rows => Object.fromEntries(rows.map(row => [row.dataset.clientId,
    [...row.querySelectorAll("td")].map(cell => cell.dataset.value)]))"""


async def test_the_page_shows_what_metrics_say_and_names_as_text(browser: Browser) -> None:
    async with standing_still() as running, opened(browser, running) as (page, faults):
        rows = await page.eval_on_selector_all("#clients tr", _ROWS)
        rates = await scraped(running, "gateway_produce_byte_rate")
        used = await scraped(running, "gateway_produce_utilisation_ratio")
        throttled = await scraped(running, "gateway_produce_throttled_requests_total")
        assert len(rates) == len(HOSTILE) + 1
        assert {name: float(cells[2]) for name, cells in rows.items()} == rates
        assert {name: float(cells[1]) for name, cells in rows.items()} == pytest.approx(used)
        assert {name: float(cells[6]) for name, cells in rows.items()} == throttled
        shown = await page.inner_text("#clients")
        assert HOSTILE[0] in shown
        assert HOSTILE[1] in shown
        assert 'client-id="\\u001b]0;title' in shown
        assert 'client-id="\\u202egnp.exe' in shown
        assert await page.locator("#clients img, #clients script").count() == 0
        # The keyboard alone: filter, explain, back.
        await page.fill("#filter", "img src")
        await expect(page.locator("#clients tr")).to_have_count(1, timeout=WITHIN_MS)
        await page.focus("#clients .why")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#why ol li")
        told = await page.inner_text("#dialog")
        assert "level default_client: client-id=<default>, 1000 B/s" in told
        assert HOSTILE[0] in told
        await page.keyboard.press("Escape")
        assert not await page.is_visible("#dialog")
        # News come by themselves.
        await page.fill("#filter", "")
        use(running, "newcomer")
        await page.wait_for_selector('#clients tr[data-client-id="newcomer"]')
        assert faults == []


async def test_the_page_takes_the_unknown_in_its_order_and_a_thousand_clients(browser: Browser) -> None:
    async with standing_still(clients=240) as running, opened(browser, running) as (page, faults):
        assert await page.locator("#clients tr").count() == 25
        await page.click("#more")
        assert await page.locator("#clients tr").count() == 100
        await page.select_option("#rows", "1000")
        assert await page.locator("#clients tr").count() > 200
        await page.click("#columns button >> text=Client")
        assert await page.get_attribute("#columns th >> nth=0", "aria-sort") == "ascending"
        # Without labels and roles a table of numbers is nothing to a screen reader.
        headings = await page.locator("th[scope=col]").count()
        assert headings == await page.locator("thead th").count()
        assert await page.get_by_label("Search").count() == 1
        assert await page.get_by_role("row").count() > 200
        assert faults == []


def snapshot_with(names: Sequence[str], throttled: int, *, at_ms: int = 1_800_000_000_000) -> dict[str, Any]:
    """A snapshot of these clients, of which the first are throttled."""
    clients = [
        {
            "name": client_name("alice", name), "user": "alice", "client_id": name,
            "produce": ["user_client", 900.0, 1_000.0, 0.9, 3, 0, None],
        }
        for name in names
    ]  # fmt: skip
    waiting = [
        {
            "name": each["name"], "ip": "", "by": "produce", "until_ms": at_ms + 5_000,
            "counter": {"name": each["name"], "user": "alice", "client_id": each["client_id"]},
        }
        for each in clients[:throttled]
    ]  # fmt: skip
    gateway = {
        "name": "gw", "version": "1", "started_ms": 1, "not_ready": None, "enforcement": "enforce",
        "fleet": [], "workers": [],
    }  # fmt: skip
    received = [[{"listener": "L", "side": "client"}, at_ms * 50], [{"listener": "L", "side": "upstream"}, 0]]
    return {
        "at_ms": at_ms, "members": [gateway], "rate_fields": RATE_FIELDS, "mutation_fields": MUTATION_FIELDS,
        "client_count": len(clients), "waiting": waiting, "clients": clients,
        "series": {"gateway_connections_active": [[{"listener": "L"}, 9]], "gateway_received_bytes_total": received},
    }  # fmt: skip


@asynccontextmanager
async def page_of(
    browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> AsyncIterator[tuple[Page, list[str]]]:
    """The page without snapshots, and what went wrong in it."""
    async with (
        running_gateway(9) as running,
        await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as context,
    ):
        page = await context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        await page.route(re.compile("/(events|status.json)$"), lambda route: route.abort())
        await page.goto(url(running, "/"))
        yield page, faults


SHOW = "text => { take(text); render(); return document.documentElement.scrollHeight; }"


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (900, "light"), (1_440, "dark")])
async def test_the_page_of_any_number_of_clients_has_at_most_two_screens(
    browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    async with page_of(browser, width, scheme) as (page, faults):
        for clients in (3, 300, 10_000):
            names = [f"client-of-some-application-{at}" for at in range(clients)]
            height = await page.evaluate(SHOW, json.dumps(snapshot_with(names, clients // 10)))
            assert height <= 1_800, clients
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert faults == []


@pytest.mark.parametrize("width", [390, 900, 1_440])
async def test_names_that_attack_and_change_every_second_leave_the_page_as_high_as_it_was(
    browser: Browser, width: int
) -> None:
    async with page_of(browser, width, "light") as (page, faults):
        nodes = []
        for turn in range(4):
            hostile = [f"{name}{turn}" for name in HOSTILE] + [f"{turn}-{at}{'x' * 32_000}" for at in range(20)]
            names = [*hostile, *(f"{turn}-{at}" for at in range(2_000))]
            told = snapshot_with(names, 100, at_ms=1_800_000_000_000 + 1_000 * turn)
            assert await page.evaluate(SHOW, json.dumps(told)) <= 1_800
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            nodes.append(await page.evaluate("document.querySelectorAll('*').length"))
        assert len(set(nodes)) == 1
        assert await page.locator("#clients img, #clients script, #clients b").count() == 0
        assert faults == []


async def test_throughput_has_a_rate_and_a_line_from_the_second_snapshot_on_and_none_over_a_restart(
    browser: Browser,
) -> None:
    async with page_of(browser, 1_440, "light") as (page, faults):
        told = snapshot_with(["a"], 0)
        rate, line = page.locator("#trend-in strong"), page.locator("#trend-in .line")
        await page.evaluate(SHOW, json.dumps(told))
        assert (await rate.inner_text(), await line.get_attribute("d")) == ("-", "")
        for seconds in range(1, 400):
            await page.evaluate(SHOW, json.dumps(snapshot_with(["a"], 0, at_ms=told["at_ms"] + 1_000 * seconds)))
        assert await rate.inner_text() == "50.0 kB/s"
        assert len((await line.get_attribute("d") or "").split("L")) == 301
        again = snapshot_with(["a"], 0, at_ms=told["at_ms"] + 401_000)
        await page.evaluate(SHOW, json.dumps(again))
        assert await rate.inner_text() == "50.0 kB/s"
        again = snapshot_with(["a"], 0, at_ms=told["at_ms"] + 402_000)
        again["members"][0]["started_ms"] += 1
        await page.evaluate(SHOW, json.dumps(again))
        assert await rate.inner_text() == "-"
        assert faults == []


async def test_a_throttled_client_or_address_without_a_row_gets_one_at_the_top(browser: Browser) -> None:
    async with page_of(browser, 1_440, "light") as (page, faults):
        told = snapshot_with(["busy"], 0)
        late = told["at_ms"] + 2_000
        told["waiting"] = [
            {
                "name": "", "ip": "", "by": "fetch", "until_ms": late + 1,
                "counter": {"name": "user=bob", "user": "bob", "client_id": ""},
            },
            {"name": "ip=10.0.0.9", "ip": "10.0.0.9", "by": "connection", "until_ms": late, "counter": {}},
        ]  # fmt: skip
        await page.evaluate(SHOW, json.dumps(told))
        assert await page.locator("#clients bdi").all_inner_texts() == [
            "user=bob", "ip=10.0.0.9", "user=alice,client-id=busy",
        ]  # fmt: skip
        await expect(page.locator("#facts dd >> nth=0")).to_have_text("2 clients")
        assert faults == []


async def test_shares_of_a_capacity_have_a_table_and_without_one_there_is_none(browser: Browser) -> None:
    async with page_of(browser, 1_440, "light") as (page, faults):
        told = snapshot_with(["app"], 0)
        box = page.locator("#capacity-box")
        await page.evaluate(SHOW, json.dumps(told))
        await expect(box).to_be_hidden()
        shares = [
            {"name": "user=orders", "guaranteed": 5e6, "lent": 5e6, "borrowed": 0, "reclaimed": 0},
            {"name": HOSTILE[1], "guaranteed": 0, "lent": 0, "borrowed": 2e6, "reclaimed": 250},
        ]
        told["capacity"] = {
            "produce": {"capacity": 1e8, "guaranteed": 0, "lent": 2e6, "waiting": 1, "shares": shares}
        }
        await page.evaluate(SHOW, json.dumps(told))
        await expect(box).to_be_visible()
        rows = [await row.locator("td").all_inner_texts() for row in await page.locator("#shares tr").all()]
        assert rows == [
            ["Produce", "0 B/s", "", "2.00 MB/s", ""],
            ["Produce", "5.00 MB/s", "5.00 MB/s", "0 B/s", "0 B/s"],
            ["Produce", "0 B/s", "0 B/s", "2.00 MB/s", "250 B/s"],
        ]
        assert await page.locator("#shares bdi >> nth=1").inner_text() == "user=orders"
        assert faults == []


async def test_brokers_members_and_workers_have_rows_of_their_own(browser: Browser) -> None:
    async with page_of(browser, 1_440, "light") as (page, faults):
        told = snapshot_with(["app", "app"], 0)
        told["clients"][0]["broker"], told["clients"][1]["broker"] = "1", "2"
        told["members"][0]["fleet"] = [
            {"member": "gw-1", "this": True, "isolated": True, "lag_s": 0.25, "age_s": 0, "used": {"produce": 30}},
            {
                "member": HOSTILE[1],
                "this": False,
                "isolated": None,
                "age_s": 1,
                "lag_s": None,
                "used": {"produce": 10},
            },
        ]
        told["members"][0]["workers"] = [{"worker": 1, "connections": 7, "muted": 2, "throttled": 12_345}]
        await page.evaluate(SHOW, json.dumps(told))
        assert sorted(await page.locator("#clients th").all_inner_texts()) == [
            "user=alice,client-id=app broker 1", "user=alice,client-id=app broker 2",
        ]  # fmt: skip
        await page.click("#members-box summary")
        rows = [row.split("\t") for row in await page.locator("#fleet tr, #workers tr").all_inner_texts()]
        assert rows == [
            ["gw-1", "this gateway, isolated", "round trip 0.25 s", "produce 75 %"],
            [HOSTILE[1], "a member", "1.0 s ago", "produce 25 %"],
            ["worker 1", "7", "2", "12.3 k"],
        ]
        assert faults == []


async def test_the_page_of_a_cluster_names_it_and_asks_for_what_is_its(browser: Browser) -> None:
    async with page_of(browser, 1_440, "light") as (page, faults):
        below = page.url + "clusters/orders/"
        text = (resources.files("gateway.server") / "status_page.html").read_text()
        await page.route(below, lambda route: route.fulfill(body=text, content_type="text/html"))
        async with page.expect_request(below + "events"):
            await page.goto(below)
        assert await page.inner_text("#cluster") == "cluster orders, all clusters"
        assert await page.title() == "Sluice orders"
        assert await page.get_attribute("#cluster a", "href") == "../../"
        assert faults == []


async def tmux(*command: str) -> str:
    """Run it in the test's own server; its output."""
    # Not by uvloop: it leaves a second end of the pipe open in the child, and the server, which stays, would hold it.
    done = await asyncio.to_thread(
        subprocess.run,
        ["tmux", "-L", TMUX, "-f", "/dev/null", *command],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


async def screen_with(text: str, *, without: str | None = None, seconds: float = 60) -> str:
    """The terminal's text, once this is in it and the other is not."""
    for _ in range(int(seconds * 5)):
        shown = await tmux("capture-pane", "-p")
        if text in shown and (without is None or without not in shown):
            return shown
        await asyncio.sleep(0.2)
    raise AssertionError(f"{text!r} without {without!r} is not in:\n{shown}")


async def test_top_shows_in_a_terminal_what_metrics_say() -> None:
    require_package("tmux")
    program = Path(sys.executable).with_name("sluice")
    async with standing_still() as running:
        # The width of the terminal and not of the one that the tests were started in.
        command = f"env -u COLUMNS -u LINES {shlex.quote(str(program))} top --admin {url(running, '')}"
        await tmux("new-session", "-d", "-x", "160", "-y", "40", command)
        try:
            shown = await screen_with("zero")
            rates = await scraped(running, "gateway_produce_byte_rate")
            throttled = await scraped(running, "gateway_produce_throttled_requests_total")
            rows = [line for line in shown.splitlines() if " / 1000" in line]
            told = sorted((rate, count) for line in rows for rate, count in re.findall(r"(\S+) / 1000 +(\d+)", line))
            assert told == sorted((number(rates[name]), number(throttled[name])) for name in rates)
            assert "client-id=<img src=x onerror=alert(1)>" in shown
            assert 'client-id="\\u202egnp.exe' in shown
            assert 'client-id="\\u001b]0;title' in shown
            assert not {"\x1b", "\u202e", "ש"} & set(shown)
            assert (await tmux("display-message", "-p", "#{pane_title}")).strip() != "title"
            await tmux("send-keys", "/")
            # The footer names the keys of what has the focus: in the filter letters are no commands.
            await screen_with("part of a user or client id", without="Sort")
            await tmux("send-keys", "-l", "img")
            await screen_with("1 row, search: img")
            await tmux("send-keys", "Enter")
            await screen_with("Sort")
            await tmux("send-keys", "Enter")
            why = await screen_with("client-id=<default> 1000 B/s")
            assert re.search(r"  throttled for \d+ ms", why)
            await tmux("send-keys", "q")
            await screen_with("Sort", without="client-id=<default> 1000 B/s")
            await tmux("send-keys", "m")
            await screen_with("one gateway, one process")
        finally:
            await tmux("kill-server")
