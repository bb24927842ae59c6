"""Random schedules of a fleet against its bound, by `testkit.fleet` (docs/explanation/one-quota-over-a-fleet.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet.minutes import MOST_OVER
from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine
from gateway.fleet.shares import Share
from testkit.fleet import FleetMember, Outcome, Schedule, run_schedule

KINDS: Final = {
    "in order": Schedule(ordered=True),
    "late and twice": Schedule(repeat=0.1),
    "lost": Schedule(lose=0.02, repeat=0.05),
    "cut off": Schedule(lose=0.01, cuts=True),
    "cut off, `[fleet] members` set": Schedule(lose=0.01, cuts=True, members=6),
}


def run(count: int, *, planted: bool, output: Path) -> int:
    """Play `count` schedules, the same number of each kind."""
    if planted:
        return _find_planted(count)
    rows: list[dict[str, Any]] = []
    began_s = time.process_time()
    for name, kind in KINDS.items():
        outcomes = [run_schedule(seed, kind) for seed in range(count // len(KINDS))]
        worst = max(range(len(outcomes)), key=lambda seed: outcomes[seed].worst)
        rows.append(
            {
                "kind": name,
                "schedules": len(outcomes),
                "above": sum(each.worst > 1 for each in outcomes),
                "worst": round(outcomes[worst].worst, 4),
                "seed": worst,
                "detail": outcomes[worst].detail,
                "over": round(max(each.over for each in outcomes), 3),
                "median_over": round(sorted(each.over for each in outcomes)[len(outcomes) // 2], 3),
            }
        )
        print(rows[-1], flush=True)
    document = {
        "command": f"python -m benchmarks.fleet --schedules {count}",
        "machine": describe_machine(),
        "cpu_s": round(time.process_time() - began_s),
        "rows": rows,
    }
    page = _page(document, rows)
    keep_results(document, page, output, "fleet-schedules")
    print(page)
    return int(any(row["above"] or (row["over"] > MOST_OVER and not KINDS[row["kind"]].cuts) for row in rows))


def _page(document: dict[str, object], rows: list[dict[str, Any]]) -> str:
    lines = [
        "# A fleet's bound in random schedules",
        "",
        f"`{document['command']}`, {document['cpu_s']} s of CPU. Each plays 60 s with 2 to 6 members that",
        "join and die, one to four clients at each, silence and bursts; messages take up to 20, 60, 200 or 500 ms.",
        "*Worst*: the largest part of the bound (docs/explanation/one-quota-over-a-fleet.md) that was in use,",
        "at any request that passed.",
        "*Beyond one gateway*: burst beyond one gateway's, in such bursts of 22 s of the limit",
        f"(docs/explanation/one-quota-over-a-fleet.md). The goal is at most {MOST_OVER} while members are in touch.",
        "One that is cut off before it was ever in touch knows of no other one, and passes what a single gateway",
        "does where `[fleet] members` is not set. Members that are cut off, die and join within seconds add up.",
        "",
        f"**{sum(row['schedules'] for row in rows):,} schedules, {sum(row['above'] for row in rows)} above the "
        f"bound; at most {max(row['worst'] for row in rows)} of it in use**",
        "",
        "| kind | schedules | above the bound | worst | beyond one gateway, at most | median |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['kind']} | {row['schedules']} | {row['above']} | {row['worst']} "
        f"| {row['over']} | {row['median_over']} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _takes_no_levels(member: FleetMember) -> None:
    """Plant an error: the member stops asking for levels after the first answer, without taking them over."""
    exchange = member.exchange

    def caught_up(share: Share, now_ms: int) -> Iterator[None]:
        exchange._asking_since = None
        yield

    exchange._take_levels = caught_up  # type: ignore[method-assign, assignment]


def _drops_late_messages(member: FleetMember) -> None:
    """Plant an error: a message that arrives after a later one is not counted."""
    exchange = member.exchange
    receive = exchange.receive

    def receive_late(share: Share, *, now_ms: int) -> None:
        peer = exchange.peers._known.get(share.member)
        late = peer is not None and share.seq < peer.last_seq
        receive(replace(share, use={}) if late else share, now_ms=now_ms)

    exchange.receive = receive_late  # type: ignore[method-assign]


def _find_planted(count: int) -> int:
    planted: list[tuple[str, str, Callable[[FleetMember], None]]] = [
        ("takes no levels", "in order", _takes_no_levels),
        ("drops late messages", "late and twice", _drops_late_messages),
    ]
    missed = 0
    for name, kind, plant in planted:
        found: tuple[int, Outcome] | None = None
        for seed in range(count):
            outcome = run_schedule(seed, KINDS[kind], plant)
            if outcome.worst > 1:
                found = seed, outcome
                break
        missed += found is None
        print(name, "found in schedule", *((found[0], found[1].detail) if found else ("none",)), flush=True)
    return int(missed > 0)
