"""The page and the raw data of a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from testkit.adversary.campaign import Report
from testkit.adversary.stage import MUTATIONS_PER_S, QUOTA_BYTES_PER_S, WINDOW_S
from testkit.adversary.watch import EVENT_CPU_MS, MAX_RSS_BYTES

SHOWN_SEEDS: Final = 40


def as_rows(report: Report) -> dict[str, Any]:
    """The report as data for JSON."""
    return {
        "episodes": report.episodes,
        "seconds": round(report.seconds),
        "requests": report.requests,
        "connections": report.connections,
        "apis": dict(report.apis.most_common()),
        "most_rss_mib": report.most_rss_bytes >> 20,
        "most_event_cpu_ms": report.most_event_cpu_ms,
        "most_turn_cpu_ms": report.most_turn_cpu_ms,
        "honest_requests": len(report.honest_ms),
        "honest_p50_ms": round(quantile(report.honest_ms, 0.5), 1),
        "honest_p99_ms": round(quantile(report.honest_ms, 0.99), 1),
        "found": dict(report.kinds),
        "rows": [
            {
                "kind": finding.violation.kind,
                "seed": finding.script.seed,
                "detail": finding.violation.detail,
                "repeated": finding.repeated,
            }
            for finding in report.findings
        ],
    }


def quantile(values: Sequence[float], part: float) -> float:
    """Of sorted values; 0 without any."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def page(document: Mapping[str, Any], report: Report) -> str:
    """Markdown."""
    rate = report.episodes / max(report.seconds, 1)
    stall = (
        f"the longest event of its loop took {report.most_event_cpu_ms:.1f} ms of CPU time (bound "
        f"{EVENT_CPU_MS:.0f}), the longest turn, which has many events, {report.most_turn_cpu_ms}"
    )
    machine = document["machine"]
    honest = report.honest_ms
    lines = [
        "# An adversary that searches",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine.get('commit', '?')}; "
        f"load average before {machine['load_average_before']}, after {document['load_average_after']}.",
        "",
        f"**{report.episodes:,} random clients in {report.seconds / 60:.0f} minutes ({rate:.1f} a second), "
        f"{len(report.findings)} violations.**",
        "",
        f"* {report.requests:,} requests on {report.connections:,} connections. Steps by API: "
        + ", ".join(f"{count:,} {api}" for api, count in report.apis.most_common())
        + ".",
        f"* Each client has {QUOTA_BYTES_PER_S:,} bytes per second to produce and to fetch, "
        f"{MUTATIONS_PER_S:g} mutations per second, and windows of {WINDOW_S:g} s in all. Produced is by how much "
        "the log of its topic has grown, and partitions are those that the broker lists.",
        "* Bounds, over any number of connections: bytes <= quota x (time + 2 windows) + one request; partitions "
        "created or deleted <= burst + rate x time + one request, and one window more for versions that cannot be "
        "refused.",
        f"* The process: at most {report.most_rss_bytes >> 20} MiB (bound {MAX_RSS_BYTES >> 20}); {stall}.",
        f"* Two honest clients beside them, one without authentication and one user: {len(honest):,} requests, "
        f"p50 {quantile(honest, 0.5):.1f} ms, p99 {quantile(honest, 0.99):.0f} ms; one that is not answered is a "
        "violation.",
        "",
    ]
    for kind, count in report.kinds.most_common():
        of_kind = [finding for finding in report.findings if finding.violation.kind == kind]
        seeds = ", ".join(str(finding.script.seed) for finding in of_kind[:SHOWN_SEEDS])
        more = " ..." if count > SHOWN_SEEDS else ""
        lines += [f"## {kind}: {count}", "", f"Seeds: {seeds}{more}.", ""]
        for finding in of_kind:
            if finding.repeated:
                left = len(finding.script.steps)
                lines += [f"{finding.violation.detail}. {left} of {finding.steps} steps are enough:", ""]
                lines += ["```", finding.script.text().rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"
