"""`sluice why` finds a throttle of a running gateway by client, time and address; names come out harmless."""

from __future__ import annotations

import argparse
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.cli import why
from gateway.cli.why import _duration, _moment, _nearest, entry_lines, text_of
from gateway.observability.quota_metrics import label_value
from gateway.observability.throttle_journal import JournalClient, Reading
from quotas.combine import ThrottledBy
from quotas.resolution import Match, Rule, TrackerKey
from testkit.admin_commands import sluice
from testkit.frames import create_topics
from testkit.gateway import RunningGateway, broker_and_gateway
from tests.gateway.cli.conftest import Run

NOW_S = datetime(2026, 11, 22, 18, 30, tzinfo=UTC).timestamp()
NAME = "<b>app\x1b[31m\u202e" + "\U0001f4a3" * 240


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("5m", "2026-11-22T18:25:00"),
        ("18:03", "2026-11-22T18:03:00"),
        ("18:31:07", "2026-11-21T18:31:07"),
        ("2026-11-20T10:00:00", "2026-11-20T10:00:00"),
        ("2026-11-20T10:00:00+02:00", "2026-11-20T08:00:00"),
    ],
)
def test_a_time_is_of_the_last_day_in_utc_or_so_long_ago(text: str, when: str) -> None:
    assert datetime.fromtimestamp(_moment(text, NOW_S) / 1000, UTC).isoformat()[:19] == when


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "-5m", "5", "18:3"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a time such as .*18:03, or 5m"):
        _moment(text, NOW_S)


@pytest.mark.parametrize(
    ("count", "outcome", "told_ms", "line"),
    [(1, "held", 900, "1 connection throttled, for at most 900 ms"), (2, "refused", 0, "2 connections refused")],
)
def test_connections_of_an_address_are_counted_by_what_happened_to_them(
    count: int, outcome: str, told_ms: int, line: str
) -> None:
    measured = {"tokens": None, "rate": 3.0, "window_ms": None, "blocked_ms": 0}
    entry = {
        "first_ms": 0, "last_ms": 0, "count": count, "told_ms": told_ms, "total_ms": told_ms, "by": "connection",
        "api": outcome, "rule": "none", "entity": "ip=10.0.0.1", "limit": 1.0, "ip": "10.0.0.1", "measured": measured,
    }  # fmt: skip
    assert entry_lines(entry)[0] == f"1970-01-01 00:00:00  {line}"


@pytest.mark.parametrize(
    ("rule", "entity", "counter", "line"),
    [
        ("group", "group=team", ("", ""), "group=team, all its members together"),
        ("topic", "topic=t", ("", ""), "all clients"),
        ("user", "user=alice", ("alice", ""), "user=alice"),
    ],
)
def test_a_throttle_names_whose_use_was_counted(rule: str, entity: str, counter: tuple[str, str], line: str) -> None:
    measured = {"tokens": None, "rate": 3.0, "window_ms": None, "blocked_ms": 0}
    entry = {
        "first_ms": 0, "last_ms": 0, "count": 1, "told_ms": 5, "total_ms": 5, "by": "produce", "api": "produce",
        "rule": rule, "entity": entity, "limit": 1.0, "ip": "", "user": "alice", "client_id": "c", "shared": False,
        "counter": dict(zip(("user", "client_id"), counter, strict=True)), "measured": measured,
    }  # fmt: skip
    (found,) = [each for each in entry_lines(entry) if each.strip().startswith("counted by")]
    assert found.split("counted by")[1].strip() == line


def test_the_status_page_has_the_same_units() -> None:
    page = (Path(why.__file__).parents[1] / "server/status_page.html").read_text(encoding="utf-8")
    (units,) = re.findall(r"const UNITS = (\{.*?\});", page, re.DOTALL)
    assert dict(re.findall(r'(\w+): "([^"]+)"', units)) == why._UNITS
    assert 'UNITS[each.by] || "requests/s"' in page  # the rates of APIs, which have names of their own


