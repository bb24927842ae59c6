"""The table of the run with a real Kafka."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.pairs import Ratio, paired_ratio
from benchmarks.relay.paths import DIRECT, GATEWAY, GATEWAY_COMPILED, HAPROXY
from benchmarks.relay.report import INTERVALS, Row, circumstances, verdict

if TYPE_CHECKING:
    from benchmarks.relay.real_kafka import Job


def summarize_kafka(rows: Sequence[Row], paths: Sequence[str], jobs: "Sequence[Job]") -> dict[str, Any]:
    """Per job and path: medians of CPU per GB and MB/s, ratio to HAProxy and throughput ratio to direct."""
    summary: dict[str, Any] = {"jobs": {}, "invalid": sum(1 for row in rows if row["invalid"])}
    for job in jobs:
        entries: dict[str, dict[str, Any]] = {}
        for path in paths:
            own = [
                row
                for row in rows
                if row["workload"] == job.key and row["path"] == path and not row["invalid"]
            ]
            if not own:
                continue
            entries[path] = {
                "cpu_s_per_gb": statistics.median(row["figure"] for row in own),
                "frame_bytes": statistics.median(row["frame_bytes"] for row in own),
                "mb_per_s": statistics.median(row["mb_per_s"] for row in own),
            }
        speeds = [row | {"figure": row["mb_per_s"]} for row in rows]
        for path, entry in entries.items():
            for key, of, base in (("ratio", rows, HAPROXY), ("throughput_ratio", speeds, DIRECT)):
                ratio = paired_ratio(of, job.key, path, base)
                if ratio:
                    entry[key] = ratio.as_dict()
        summary["jobs"][job.key] = {"title": job.title, "goal": job.goal, "paths": entries}
    return summary


def render_kafka(document: dict[str, Any]) -> str:
    """The markdown page for one run's document."""
    kafka, paths = document["kafka"], document["paths"]
    lines = [
        "# What the relay costs in front of a real Kafka",
        "",
        *circumstances(document),
        f"Kafka {kafka['version']}, one broker, Java perf tools of the same version, "
        f"{kafka['record_bytes']} B records, {kafka['partitions']} partitions.",
        "",
        f"CPU-s of the proxy's process per GB of records; MB/s as the tool says (direct = 1.00). {INTERVALS}",
        "",
        "| | " + " | ".join(paths) + " | goal |",
        "|---" * (len(paths) + 2) + "|",
    ]
    for job in document["summary"]["jobs"].values():
        entries = job["paths"]
        cpu = [
            "-" if path == DIRECT else _cell(entries.get(path), "cpu_s_per_gb", "ratio", 3) for path in paths
        ]
        speed = [_cell(entries.get(path), "mb_per_s", "throughput_ratio", 0) for path in paths]
        ratio = entries.get(GATEWAY_COMPILED, entries.get(GATEWAY, {})).get("ratio")
        goal = f"{job['goal']:.2f}{verdict(ratio, job['goal'])}"
        lines.append(f"| {job['title']}, CPU-s per GB | {' | '.join(cpu)} | {goal} |")
        lines.append(f"| {job['title']}, MB/s | {' | '.join(speed)} | - |")
        sizes = [f"{entries[path]['frame_bytes'] / 1000:.0f}" if path in entries else "-" for path in paths]
        lines.append(f"| {job['title']}, average frame in KB | {' | '.join(sizes)} | - |")
    return "\n".join(lines) + "\n"


def _cell(entry: dict[str, Any] | None, figure: str, ratio: str, digits: int) -> str:
    if entry is None:
        return "-"
    compared = f" ({Ratio(**entry[ratio])})" if ratio in entry else ""
    return f"{entry[figure]:.{digits}f}{compared}"
