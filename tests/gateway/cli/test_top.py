"""`sluice top`: the columns, the order, the trend and the names of its screen, at each width of a terminal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from gateway.cli.top_rows import COLUMNS, MAX_ROWS, Counters, Snapshot, Trend, columns_of, curve, shown
from gateway.cli.top_screen import ClientTable, TopScreen
from gateway.observability.status import MUTATION_FIELDS, RATE_FIELDS
from testkit.raw_client import until

HOSTILE = ("\x1b]0;title\x07", "\u202egnp.exe", "שלום", "e\u0301" * 40, "<b>[red]", "\U0001f4a3" * 100)


def client(client_id: str, rate: float = 10.0, *, user: str = "", throttled: int = 0, **more: Any) -> dict[str, Any]:
    """A row of a snapshot."""
    return {
        "user": user, "client_id": client_id, **more,
        "produce": ["client", rate, 100.0, rate / 100, throttled, 0, None],
    }  # fmt: skip


def waits(client_id: str, left_ms: int, *, ip: str = "") -> dict[str, Any]:
    """An entry of those that are throttled now."""
    counter = {"user": "", "client_id": client_id}
    return {"ip": ip, "counter": counter, "until_ms": 1_000_000 + left_ms}


def answer(*clients: dict[str, Any], waiting: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    """What the admin port says."""
    gateway = {
        "name": "gw", "version": "1", "started_ms": 0, "not_ready": None, "enforcement": "enforce", "fleet": [],
        "workers": [],
    }  # fmt: skip
    series = {
        "gateway_connections_active": [[{"listener": f"L{at}"}, at] for at in range(9)],
        "gateway_received_bytes_total": [[{"listener": "L0", "side": "client"}, 5_000], [{"side": "upstream"}, 70]],
        "gateway_quota_store_writable": [[{}, 1]],
    }
    return {
        "at_ms": 1_000_000, "members": [gateway], "rate_fields": RATE_FIELDS, "mutation_fields": MUTATION_FIELDS,
        "client_count": len(clients), "waiting": list(waiting), "series": series, "clients": list(clients), **more,
    }  # fmt: skip


@asynccontextmanager
async def screen(columns: int, told: dict[str, Any], url: str = "http://h:1") -> AsyncIterator[Pilot[None]]:
    """Top in a terminal of so many columns."""
    app = TopScreen(url, Snapshot.of(told), interval_s=3_600)
    async with app.run_test(size=(columns, 30)) as pilot:
        await pilot.pause()
        yield pilot


def lines(pilot: Pilot[None]) -> list[str]:
    """The text of the screen."""
    return ["".join(part.text for part in strip) for strip in pilot.app.screen._compositor.render_strips()]


def titles(pilot: Pilot[None]) -> list[str]:
    """Of the columns."""
    return [str(column.label) for column in pilot.app.query_one(ClientTable).ordered_columns]


def test_shares_of_a_capacity_are_lines_of_their_own() -> None:
    idle = {"name": "user=orders", "guaranteed": 5e6, "lent": 5e6, "borrowed": 0, "reclaimed": 0}
    hungry = {"name": HOSTILE[0], "guaranteed": 0, "lent": 0, "borrowed": 12_345_678, "reclaimed": 250}
    produce = {"capacity": 1e8, "guaranteed": 1e6, "lent": 2e6, "waiting": 1, "shares": [idle, hungry]}
    told = Snapshot.of(answer(client("a"), capacity={"produce": produce}))
    assert (
        told.head[-1] == "capacity of produce: 3.00M of 100M B/s used, 1.00M of it guaranteed; 1 client at the limit"
    )
    assert told.members[0] == "share of user=orders, produce B/s: guaranteed 5.00M, lent 5.00M"
    assert told.members[1].endswith("produce B/s: borrowed 12.3M, reclaimed 250")
    assert "\x1b" not in told.members[1]
    assert Snapshot.of(answer(client("a"))).members == ["one gateway, one process"]


def test_brakes_and_slow_brokers_are_in_the_head_and_tiers_and_episodes_behind_the_key() -> None:
    tiers = [
        {"tier": tier, "used": used, "lent": 0, "borrowed": used, "reclaimed": 0, "shed": 0, "brake": brake,
         "overload": left}
        for tier, used, brake, left in ((0, 0, None, 0), (2, 5e6, None, 1e6), (3, 0, 2e6, None))
    ]  # fmt: skip
    produce = {"capacity": 1e8, "guaranteed": 0, "lent": 5e6, "waiting": 0, "shares": [], "tiers": tiers}
    told = answer(client("a"), capacity={"produce": produce})
    told["members"][0]["brakes"] = [{"text": "brake of tier 3, set by \x1b[31mops"}]
    told["overload"] = {
        "text": "brokers are slow",
        "enforced": False,
        "episodes": [{"text": f"tier {at} keeps"} for at in range(9)],
    }
    found = Snapshot.of(told)
    assert found.head[-2:] == ["brake of tier 3, set by \\u001b[31mops", "brokers are slow"]
    assert found.members == [
        "tier 2, produce B/s: used 5.00M, borrowed 5.00M, slow brokers would leave 1.00M",
        "tier 3, produce B/s: brake leaves 2.00M",
        *(f"tier {at} keeps" for at in range(5)),
        "one gateway, one process",
    ]
    told["overload"] = None
    assert Snapshot.of(told).head[-1].startswith("brake of tier 3")


def test_connections_of_users_are_lines_behind_the_key() -> None:
    told = answer(client("a"))
    told["members"][0]["users"] = [
        {"name": f"user={HOSTILE[1]}", "connections": 12, "limit": 20.0, "waiting": 3},
        {"name": "user=b", "connections": 1, "limit": None, "waiting": 0},
    ] * 9
    found = Snapshot.of(told).members
    assert found[0].endswith(": 12 of 20, 3 waiting")
    assert "\u202e" not in found[0]
    assert found[1] == "connections of user=b: 1"
    assert len(found) == 10 + 1


@pytest.mark.parametrize("columns", [80, 120, 200])
@pytest.mark.parametrize("by", [column.name for column in COLUMNS])
def test_columns_fit_the_terminal_and_the_sorted_one_is_among_them(columns: int, by: str) -> None:
    found = columns_of(columns, by)
    assert sum(column.width + 2 for column in found) <= columns - 2
    assert by in [column.name for column in found]
    assert found[0].width >= 24
    if columns == 200:
        assert len(found) == len(COLUMNS)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(("columns", "count"), [(80, 5), (120, 7), (200, 8)])
async def test_each_width_has_its_columns_an_arrow_and_the_keys(columns: int, count: int) -> None:
    told = answer(*(client(f"c{at}", at) for at in range(300)))
    async with screen(columns, told) as pilot:
        keys = ("Why", "s Sort", "r Reverse", "/ Search", "m Members", "q Quit")
        await until(lambda: all(key in lines(pilot)[-1] for key in keys))  # the line of keys comes last
        text = lines(pilot)
        assert len(titles(pilot)) == count
        assert [title for title in titles(pilot) if title[-1] in "▼▲"] == ["THROTTLED ▼"]
        assert max(map(len, text)) <= columns
        assert "and 4 more listeners" in " ".join("".join(text).split())
        assert f"the first {MAX_ROWS} of 300 rows" in "\n".join(text)
        assert pilot.app.query_one(ClientTable).row_count == MAX_ROWS
        await pilot.press("s", "r")
        assert "USED ▲" in titles(pilot)
        await pilot.press(*"sssss")
        assert "MUTATIONS /s ▲" in titles(pilot)
        await pilot.press("s", "r")
        assert "CLIENT ▲" in titles(pilot)


def test_throttled_clients_come_first_then_those_nearest_to_their_limit() -> None:
    found = Snapshot.of(
        answer(client("calm", 10), client("near", 95), client("over", 150), client("silent", 0),
               waiting=(waits("silent", 4_000), waits("over", 9_000), waits("no-row", 500),
                        waits("", 700, ip="10.0.0.9")))
    )  # fmt: skip
    names = [each.name for each in found.rows(by="waits")]
    assert names == [
        "client-id=over", "client-id=silent", "ip=10.0.0.9", "client-id=no-row", "client-id=near", "client-id=calm",
    ]  # fmt: skip
    assert [each.name for each in found.rows(by="waits", wanted="CLIENT-ID=O")] == ["client-id=over"]
    assert found.rows(by="waits", wanted="user") == []


def test_the_other_clients_are_not_taken_for_all_clients() -> None:
    found = Snapshot.of(answer(client("", other=True), client("", user="alice"), client(""), waiting=(waits("", 5),)))
    assert {each.name: each.waits_ms for each in found.clients} == {
        "other clients": 0, "user=alice": 0, "all clients": 5,
    }  # fmt: skip


def test_the_trend_has_rates_and_none_where_counters_begin_anew_or_time_is_missing() -> None:
    trend = Trend()
    for at_ms, started_ms, received in (
        (1_000, 0, 0), (2_000, 0, 1_000), (2_000, 0, 1_000), (4_000, 0, 5_000), (5_000, 0, 10), (6_000, 5_500, 900),
        (90_000, 5_500, 1_000), (91_000, 5_500, 8_000),
    ):  # fmt: skip
        trend.add(Counters(at_ms, started_ms, received, 0, 0))
    assert list(trend._rates[0]) == [1_000, 2_000, None, None, None, 7_000]
    assert trend.line(80).startswith("in 7000B/s  ▂▃   █  out 0B/s")
    assert all(len(trend.line(width)) < width for width in (80, 120, 200))


def test_the_trend_keeps_only_the_last_rates() -> None:
    trend = Trend()
    for at in range(10_000):
        trend.add(Counters(at * 1_000, 0, at * at, at, at))
    assert len(trend._rates[0]) == Trend.KEPT
    assert len(trend.line(200)) < 200


def test_a_curve_is_as_high_as_its_highest_rate() -> None:
    assert curve([0.0, 50.0, None, 100.0]) == "▁▅ █"
    assert curve([]) == ""
    assert curve([0.0, 0.0]) == "▁▁"


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("width", [16, 24, 80])
def test_a_name_has_one_cell_for_each_character_and_the_width_it_may_have(name: str, width: int) -> None:
    text = shown(name, width)
    assert len(text) <= width
    assert not {"\x1b", "\x07", "\u202e", "\u0301", "ש"} & set(text)


def test_of_a_long_name_beginning_and_end_are_shown() -> None:
    assert shown("user=payments,client-id=consumer-0012", 24) == "user=paymen…onsumer-0012"


@pytest.mark.asyncio
async def test_hostile_names_stay_in_their_cells() -> None:
    told = answer(*(client(name, at) for at, name in enumerate((*HOSTILE, "x" * 32_000))))
    async with screen(80, json.loads(json.dumps(told))) as pilot:
        text = lines(pilot)
        assert max(map(len, text)) <= 80
        assert not {"\x1b", "\x07", "\u202e", "\u0301", "ש"} & set("".join(text))
        assert "<b>[red]" in "\n".join(text)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_ten_thousand_clients_that_change_with_each_answer_keep_the_screen_as_it_is() -> None:
    async with screen(120, answer()) as pilot:
        app = pilot.app
        assert isinstance(app, TopScreen)
        for turn in range(3):
            told = answer(*(client(f"{turn}-{at}", at % 90) for at in range(10_000)), client_count=50_000)
            app._snapshot = Snapshot.of(told)
            app._draw()
            await pilot.pause()
            table = app.query_one(ClientTable)
            assert (table.row_count, len(table.columns)) == (MAX_ROWS, 7)
        assert "these are the busiest clients" in "\n".join(lines(pilot))


@pytest.mark.asyncio
async def test_the_first_row_is_the_first_client_until_the_cursor_is_moved() -> None:
    async with screen(120, answer(client("a", 20), client("b", 10))) as pilot:
        app = pilot.app
        assert isinstance(app, TopScreen)
        table = app.query_one(ClientTable)
        app._snapshot = Snapshot.of(answer(client("a", 5), client("b", 10)))
        app._draw()
        assert (table.cursor_row, app._rows[0].client_id) == (0, "b")
        await pilot.press("down")
        app._snapshot = Snapshot.of(answer(client("c", 50), client("a", 5), client("b", 10)))
        app._draw()
        assert app._rows[table.cursor_row].client_id == "a"


@pytest.mark.asyncio
async def test_top_names_the_cluster_that_it_shows() -> None:
    async with screen(80, answer(client("a")), "http://h:1/clusters/orders") as pilot:
        assert lines(pilot)[0].startswith("cluster orders  gw  ready  quotas enforced")