@pytest.mark.parametrize(
    ("tokens", "rate", "line"),
    [(-15_778.12, None, "-15778.1 bytes in the bucket"), (None, 1_100_443.2, "1100440 B/s")],
)
def test_large_numbers_have_no_exponent(tokens: float | None, rate: float | None, line: str) -> None:
    entry = {
        "first_ms": 0, "last_ms": 0, "count": 1, "told_ms": 5, "total_ms": 5, "by": "produce", "api": "produce",
        "rule": "client", "entity": "client-id=c", "limit": 5_775_203.4, "ip": "", "user": "", "client_id": "c",
        "shared": False, "counter": {"user": "", "client_id": "c"},
        "lent": {"guarantee": 2e6, "ceiling": 1e7, "weight": 3.0, "tier": 2},
        "measured": {"tokens": tokens, "rate": rate, "window_ms": None, "blocked_ms": 0},
    }  # fmt: skip
    lines = [each.strip() for each in entry_lines(entry)]
    assert f"measured    {line}" in lines
    assert "rule        produce quota, level client: client-id=c 5775200 B/s" in lines


@pytest.mark.parametrize(
    ("by", "api", "told_ms", "measured", "lines"),
    [
        ("connection", "held", 900, -0.5, [
            "3 connections throttled, for at most 900 ms", "client    user=alice",
            "rule      connection quota, level user: user=alice 10 connections/s",
            "measured  -0.5 tokens in the bucket",
        ]),
        ("connection_count", "refused", 0, None, [
            "3 connections refused", "client    user=alice",
            "rule      connection_count quota, level user: user=alice 10 connections", "measured  -",
        ]),
    ],
)  # fmt: skip
def test_connections_of_a_user_say_what_became_of_them(
    by: str, api: str, told_ms: int, measured: float | None, lines: list[str]
) -> None:
    entry = {
        "first_ms": 0, "last_ms": 0, "count": 3, "told_ms": told_ms, "total_ms": told_ms, "by": by, "api": api,
        "rule": "user", "entity": "user=alice", "limit": 10.0, "ip": "", "user": "alice", "client_id": "",
        "shared": False, "counter": {"user": "alice", "client_id": ""},
        "measured": {"tokens": measured, "rate": None, "window_ms": None, "blocked_ms": 0},
    }  # fmt: skip
    assert [line.strip() for line in entry_lines(entry)] == [f"1970-01-01 00:00:00  {lines[0]}", *lines[1:]]


@pytest.mark.parametrize(
    ("at_ms", "shown", "away_ms", "text"),
    [
        (0, [10_000], 10_000, "later"), (10_000, [10_000], 0, ""), (12_000, [10_000], 0, ""),
        (20_000, [10_000], -7_000, "earlier"), (95_000, [100_000], 5_000, "later"),
    ],
)  # fmt: skip
def test_a_throttle_of_another_time_comes_with_its_distance(
    at_ms: int, shown: list[int], away_ms: int, text: str
) -> None:
    entries = [{"first_ms": at, "last_ms": at + 1_000, "until_ms": at + 3_000} for at in (10_000, 100_000)]
    found, away = _nearest(entries, at_ms)
    assert ([entry["first_ms"] for entry in found], away) == (shown, away_ms)
    asked = {"at_ms": at_ms, "away_ms": away}
    said = text_of(
        {"ip": "", "user": "u", "client_id": "c", "throttles": [], "quotas": [], "since_ms": 0, "forgotten": 0}
        | {"asked": asked}
    )
    seconds = abs(away_ms) // 1000
    line = f"\nnot throttled at 1970-01-01 00:0{at_ms // 60_000}:{at_ms // 1000 % 60:02}; the nearest throttle was "
    assert (line + f"{seconds} s {text}:\n" in said) is bool(away_ms)


def test_nothing_is_near_where_there_is_no_throttle() -> None:
    assert _nearest([], 5) == ([], 0)


@pytest.mark.parametrize(
    ("ms", "text"), [(1, "1 s"), (119_000, "119 s"), (150_000, "2.5 min"), (3 * 3_600_000, "3 h")]
)
def test_distances_are_in_one_unit(ms: int, text: str) -> None:
    assert _duration(ms) == text


