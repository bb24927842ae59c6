"""Renders benchmarks/results/peers.md: how each proxy handled the same hostile clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TEXT: Final = """\
The same clients at the same broker, through each proxy and directly. Each proxy has one core and
starts anew for each row. Sluice runs from its sources, without the compiled core. Honest clients
begin with ApiVersions, as client libraries do.

The proxies differ in purpose. HAProxy in TCP mode relays bytes and does not know Kafka, so frames
and addresses pass it by design. Kroxylicious runs without filters and with its
defaults, started as its distribution starts it; release 0.12.0 has no shutdown hook for SIGTERM.
"Directly" shows the scripted broker, not Kafka.

Counts, memory and CPU do not depend on a busy machine. Times (the 100 ms of R4, the seconds
of R7, R15 and R19) and the number of answers in R5 do: the load is above.
"""
SHOWN: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "R4": (
        "Frames that no client sends. A frame that reached the broker was for the broker to judge.",
        {
            "ended_or_answered_within_100_ms": "ended or answered within 100 ms",
            "silent_for_1_s": "silent for 1 s",
            "reached_the_broker": "reached the broker",
            "serves_afterwards": "serves afterwards",
        },
    ),
    "R5": (
        "Connections that stop within the first frame: half after 4 bytes, half without the last 4 bytes of the "
        "body. A deadline of 3 s where the proxy has one, observed for 6 s. Memory after 1 s.",
        {
            "heads_cut_closed": "closed, of those without a head",
            "bodies_missing_closed": "closed, of those without a whole body",
            "kib_each": "KiB of memory each",
            "good_answered": "answers to a good client",
            "good_lost": "its requests lost",
        },
    ),
    "R6": (
        "Clients that do not read an answer of 8 MiB, for 4 s. The JVM's memory includes what its heap grows by.",
        {"kib_each": "KiB of memory each", "serves_others": "serves others meanwhile"},
    ),
    "R7": (
        "More connections than the proxy has descriptors (256): 30 were served before, n come. "
        "CPU while they are there, and the time until a new client is served when they have left.",
        {
            "established": "served before",
            "established_lost": "of these lost",
            "cpu_of_a_core": "CPU of a core",
            "accepts_again_s": "serves again after, s",
        },
    ),
    "R8": (
        "One address offers 40 connections a second for 10 s; 10 a second are allowed. HAProxy's `conn_rate` also "
        "counts connections that it rejects, so an address that does not slow down stays out.",
        {"accepted": "served", "to_limit": "served to limit"},
    ),
    "R15": (
        "A null broker (no Kafka) is restarted: seconds from its first answer to the first one through the proxy.",
        {"median_s": "median with a null broker, s", "longest_s": "longest, s"},
    ),
    "R17": ("Answers to Metadata that name the broker's own port.", {"leaks": "leaks"}),
    "R19": (
        "SIGTERM while each client waits for an answer that takes 1 s; HAProxy: SIGUSR1, which `haproxy -sf` sends. "
        "Clients stay connected; observed for 8 s.",
        {"lost": "answers lost", "exit_s": "ended after, s"},
    ),
}
"""By row: its description, and the name of each figure."""

RESULT: Final = "peers.json"
DIRECT: Final = "direct"
BESIDE: Final[Mapping[str, str]] = {
    "R4": "reached_the_broker",
    "R5": "bodies_missing_closed",
    "R6": "kib_each",
    "R7": "established_lost",
    "R8": "to_limit",
    "R15": "median_s",
    "R17": "leaks",
    "R19": "lost",
}
"""The one figure of each row that the scoreboard shows."""


def page(document: Mapping[str, Any]) -> str:
    """The page.

    Args:
        document: what `benchmarks.peers` keeps.
    """
    machine = document["machine"]
    lines = [
        "# Hostile clients at other proxies",
        "",
        f"`{document['command']}`, {document['started']}, {document['seconds']} s, commit {machine['commit']}. "
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}; Python {machine['python']}, "
        f"{machine['haproxy']}, {document['kroxylicious']} on {machine['java']}. "
        f"Load average before: {machine['load_average_before']}.",
        "",
        _TEXT,
    ]
    for name, (text, figures) in SHOWN.items():
        rows = [row for row in document["rows"] if row["row"] == name]
        if not rows:
            continue
        head = ["", "n", *figures.values()]
        lines += [
            f"## {name}",
            "",
            text,
            "",
            "| " + " | ".join(head) + " |",
            "|---|" + "---:|" * (len(head) - 1),
        ]
        lines += [_line(row, figures) for row in rows]
        lines.append("")
    lines += ["## Configurations", ""]
    for peer, text in document["configurations"].items():
        lines += [f"{peer}:", "", "```", text.rstrip(), "```", ""]
    return "\n".join(lines)


def beside(document: Mapping[str, Any], number: str) -> tuple[str, ...]:
    """The scoreboard's texts about other proxies for one of its rows; empty for rows that were not run.

    Args:
        document: what `benchmarks.peers` keeps.
        number: number of the row.
    """
    rows = [row for row in document["rows"] if row["row"] == number and row["peer"] != DIRECT]
    return tuple(f"{row['peer']}, {_in_short(row, BESIDE[number])}" for row in rows)


def _in_short(row: Mapping[str, Any], figure: str) -> str:
    words = row.get("without") or row.get("failed")
    return f"{SHOWN[row['row']][1][figure]}: {_shown(row[figure])}" if words is None else str(words)


def _line(row: Mapping[str, Any], figures: Mapping[str, str]) -> str:
    words = row.get("without") or row.get("failed")
    if words is not None:
        cells = ["", words, *[""] * (len(figures) - 1)]
    else:
        cells = [f"{row['n']:,}", *(_shown(row[figure]) for figure in figures)]
    return "| " + " | ".join([row["peer"], *cells]) + " |"


def _shown(value: float | bool | None) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "**no**"
        case int():
            return f"{value:,}"
        case _:
            return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
