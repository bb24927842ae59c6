"""`sluice usage`: what an operator reads, from files alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.usage.line import Line
from gateway.usage.part_file import PartFile
from quotas.usage_record import OTHER, VERSION
from tests.gateway.cli.conftest import Run

START = 1_700_000_000


def row(client_id: str, api: str = "produce", **fields: Any) -> list[Any]:
    """A row of user alice."""
    values: dict[str, Any] = {
        "requests": 1, "bytes_in": 0, "bytes_out": 0, "offered": 0.0, "admitted": 0.0, "max_units": 0.0,
        "rejected": 0, "rejected_units": 0, "delayed": 0, "throttle_ms": 0, "muted_ms": 0, "quota": None,
        "level_end": None, "flags": 0,
    }  # fmt: skip
    user = "" if client_id == OTHER else "alice"
    return ["in", user, client_id, api, 1, *{**values, **fields}.values()]


def write(
    directory: Path,
    *seconds: list[list[Any]],
    numbers: Sequence[int] = range(9),
    folded: int = 0,
    gateway: str = "gw-1",
    topics: list[list[Any]] | None = None,
    scope: str | None = None,
) -> Path:
    part = PartFile(directory, gateway, 1, 0)
    for at, rows in zip(numbers, seconds):
        text = {
            "v": VERSION, "gw": gateway, "boot": 1, "seq": at, "ts": START + at, "dur_ms": 1_000,
            "algo": "token_bucket", "rows": rows, "events": [], "dropped_rows": folded, "dropped_events": 0,
        }  # fmt: skip
        if scope is not None:
            text["scope"] = scope
        if topics is not None:
            text["topics"] = topics
        part.append(Line(at, json.dumps(text).encode(), len(rows), 0))
    part.publish()
    return directory


def clients(run: Run, directory: Path) -> list[dict[str, Any]]:
    code, out, _ = run("usage", directory, "--json")
    told = json.loads(out)
    assert (code, told["missing_lines"]) == (0, 0)
    return list(told["clients"])


def test_the_table_shows_who_used_how_much_and_who_waited(tmp_path: Path, run: Run) -> None:
    waited = {"requests": 4, "delayed": 1, "throttle_ms": 500, "muted_ms": 250, "flags": 1}
    second = [
        row("big", offered=9_000, quota=10_000.0, **waited), row("small", offered=50),
        row("reader", "fetch", offered=400), row("", "mutation", offered=3, rejected=1, quota=2.0),
    ]  # fmt: skip
    code, out, _ = run("usage", write(tmp_path, second, second))
    assert code == 0
    assert out.splitlines() == [
        "2 s until 2023-11-14 22:13:22 UTC, gateway gw-1",
        "",
        "PRODUCE                     RATE B/s  PEAK  QUOTA  USED  THROTTLED  THROTTLE TIME  PAUSED",
        "user=alice,client-id=big    9000      9000  10000  90%   25.0%      1.0 s          25%     "
        "close to its limit",
        "user=alice,client-id=small  50        50    -      -     0.0%       -              -",
        "",
        "FETCH                        RATE B/s  PEAK  QUOTA  USED  THROTTLED  THROTTLE TIME  PAUSED",
        "user=alice,client-id=reader  400       400   -      -     0.0%       -              -",
        "",
        "MUTATION    RATE /s  PEAK  QUOTA  USED  THROTTLED  THROTTLE TIME  PAUSED",
        "user=alice  3        3     2      150%  0.0%       -              -       2 refused",
    ]


def test_connections_are_shown_by_address(tmp_path: Path, run: Run) -> None:
    _, out, _ = run("usage", write(tmp_path, [row("10.0.0.1", "connect", offered=3)]))
    assert out.splitlines()[2].startswith("CONNECT ")


def test_brokers_and_ways_in_are_added_up(tmp_path: Path, run: Run) -> None:
    one, other = row("app", offered=100), row("app", offered=50)
    other[0], other[4] = "outside", 2
    (told,) = clients(run, write(tmp_path, [one, other]))
    assert (told["client_id"], told["rate"], told["peak"]) == ("app", 150, 150)


def test_each_gateway_has_a_limit_of_its_own_to_come_close_to(tmp_path: Path, run: Run) -> None:
    write(tmp_path, [row("app", offered=60, quota=100.0)])
    write(tmp_path, [row("app", offered=50, quota=100.0)], gateway="gw-2")
    (told,) = clients(run, tmp_path)
    assert (told["rate"], told["used"]) == (110, pytest.approx(0.6))


def test_gateways_of_a_fleet_come_close_to_one_limit_together(tmp_path: Path, run: Run) -> None:
    rows = [row("app", offered=60, quota=100.0), row("10.0.0.1", "connect", offered=60, quota=100.0)]
    for gateway, fleet in (("gw-1", "one"), ("gw-2", "one"), ("gw-3", "two")):
        write(tmp_path, rows, gateway=gateway, scope=f"fleet:{fleet}")
    used = {told["api"]: told["used"] for told in clients(run, tmp_path)}
    assert used == {"produce": pytest.approx(1.2), "connect": pytest.approx(0.6)}


def test_each_broker_has_a_limit_of_its_own_where_each_counts_by_itself(tmp_path: Path, run: Run) -> None:
    one, other = row("app", offered=60, quota=100.0), row("app", offered=50, quota=100.0)
    other[4] = 2
    (told,) = clients(run, write(tmp_path, [one, other], scope="broker"))
    assert (told["rate"], told["used"]) == (110, pytest.approx(0.6))


def test_request_time_is_compared_in_percent_of_a_core(tmp_path: Path, run: Run) -> None:
    (told,) = clients(run, write(tmp_path, [row("app", "request", offered=50.0, quota=10.0)]))
    assert told["used"] == pytest.approx(0.5)


def test_only_the_busiest_are_shown(tmp_path: Path, run: Run) -> None:
    second = [row(f"app-{at}", offered=at) for at in range(5)]
    code, out, _ = run("usage", write(tmp_path, second), "--top", "2", "--api", "produce")
    assert (code, out.splitlines()[-1]) == (0, "and 3 more")
    assert "app-4" in out
    assert "app-2" not in out


def test_what_is_missing_is_told(tmp_path: Path, run: Run) -> None:
    write(tmp_path, [row(OTHER, offered=1)], [], numbers=[0, 4], folded=7)
    (tmp_path / "usage-foreign-1-0.jsonl.gz").write_bytes(b"something else")
    code, out, _ = run("usage", tmp_path)
    assert code == 0
    assert out.splitlines()[1:4] == [
        "3 lines missing: dropped, lost, or not in a file yet",
        "some seconds had more clients than rows: 14 rows added to other clients",
        "0 lines skipped that are not usage records, in usage-foreign-1-0.jsonl.gz",
    ]


def test_hostile_names_can_not_write_to_the_terminal(tmp_path: Path, run: Run) -> None:
    _, out, _ = run("usage", write(tmp_path, [row("\x1b[31mred\nline", offered=1)]))
    assert "\x1b" not in out
    assert len(out.splitlines()) == 4


def test_directory_of_the_configuration_is_the_default_and_must_be_there(
    tmp_path: Path, file: Path, run: Run
) -> None:
    directory = tmp_path / "usage"
    file.write_text(
        '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'
        f'[usage]\nkind = "files"\ndirectory = "{directory}"\n'
    )
    missing = f"sluice: {directory}: cannot be read: No such file or directory\n"
    assert run("usage", directory) == (2, "", missing)
    advice = "sluice: name the directory of the usage records, or a --config that has one\n"
    assert run("usage") == (2, "", advice)
    directory.mkdir()
    assert run("usage", directory) == (1, "no usage records here\n", "")
    write(directory, [row("app", offered=1)])
    code, out, _ = run("usage", "--config", file)
    assert code == 0
    assert "app" in out


def test_topics_are_shown_by_client_and_topic_and_bad_rows_left_out(tmp_path: Path, run: Run) -> None:
    head = ["in", "alice", "app", "produce", 1]
    topics = [[*head, "orders", 2, 600, 30], [*head, "", 2, 40, 0], [*head, OTHER, 1, 9, 1], [*head, "short"], 5]
    write(tmp_path, [row("app", offered=649)], [row("app", offered=649)], topics=topics)
    code, out, _ = run("usage", tmp_path, "--topics")
    assert code == 0
    assert [line.split() for line in out.splitlines()[2:]] == [
        ["PRODUCE", "TOPIC", "RATE", "B/s", "PEAK", "RECORDS/s", "REQUESTS"],
        ["user=alice,client-id=app", "orders", "600", "600", "30", "4"],
        ["user=alice,client-id=app", "(around", "records)", "40", "40", "0", "4"],
        ["user=alice,client-id=app", OTHER, "9", "9", "1", "2"],
    ]
    told = json.loads(run("usage", tmp_path, "--topics", "--json")[1])["topics"]
    assert sum(each["size_bytes"] for each in told) == 2 * 649
    assert run("usage", tmp_path, "--topics", "--api", "fetch")[1].endswith("or no client was active\n")
