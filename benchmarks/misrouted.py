"""``python -m benchmarks.misrouted``: a hundred clients of Kafka 4.4 reach a wrong broker; keeps results.

There are two Kafka clusters of three brokers and one gateway. A tap between clients and gateway sees which node's
records each client gets. Exit code 1 when a client did not recover within 5 s, or got a record of another node.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine
from campaigns.misrouted.campaign import WITHIN_MS, Outcome, play

RESULTS: Final = Path(__file__).with_name("results")
_CLIENTS: Final = 100
_TEXT: Final = """\
Java clients of Kafka 4.4, half of them readers and half of them writers, name the node that they want to speak to
(KIP-1242). Each fault leads all of them to another node or cluster. *Sent back* were answered REBOOTSTRAP_REQUIRED.
*Recovered* is whether something worked within {limit_s} s after all was right again: the routes uncrossed, the
gateway or the brokers ready. Clients without a connection at that moment begin anew by themselves and are not sent
back.

Each record says which node of which cluster has written it. A tap between clients and gateway reads what each client
names and each record that it gets. *Wrong* records came from another node than the named one. *Leaks* are addresses
of brokers or of the gateway in the bytes to clients.

A Java client names a node only while it knows the cluster's id. It forgets the id when it is sent back, and may
connect to a node's old address before it has asked for the new ones. *Unnamed* clients did so. Neither a broker nor
the gateway can send them back, and they keep such a connection until it ends.
"""


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.misrouted", description=__doc__)
    parser.add_argument("--clients", type=int, default=_CLIENTS, help="how many, half of them readers")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the page")
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.misrouted"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    outcomes: list[Outcome] = []
    with TemporaryDirectory() as name:
        for outcome in play(Path(name), options.clients):
            print(outcome, file=sys.stderr, flush=True)
            outcomes.append(outcome)
    document["rows"] = [each._asdict() for each in outcomes]
    text = page(document, outcomes)
    keep_results(document, text, options.output, "misrouted")
    print(text)
    return int(not all(each.held for each in outcomes))


def page(document: dict[str, Any], outcomes: list[Outcome]) -> str:
    """The page of the results."""
    total = sum(each.clients for each in outcomes)
    recovered = sum(each.recovered for each in outcomes)
    records, wrong = (sum(getattr(each, name) for each in outcomes) for name in ("records", "wrong"))
    limit_s = WITHIN_MS // 1000
    rows = [
        f"| {each.fault} | {each.clients} | {each.sent_back} | {each.recovered} | "
        f"{'never' if each.slowest_ms is None else f'{each.slowest_ms / 1000:.1f}'} | {each.records:,} | "
        f"{each.wrong} | {each.unnamed} | {each.unnamed_records} | {len(each.slow_and_unnamed)} | {each.leaks} |"
        for each in outcomes
    ]
    return "\n".join(
        [
            "# Clients at another broker",
            "",
            f"`{document['command']}`, {document['started']}, commit {document['machine']['commit']}; "
            f"load average before: {document['machine']['load_average_before']}.",
            "",
            _TEXT.format(limit_s=limit_s),
            f"| Fault | Clients | Sent back | Recovered in {limit_s} s | Slowest, s | Records | Wrong | Unnamed | "
            "Their records | Unnamed and slow | Leaks |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"**{recovered} of {total} recovered in {limit_s} s; {wrong} of {records:,} records were wrong.**",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
