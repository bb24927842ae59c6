"""Medians, ratios within a round with their intervals, and the table."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from benchmarks.pairs import ENOUGH_PAIRS, Ratio, paired_ratio
from benchmarks.relay.paths import (
    DIRECT,
    GATEWAY,
    GATEWAY_COMPILED,
    GATEWAY_WITH_BYTE_QUOTAS,
    GATEWAY_WITH_LIMITS,
    GATEWAY_WITH_TOPICS,
    GATEWAY_WITH_USAGE,
    HAPROXY,
    OF_OTHER_CHECKOUT,
)
from benchmarks.relay.workloads import (
    IDLE_GOAL_BYTES,
    LATENCY_FRAME_BYTES,
    LATENCY_PER_SECOND,
    WORKLOADS,
    Workload,
)

Row = dict[str, Any]

# If other programs used more than this share of the machine, the window counts only if too few quiet ones are left.
QUIET_SHARE: Final = 0.05
_QUIET_WINDOWS: Final = 3

COMPARISONS: Final = {
    "byte_quotas": "CPU with byte rates (every frame counted, the limit never reached) over that without; goal 1.05",
    "limits": "CPU with all limits that Kafka lacks (never reached) over that without any; goal 1.08",
    "usage": "CPU with usage records (one client, no byte rates) over that without; goal 1.05",
    "topics": "CPU with counting by topic over that with usage records; goal 1.15, of 1 MB 1.03",
    "compiled": "CPU with the compiled core over that of the sources",
    "since_before": "CPU over that of the other checkout, nothing set in either",
}
INTERVALS: Final = (
    "In brackets: HAProxy = 1.00, the median of the ratios within one round and its interval of 95 % "
    f"(of fewer than {ENOUGH_PAIRS} rounds: lowest and highest). A goal is met when the upper end of the interval is."
)


def usable(rows: Iterable[Row]) -> list[Row]:
    """The valid windows: the quiet ones when there are three, else all of them."""
    valid = [row for row in rows if not row["invalid"]]
    quiet = [row for row in valid if row.get("foreign_share", 0.0) <= QUIET_SHARE]
    return quiet if len(quiet) >= _QUIET_WINDOWS else valid


def mark_different_bytes(rows: Sequence[Row]) -> None:
    """Mark windows as invalid if their bytes differ from the direct path's for the same workload."""
    for workload in WORKLOADS:
        direct = [row for row in rows if row["workload"] == workload.key and row["path"] == DIRECT]
        if not direct:
            continue
        for row in rows:
            if row["workload"] == workload.key and not row["invalid"]:
                kind = "reply_hash" if workload.verb == "fetch" else "produce_hash"
                if row[kind] != direct[0][kind]:
                    row["invalid"] = "wrong: content"


def summarize(rows: Sequence[Row], paths: Sequence[str]) -> dict[str, Any]:
    """Per workload and path: median, quartiles, number of windows, ratio to HAProxy within a round.

    Returns:
        ``workloads`` -> key -> path -> figures; ``latency`` -> path -> medians of the percentiles and of the paired
        difference to direct; ``idle`` -> path -> median bytes per connection; ``invalid``: number of discarded
        windows; ``disturbed``: number of windows above the quiet share.
    """
    proxies = [path for path in paths if path != DIRECT]
    tables: dict[str, Any] = {}
    for workload in WORKLOADS:
        figures = {path: _figures(rows, workload, path) for path in proxies}
        for path, entry in figures.items():
            ratio = paired_ratio(rows, workload.key, path, HAPROXY)
            if entry and ratio:
                entry["ratio"] = ratio.as_dict()
        tables[workload.key] = {path: entry for path, entry in figures.items() if entry}
    return {
        "workloads": tables,
        "byte_quotas": _compared(rows, GATEWAY_WITH_BYTE_QUOTAS, GATEWAY),
        "limits": _compared(rows, GATEWAY_WITH_LIMITS, GATEWAY),
        "usage": _compared(rows, GATEWAY_WITH_USAGE, GATEWAY),
        "compiled": _compared(rows, GATEWAY_COMPILED, GATEWAY),
        "since_before": _compared(rows, GATEWAY, GATEWAY + OF_OTHER_CHECKOUT),
        "topics": _compared(rows, GATEWAY_WITH_TOPICS, GATEWAY_WITH_USAGE),
        "latency": _latency(rows, paths),
        "idle": _idle(rows, proxies),
        "invalid": sum(1 for row in rows if row["invalid"]),
        "disturbed": sum(1 for row in rows if row.get("foreign_share", 0.0) > QUIET_SHARE),
        "windows": len(rows),
    }


def _figures(rows: Sequence[Row], workload: Workload, path: str) -> dict[str, Any] | None:
    used = usable(row for row in rows if row["workload"] == workload.key and row["path"] == path)
    values = sorted(row["figure"] for row in used)
    if not values:
        return None
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {
        "median": statistics.median(values),
        "quartile_1": low,
        "quartile_3": high,
        "windows": len(values),
    }


