"""The campaign's page and raw results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from campaigns.accuracy.campaign import GATEWAY, KAFKA, Plan, Result

LOWEST: Final = 0.90
HIGHEST: Final = 1.05


def within(result: Result) -> bool:
    """Whether a client's rate is its quota, within the goal's tolerance."""
    return LOWEST <= result.ratio <= HIGHEST


def keep(document: dict[str, Any], plan: Plan, results: list[Result], folder: Path) -> str:
    """Write accuracy.json and accuracy.md, for other plans under other names; returns the page."""
    name = "accuracy"
    if plan.by_topic:
        name += "-topics"
    if plan.gateways > 1:
        name += f"-{plan.gateways}-gateways"
    if plan.workers > 1:
        name += f"-{plan.workers}-workers"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [asdict(result) | {"ratio": round(result.ratio, 4)} for result in results]
    whole = document | {"plan": asdict(plan), "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
    page = render(document, plan, results)
    (folder / f"{name}.md").write_text(page)
    return page


NOTES: Final = (
    "* Counted are values of records when they are acknowledged or have arrived; frames, which quotas count, are",
    "  about one percent larger. The cheater's figures are of frames: eight raw connections, four requests ahead of",
    "  their replies on each, throttle times unread.",
    "* The gateway counts a client once for all three brokers; Kafka counts per broker, so there all partitions are",
    "  on one.",
    "* A fresh window lets ten seconds' worth pass at once, and a client that then waits bursts again when the",
    "  samples of that burst are forgotten, eleven to twelve seconds later. So one minute sees five bursts and",
    "  another one six; hence the mean over all of them, and the warm-up.",
    "* A client over its quota may still send one request on each of its connections before it is muted there. With",
    "  n connections and requests of f seconds' worth of quota, Kafka's arithmetic lets the average settle at up to",
    "  (1 + sqrt(1 + 4 n f / 11)) / 2 of the quota: here n f is 0.13, and 0.6 would be 5 % over.",
)


def _cell(result: Result | None, *, goal: bool) -> str:
    if result is None:
        return "-"
    lowest, highest = (
        rate / result.quota_bytes_per_s for rate in (result.lowest_bytes_per_s, result.highest_bytes_per_s)
    )
    missed = ", missed" if goal and not within(result) else ""
    return f"{result.ratio:.3f} ({lowest:.2f} to {highest:.2f}){missed}"


def render(document: dict[str, Any], plan: Plan, results: list[Result]) -> str:
    """The page."""
    machine = document["machine"]
    by_client: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        by_client.setdefault((result.family, result.verb), {})[result.side] = result
    lines = [
        "# How exactly byte rates hold",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine.get('commit', '?')}, "
        f"{document['seconds']} s; load average before {machine['load_average_before']}, "
        f"after {document['load_average_after']}.",
        f"Gateways: {plan.gateways}, workers of each: {plan.workers}"
        + (", each client two with one quota, at different gateways. " if plan.gateways > 1 else ". ")
        + f"{plan.quota_bytes_per_s:,} bytes per second for each client, all clients at the same time; "
        f"{plan.warm_up_s:.0f} s of warm-up, averages over {plan.measured_s:.0f} s; quota.window.num = "
        f"{plan.window_num}, samples of 1 s.",
        "",
        "Achieved over quota: the mean, and in brackets the lowest and the highest, of the averages over all "
        f"{plan.measured_s:.0f} s that begin within {plan.period_s} s. Goal for the gateway's mean: "
        f"{LOWEST:.2f} to {HIGHEST:.2f}.",
        "",
        "| client | | through the gateway, 3 brokers | Kafka's own quota, 1 broker |",
        "|---|---|---|---|",
    ]
    for (family, verb), sides in by_client.items():
        cells = [_cell(sides.get(side), goal=side == GATEWAY) for side in (GATEWAY, KAFKA)]
        lines.append(f"| {family} | {verb} | {cells[0]} | {cells[1]} |")
    lines += ["", *NOTES]
    return "\n".join(lines) + "\n"
