"""The page and the raw data of a campaign, which may run in several pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from campaigns.adversary.campaign import Report
from campaigns.adversary.honest_client import PATIENCE_S
from campaigns.adversary.stage import MUTATIONS_PER_S, QUOTA_BYTES_PER_S, WINDOW_S
from campaigns.adversary.watch import EVENT_CPU_MS, MAX_RSS_BYTES

SHOWN_SEEDS: Final = 40


def piece_of(report: Report) -> dict[str, Any]:
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
        "turns": report.turns,
        "long_turns": report.long_turns,
        "honest_requests": len(report.honest_ms),
        "starved": report.starved,
        "honest_p50_ms": round(quantile(report.honest_ms, 0.5), 1),
        "honest_p99_ms": round(quantile(report.honest_ms, 0.99), 1),
        "findings": [
            {
                "kind": finding.violation.kind,
                "seed": finding.script.seed,
                "detail": finding.violation.detail,
                "repeated": finding.repeated,
                "steps": finding.steps,
                "left": finding.script.text() if finding.repeated else None,
            }
            for finding in report.findings
        ],
    }


def quantile(values: Sequence[float], part: float) -> float:
    """A quantile of sorted values; 0 if there are none."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def page(pieces: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""

    def total(name: str) -> Any:
        return sum(piece[name] for piece in pieces)

    def most(name: str) -> Any:
        return max(piece[name] for piece in pieces)

    seeds = {seed for piece in pieces for seed in range(piece["first_seed"], piece["next_seed"])}
    apis = sum((Counter(piece["apis"]) for piece in pieces), Counter[str]())
    findings = [finding for piece in pieces for finding in piece["findings"]]
    starved = sum(len(piece.get("starved", ())) for piece in pieces)
    stall = (
        f"the longest event of its loop took {most('most_event_cpu_ms'):.1f} ms of CPU time (bound "
        f"{EVENT_CPU_MS:.0f}), the longest turn, which has many events, {most('most_turn_cpu_ms'):.1f}; "
        f"{total('long_turns'):,} of {total('turns'):,} turns took more than {EVENT_CPU_MS:.0f}"
    )
    lines = [
        "# An adversary that searches",
        "",
        f"**{total('episodes'):,} random clients, of {len(seeds):,} seeds, in {total('seconds') / 60:.0f} minutes "
        f"({total('episodes') / max(total('seconds'), 1):.1f} a second), {len(findings)} violations.**",
        "",
        "| Command | Commit | Started | Seeds | Random clients | Load before and after | Violations | "
        "Honest p50, p99 |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| `{piece['command']}` | {piece['commit']} | {piece['started']} | {piece['first_seed']} to "
            f"{piece['next_seed'] - 1} | {piece['episodes']:,} | {piece['load_average'][0][0]}, "
            f"{piece['load_average'][1][0]} | {len(piece['findings'])} | {piece['honest_p50_ms']:.1f} ms, "
            f"{piece['honest_p99_ms']:.0f} ms |"
            for piece in pieces
        ),
        "",
        f"* {total('requests'):,} requests on {total('connections'):,} connections. Steps by API: "
        + ", ".join(f"{count:,} {api}" for api, count in apis.most_common())
        + ".",
        f"* Each client has {QUOTA_BYTES_PER_S:,} bytes per second to produce and to fetch, "
        f"{MUTATIONS_PER_S:g} mutations per second, and windows of {WINDOW_S:g} s in all. Produced is by how much "
        "the log of its topic has grown, and partitions are those that the broker lists.",
        "* Bounds, over any number of connections: bytes <= quota x (time + 2 windows) + one request; partitions "
        "created or deleted <= burst + rate x time + one request, and one window more for versions that cannot be "
        "refused.",
        f"* The process: at most {most('most_rss_mib')} MiB (bound {MAX_RSS_BYTES >> 20}); {stall}.",
        "* Two honest clients beside them, one without authentication and one user: "
        f"{total('honest_requests'):,} requests; one that is not answered within {PATIENCE_S:.0f} s is a violation, "
        f"unless one past the gateway waits for more than a third of that at the same time ({starved} of them).",
        "",
    ]
    for kind, count in Counter(finding["kind"] for finding in findings).most_common():
        of_kind = [finding for finding in findings if finding["kind"] == kind]
        shown = ", ".join(str(finding["seed"]) for finding in of_kind[:SHOWN_SEEDS])
        more = " ..." if count > SHOWN_SEEDS else ""
        lines += [f"## {kind}: {count}", "", f"Seeds: {shown}{more}. {of_kind[0]['detail']}", ""]
        for finding in of_kind:
            if finding["repeated"]:
                left = len(finding["left"].splitlines())
                lines += [f"{finding['detail']}. {left} lines of {finding['steps']} steps are enough:", ""]
                lines += ["```", finding["left"].rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"