def _compared(rows: Sequence[Row], path: str, base: str) -> dict[str, dict[str, float]]:
    """The CPU of one path over that of another within a round, per workload."""
    ratios = {workload.key: paired_ratio(rows, workload.key, path, base) for workload in WORKLOADS}
    return {key: ratio.as_dict() for key, ratio in ratios.items() if ratio}


def _latency(rows: Sequence[Row], paths: Sequence[str]) -> dict[str, dict[str, float]]:
    by_round: dict[int, dict[str, Row]] = {}
    for row in rows:
        if row["workload"] == "latency" and not row["invalid"]:
            by_round.setdefault(row["round"], {})[row["path"]] = row
    result = {}
    for path in paths:
        own = [taken[path] for taken in by_round.values() if path in taken]
        pairs = [
            (taken[path], taken[DIRECT]) for taken in by_round.values() if path in taken and DIRECT in taken
        ]
        if not own or not pairs:
            continue
        result[path] = {
            "p50_us": statistics.median(row["p50_ns"] for row in own) / 1000,
            "p99_us": statistics.median(row["p99_ns"] for row in own) / 1000,
            "added_p50_us": statistics.median(row["p50_ns"] - direct["p50_ns"] for row, direct in pairs)
            / 1000,
            "rounds": len(pairs),
        }
    return result


def _idle(rows: Sequence[Row], paths: Sequence[str]) -> dict[str, float]:
    result = {}
    for path in paths:
        values = [
            row["per_connection_bytes"] for row in rows if row["workload"] == "idle" and row["path"] == path
        ]
        if values:
            result[path] = statistics.median(values)
    return result


def circumstances(document: dict[str, Any]) -> list[str]:
    """Command, commit, machine and layout, as lines of a page."""
    machine = document["machine"]
    return [
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        f"uvloop {machine['packages']['uvloop']}, {machine['haproxy']}.",
        f"Load average before {machine['load_average_before']}, after {machine['load_average_after']}. "
        f"{document['rounds']} interleaved rounds, medians; {document['layout']}.",
    ]


def render(document: dict[str, Any]) -> str:
    """The markdown page for one run's document."""
    summary = document["summary"]
    proxies = [path for path in document["paths"] if path != DIRECT]
    lines = [
        "# What the relay costs",
        "",
        *circumstances(document),
        f"{summary['windows']} windows, {summary['invalid']} invalid, {summary['disturbed']} disturbed by others.",
        "",
        f"CPU of the proxy's process, user + system. {INTERVALS}",
        "",
        "| | unit | " + " | ".join(proxies) + " | goal |",
        "|---" * (len(proxies) + 3) + "|",
    ]
    for workload in WORKLOADS:
        if not summary["workloads"][workload.key]:
            continue
        cells = [_cell(summary["workloads"][workload.key].get(path)) for path in proxies]
        lines.append(
            f"| {workload.title} | {workload.unit} | {' | '.join(cells)} | {_goal(workload, summary)} |"
        )
    latency, idle = summary["latency"], summary["idle"]
    if latency:
        cells = [f"{latency[path]['added_p50_us']:+.0f}" if path in latency else "-" for path in proxies]
        direct = latency.get(DIRECT, {}).get("p50_us", 0.0)
        title = f"added p50, {LATENCY_FRAME_BYTES} B at {LATENCY_PER_SECOND}/s (direct: {direct:.0f} us)"
        lines.append(f"| {title} | us | {' | '.join(cells)} | - |")
    if idle:
        cells = [f"{idle[path] / 1024:.1f}" if path in idle else "-" for path in proxies]
        lines.append(f"| RSS per idle connection | KiB | {' | '.join(cells)} | {_idle_goal(idle)} |")
    for key, text in COMPARISONS.items():
        compared = summary.get(key)
        if not compared:
            continue
        lines += [
            "",
            f"{text}:",
            "",
            *(
                f"* {workload.title}: {Ratio(**compared[workload.key])}"
                for workload in WORKLOADS
                if workload.key in compared
            ),
        ]
    return "\n".join(lines) + "\n"


def _cell(entry: dict[str, Any] | None) -> str:
    if not entry:
        return "-"
    ratio = f" ({Ratio(**entry['ratio'])})" if "ratio" in entry else ""
    return f"{entry['median']:.3f}{ratio}"


def _goal(workload: Workload, summary: dict[str, Any]) -> str:
    """The goal for the compiled gateway where it was measured, since the image runs it."""
    if workload.goal is None:
        return "-"
    paths = summary["workloads"][workload.key]
    ratio = paths.get(GATEWAY_COMPILED, paths.get(GATEWAY, {})).get("ratio")
    return f"{workload.goal:.2f}{verdict(ratio, workload.goal)}"


def verdict(ratio: dict[str, float] | None, goal: float) -> str:
    """Whether a goal is met, by the upper end of the interval."""
    return "" if ratio is None else ", met" if ratio["high"] <= goal else ", missed"


def _idle_goal(idle: dict[str, float]) -> str:
    goal = f"{IDLE_GOAL_BYTES / 1024:.0f}"
    if GATEWAY not in idle:
        return goal
    return f"{goal}, {'met' if idle[GATEWAY] <= IDLE_GOAL_BYTES else 'missed'}"
