"""``python -m benchmarks.matrix``: brokers and clients of many versions, each directly and through the gateway.

Exit code 1 when a step works directly and fails through the gateway, when a client got a broker's address, or when a
rolling upgrade failed. Kafka's own tests count as steps. If a run leaves parts out, their earlier results stay. See
`campaigns.matrix`; the page is benchmarks/results/matrix.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine
from campaigns.matrix.cells import Cell, Matrix, Verdict, try_clients
from campaigns.matrix.clients import clients
from campaigns.matrix.judges import judge
from campaigns.matrix.mixed import found_fault, rolling_upgrade
from campaigns.matrix.page import page, summary
from campaigns.matrix.stage import gateway, kafka_features
from campaigns.matrix.versions import BROKERS, FEATURES, UPGRADES
from embedded_kafka.kafka import KafkaCluster
from testkit.loopback import own_host

RESULTS: Final = Path(__file__).resolve().parent / "results"
_START_S: Final = 600.0
"""A broker's start on a busy machine. The first start also creates the archive of its classes."""


def try_broker(version: str, only: Sequence[str]) -> Matrix:
    """Run all clients against one broker, which starts once.

    Args:
        version: version of the broker.
        only: parts of the names of clients; empty for all.
    """
    matrix = Matrix()
    cluster = KafkaCluster(host=own_host(77), version=version, start_timeout_s=_START_S)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-matrix-") as folder,
        cluster,
        gateway(cluster, Path(folder)) as gate,
    ):
        for feature in FEATURES.get(version, ()):
            kafka_features(version, cluster.bootstrap, "--feature", feature)
        chosen = [
            client for client in clients(version) if not only or any(part in client.name for part in only)
        ]
        for cells in try_clients(
            matrix, chosen, version=version, broker=cluster.brokers[1], through=gate.bootstrap
        ):
            works = sum(cell.verdict is Verdict.WORKS for cell in cells)
            print(f"{version} {cells[0].client}: {works} steps work", flush=True)
            for cell in cells:
                if cell.verdict not in (Verdict.WORKS, Verdict.LACKS):
                    print(f"  {cell.step}: {cell.verdict}: {cell.direct} | {cell.through}", flush=True)
        matrix.leaks += [f"{version}: {hit!r}" for hit in gate.tap.hits]
    return matrix


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix", description=__doc__)
    parser.add_argument("--brokers", nargs="*", choices=BROKERS, default=BROKERS, help="only these, or none")
    parser.add_argument(
        "--clients", nargs="+", default=[], metavar="PART", help="those with this in their name"
    )
    parser.add_argument("--without", nargs="+", choices=("upgrades", "judges"), default=())
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the page")
    options = parser.parse_args()
    kept = options.output / "matrix.json"
    document: dict[str, Any] = {
        "machine": {},
        "dates": {},
        "unavailable": {},
        "leaks": [],
        "mixed": [],
        "judges": {"version": "", "rows": [], "leaks": []},
        "rows": [],
    }
    if kept.exists():
        document |= json.loads(kept.read_text())
    for version in options.brokers:
        matrix = try_broker(version, options.clients)
        _merge(document, version, matrix)
        _keep(document, options.output)
    for older, newer in () if "upgrades" in options.without else UPGRADES:
        with tempfile.TemporaryDirectory(prefix="sluice-matrix-") as folder:
            upgrade = rolling_upgrade(older, newer, Path(folder))
        others = [each for each in document["mixed"] if (each["older"], each["newer"]) != (older, newer)]
        document["mixed"] = [*others, upgrade]
        _keep(document, options.output)
    if "judges" not in options.without:
        with tempfile.TemporaryDirectory(prefix="sluice-matrix-") as folder:
            document["judges"] = judge(Path(folder))
        _keep(document, options.output)
    cells = [Cell(**row) for row in document["rows"]]
    print(summary(cells, document["leaks"]))
    judges = [Cell(**row) for row in document["judges"]["rows"]]
    failed = any(cell.verdict is Verdict.FAILS_THROUGH for cell in [*cells, *judges])
    leaked = document["leaks"] or document["judges"]["leaks"]
    return int(failed or bool(leaked) or any(map(found_fault, document["mixed"])))


def _merge(document: dict[str, Any], version: str, matrix: Matrix) -> None:
    """Replace a broker's earlier results with the new ones."""
    tried = {cell.client for cell in matrix.cells}
    rows = [row for row in document["rows"] if row["broker"] != version or row["client"] not in tried]
    rows += [asdict(cell) for cell in matrix.cells]
    names = {client.name: at for at, client in enumerate(clients(version))}
    rows.sort(
        key=lambda row: (
            BROKERS.index(row["broker"]),
            names.get(row["client"], 0) if row["broker"] == version else 0,
        )
    )
    document["rows"] = rows
    document["machine"] = describe_machine()
    document["dates"] = {
        broker: date
        for broker in BROKERS
        if (
            date := datetime.now(UTC).date().isoformat()
            if broker == version
            else document["dates"].get(broker)
        )
    }
    document["unavailable"] = {
        client: why for client, why in document["unavailable"].items() if client not in tried
    } | matrix.unavailable
    document["leaks"] = [leak for leak in document["leaks"] if not leak.startswith(version)] + matrix.leaks


def _keep(document: dict[str, Any], folder: Path) -> None:
    keep_results(document, page(document), folder, "matrix")


if __name__ == "__main__":
    sys.exit(main())
