"""What the adversary is made of: scripts that can be made again, kept and shortened, and verdicts by formula."""

from __future__ import annotations

import asyncio
import errno
import uuid
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest

from campaigns.adversary.player import Connection, Login, Outcome, Player
from campaigns.adversary.requests import encode, number
from campaigns.adversary.script import Script, make_script
from campaigns.adversary.shrink import shrink
from campaigns.adversary.stage import MUTATIONS_PER_S, QUOTA_BYTES_PER_S, WINDOW_S, Found
from campaigns.adversary.verdict import SLACK_S, Violation, judge
from campaigns.adversary.watch import EVENT_CPU_MS, MAX_RSS_BYTES, Watch
from testkit import wire

SEEDS = range(60)


def test_a_seed_makes_the_same_script_again_and_others_make_others() -> None:
    texts = [make_script(seed).text() for seed in SEEDS]
    assert texts == [make_script(seed).text() for seed in SEEDS]
    assert len(set(texts)) == len(SEEDS)


def test_a_script_is_read_back_from_its_text() -> None:
    for seed in SEEDS:
        assert Script.parse(make_script(seed).text()) == make_script(seed)


def test_every_step_that_sends_is_a_request_of_its_api_and_version() -> None:
    topic = ("t", uuid.uuid4())
    for seed in SEEDS:
        for step in make_script(seed).steps:
            if "api" not in step:
                continue
            frame = encode(
                step, prefix="p", client_id="c", write_topic=topic, read_topic=topic, ids={}, session=(0, -1)
            )
            size, api_key, version = unpack_from(">ihh", frame, 0)
            assert (size, api_key, version) == (len(frame) - 4, wire.api_key_of(step["api"]), step["version"])
            assert wire.correlation_id_of(number(frame, 77)[4:]) == 77


def test_a_half_close_is_the_last_of_a_connection_also_when_the_gateway_has_just_reset_it() -> None:
    class Reset(asyncio.Transport):
        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, "reset")

        def is_closing(self) -> bool:
            return False

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ("127.0.0.1", 9) if name == "sockname" else default

    topic = ("topic", uuid.UUID(int=1))
    login = Login((("127.0.0.1", 9),), "name", None, topic, (topic, topic))
    connection = Connection(Player(make_script(0), login))
    connection.connection_made(Reset())
    with pytest.raises(OSError, match="reset"):
        connection.end("half")
    assert not connection.open


def test_shrinking_leaves_the_steps_that_matter() -> None:
    steps = [{"do": "pause", "ms": ms} for ms in range(40)]
    tried = 0

    async def fails(scripts: list[Script]) -> list[bool]:
        nonlocal tried
        tried += len(scripts)
        return [{7, 8, 31} <= {step["ms"] for step in script.steps} for script in scripts]

    script = asyncio.run(shrink(Script(1, "client", (0,), tuple(steps)), fails, most_rounds=100))
    assert [step["ms"] for step in script.steps] == [7, 8, 31]
    assert tried < 200


def _outcome(**more: Any) -> Outcome:
    return Outcome("c", began_ms=0.0, ended_ms=2_000.0, ports=[1], **more)


NEW = Script(1, "client", (0,), ({"do": "send", "api": "CreateTopics", "version": 7},))
OLD = Script(1, "client", (0,), ({"do": "send", "api": "CreateTopics", "version": 4},))
BYTES = int(QUOTA_BYTES_PER_S * (2 + SLACK_S + 2 * WINDOW_S))
PERMITS = int(MUTATIONS_PER_S * (2 + SLACK_S + WINDOW_S))


def test_bytes_are_bounded_by_time_two_windows_and_one_request() -> None:
    produced = _outcome(largest_produce_bytes=500)
    assert judge(NEW, produced, Found(0, BYTES + 500)) == []
    assert [each.kind for each in judge(NEW, produced, Found(0, BYTES + 501))] == ["produced"]
    assert judge(NEW, _outcome(fetched_bytes=BYTES + 70, largest_fetch_bytes=70), Found(0, 0)) == []
    fetched = _outcome(fetched_bytes=BYTES + 71, largest_fetch_bytes=70)
    assert [each.kind for each in judge(NEW, fetched, Found(0, 0))] == ["fetched"]


def test_partitions_are_bounded_by_burst_rate_and_one_request() -> None:
    outcome = _outcome(most_permits=12)
    assert judge(NEW, outcome, Found(PERMITS + 12, 0)) == []
    assert [each.kind for each in judge(NEW, outcome, Found(PERMITS + 13, 0))] == ["partitions"]
    assert judge(OLD, outcome, Found(PERMITS + 13, 0)) == []
    churned = _outcome(most_permits=12, deleted_partitions=10)
    assert [each.kind for each in judge(NEW, churned, Found(PERMITS, 0))] == ["partitions"]


class _Gateway:
    """As much of a stage as a watch looks at."""

    gateway_runs = True

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self.rss = 1

    def rss_bytes(self) -> int:
        return self.rss


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        (f"event=event_took cpu_ms={EVENT_CPU_MS + 0.1} handler=a.b peer=127.0.0.1:4711", ["stall"]),
        (f'event=event_took cpu_ms={EVENT_CPU_MS} handler=a.b peer=""', []),
        ("event=turns_took turns=90 long=1 cpu_ms=60.5", []),  # of many events
        ('event=connection_refused level=info peer=127.0.0.1:4711 cause=upstream_malformed detail=""', ["error"]),
        ("event=connection_refused level=info peer=127.0.0.1:4711 cause=not_kafka", []),
        ('event="client failed" level=error', ["error"]),
    ],
)
def test_the_log_tells_of_stalls_and_bugs(line: str, kinds: list[str], tmp_path: Path) -> None:
    gateway = _Gateway(tmp_path / "log")
    gateway.log_file.write_text(line + "\n")
    watch = Watch(gateway)
    found = watch.look()
    assert [violation.kind for violation, _ in found] == kinds
    assert [port for _, port in found if port] == ([4711] if "peer" in line and kinds else [])
    assert watch.look() == []


def test_turns_are_counted_from_when_clients_begin(tmp_path: Path) -> None:
    gateway = _Gateway(tmp_path / "log")
    gateway.log_file.write_text("event=turns_took turns=90 long=1 cpu_ms=160.5\n")
    watch = Watch(gateway)
    watch.look()
    watch.begin()
    with gateway.log_file.open("a") as log:
        log.write("event=turns_took turns=100 long=2 cpu_ms=60.5\nevent=turns_took turns=99 long=0 cpu_ms=3.0\n")
    watch.look()
    assert (watch.turns, watch.long_turns, watch.most_turn_cpu_ms) == (199, 2, 60.5)


def test_memory_above_the_bound_is_told_once(tmp_path: Path) -> None:
    gateway = _Gateway(tmp_path / "log")
    gateway.log_file.touch()
    watch = Watch(gateway)
    assert watch.look() == []
    gateway.rss = MAX_RSS_BYTES + 1
    assert [(violation.kind, port) for violation, port in watch.look()] == [("memory", None)]
    assert watch.look() == []
    assert isinstance(Violation("memory", ""), Violation)