def test_a_client_or_an_address_has_to_be_named(run: Run) -> None:
    code, out, err = run("why")
    assert (code, out) == (2, "")
    assert all(option in err for option in ("--client-id", "--user", "--ip"))


def _throttle(running: RunningGateway, user: str, client_id: str, ms: int, *, at_ms: int) -> None:
    match = Match(1000.0, Rule.USER, TrackerKey(user, ""))
    journal = running.gateway.journal
    journal._wall_ms = lambda: at_ms
    client = JournalClient(user, client_id)
    journal.throttled(client, user, ThrottledBy.PRODUCE, "produce", match, ms, lambda: Reading(rate=2000.0), now_ms=0)


@pytest.mark.asyncio
async def test_without_a_user_all_users_are_searched_and_the_longest_wait_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with broker_and_gateway(quotas=[{"user": "alice", "producer_byte_rate": 1000}]) as (_, running):
        code, out, _ = await sluice(running, capfd, "why", "--client-id", "app")
        assert (code, "no throttle is recorded" in out) == (0, True)
        assert "quotas of client user=ANONYMOUS,client-id=app" in out
        _throttle(running, "bob", "app", 4700, at_ms=0)
        _throttle(running, "alice", "app", 20, at_ms=60_000)
        _throttle(running, "alice", "else", 30, at_ms=70_000)
        code, out, _ = await sluice(running, capfd, "why", "--client-id", "app", "--limit", "1")
        head, entry, longest, quotas = out.split("\n\n")
        assert (code, head) == (0, "clients with client-id=app, of all users")
        assert "throttled for 20 ms" in entry
        assert "client      user=alice,client-id=app" in entry
        assert longest == "longest wait in the journal: 4700 ms, at 1970-01-01 00:00:00, of user=bob,client-id=app"
        assert quotas.startswith("quotas of client user=alice,client-id=app\nNOW")
        assert "producer_byte_rate        1000   user   user=alice" in quotas
        code, out, _ = await sluice(running, capfd, "why", "--user", "alice")
        assert out.startswith("clients with user=alice, of all client ids\n")
        assert ("client-id=app" in out, "client-id=else" in out, "longest wait" in out) == (True, True, False)


@pytest.mark.asyncio
async def test_in_observe_mode_the_answer_says_that_nothing_is_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    async with broker_and_gateway() as (_, running):
        await sluice(running, capfd, "enforcement", "observe")
        _, out, _ = await sluice(running, capfd, "why", "--client-id", "app")
        assert "would_throttle_total" in out


@pytest.mark.asyncio
async def test_a_throttled_client_is_explained(capfd: pytest.CaptureFixture[str]) -> None:
    quotas = [
        {"client_id": NAME, "controller_mutation_rate": 3.0},
        {"ip": "127.0.0.1", "connection_creation_rate": 1},
    ]
    async with broker_and_gateway(quotas=quotas) as (_, running):
        async with await running.connect() as client:
            await client.send(create_topics(1, ("t", 100), version=4, client_id=NAME))
            await client.receive_frame()
            for _ in range(12):
                (await running.connect()).close()
        code, out, _ = await sluice(running, capfd, "why", "--client-id", NAME, "--at", "0s")
        assert code == 0
        assert "request     create_topics" in out
        assert f"client-id={json.dumps(label_value(NAME))} 3 partitions/s" in out
        assert "level client:" in out
        assert "tokens in the bucket" in out
        assert out.isascii()
        code, out, _ = await sluice(running, capfd, "why", "--user", "nobody")
        assert (code, "no throttle is recorded" in out) == (0, True)
        assert "whether the name is right: sluice top lists the clients" in out
        for address in ("127.0.0.1", "127.1", "[::FFFF:7f00:1]"):
            code, out, _ = await sluice(running, capfd, "why", "--ip", address)
            assert code == 0
            assert "ip=127.0.0.1 1 connections/s" in out
        assert (await sluice(running, capfd, "why", "--ip", "nowhere"))[0] == 1
