"""``python -m benchmarks.fidelity_campaign``: a long `campaigns.fidelity.comparison`, through ingest and compact.

There are a hundred clients: producers, consumers, clients with a request-time quota, and addresses with a connection
quota. A third of them has three connections. They run twice: 12 minutes. Exit code 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Final
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.fidelity.comparison import (
    BYTES,
    SHARE_BOUND,
    TIME_BOUND,
    Admin,
    Client,
    Seen,
    Verdict,
    compare,
    drive,
    fill_topic,
    interval,
    mixed_clients,
    producers,
    quota_tables,
    source_of,
)
from campaigns.fidelity.truth import Errors, errors, replayed, truth_of
from campaigns.serving import serving
from embedded_kafka import jars
from embedded_kafka.kafka import KafkaCluster
from pipeline.cli import main as pipeline
from pipeline.storage.compacted_days import CompactedDays
from quotas.usage_record import UsageApi
from testkit.gateway import free_ports
from testkit.wire_client import WireClient

COMPUTED_S: Final = 1_800.0
LATE_MS: Final = 2.0
RESULTS: Final = Path(__file__).resolve().parent / "results"
ADMINS: Final = (
    Admin("fidelity-new", 1.0, 7, 1.0),
    Admin("fidelity-old", 1.0, 5, 1.0),
    Admin("fidelity-new-over", 0.5, 7, 0.5),
)


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity_campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="fidelity-") as folder:
        verdict = run(Path(folder), options.clients, options.seconds, options.seed)
    with tempfile.TemporaryDirectory(prefix="fidelity-") as folder:
        again = run(Path(folder), options.clients, options.seconds, options.seed)
    computed = in_computed_time(options.clients, options.seed)
    document = {
        "command": f"python -m benchmarks.fidelity_campaign --seconds {options.seconds:g} "
        f"--clients {options.clients} --seed {options.seed}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_average_after": load_average()},
        "share_error": verdict.share_error,
        "share_error_interval": interval(verdict.share_errors(*BYTES)),
        "time_error": verdict.time_error,
        "again": [asdict(row) for row in again.rows],
        "mutations_exact": verdict.mutations_exact,
        "computed": {
            count: {name: asdict(each) for name, each in found.items()} for count, found in computed.items()
        },
        "rows": [asdict(row) for row in verdict.rows],
    }
    page = render(document, verdict, again, mixed_clients(options.clients, seed=options.seed))
    keep_results(document, page, options.output, "fidelity")
    print(page)
    return int(not met(verdict))


def met(verdict: Verdict) -> bool:
    """Whether all bounds hold."""
    within = verdict.share_error <= SHARE_BOUND and verdict.time_error <= TIME_BOUND
    return within and verdict.mutations_exact


def run(folder: Path, clients: int, seconds: float, seed: int) -> Verdict:
    """Run a cluster, a gateway, the load and the pipeline, and judge the results."""
    chosen = mixed_clients(clients, seed=seed)
    usage, out = folder / "usage", folder / "out"
    port = free_ports(4)
    with ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster(1, jvm_options=jars.QUICK_START))
        brokers = ", ".join(f'"{address}"' for address in cluster.brokers.values())
        file = folder / "gateway.toml"
        file.write_text(
            f'[upstream]\nbootstrap = [{brokers}]\n[[listeners]]\nname = "fidelity"\nbind = "127.0.0.1:{port}"\n'
            f"first_broker_port = {port + 1}\nlowest_broker_id = 1\nbroker_ports = 2\n"
            f'[admin]\nbind = "127.0.0.1:{port + 3}"\n[quota_store]\nkind = "memory"\n'
            f'[usage]\nkind = "files"\ndirectory = "{usage}"\ngateway_id = "fidelity"\nrotate_seconds = 30\n'
            + quota_tables(chosen, ADMINS)
        )
        admin = f"http://127.0.0.1:{port + 3}"
        stack.enter_context(serving(file, admin=admin, log=folder / "gateway.log"))
        fill_topic(f"127.0.0.1:{port}", partial(_connect, port))
        seen = drive(partial(_connect, port), chosen, ADMINS, seconds=seconds, seed=seed)
        counted = _metrics(admin, seen)
    for argv in (
        ["ingest", "--from", f"files:{usage}", "--out", str(out)],
        ["compact", "--out", str(out), "--date", "all", "--allow-open"],
    ):
        if pipeline(argv) != 0:
            raise RuntimeError(f"{argv[0]} failed")
    found = CompactedDays.of(None, str(out))
    if len(found.days) != 1:
        raise RuntimeError("the run went over midnight (UTC): start it again")
    table = pa.concat_tables([pq.ParquetFile(path).read() for path in sorted(found.paths)])
    (batch,) = table.combine_chunks().to_batches()
    return compare(batch, chosen, ADMINS, seen, lambda name, client: counted.get((name, client), 0.0))


def _connect(port: int, client_id: str) -> WireClient:
    return WireClient(("127.0.0.1", port), client_id=client_id, timeout_s=120, source=source_of(client_id))


def _metrics(admin: str, seen: dict[str, Seen]) -> dict[tuple[str, str], float]:
    with urlopen(f"{admin}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels["client_id"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("client_id") in seen
    }


def in_computed_time(clients: int, seed: int) -> dict[str, dict[str, Errors]]:
    """Errors of the replay, and of a second run a moment later, for clients in simulated time.

    They are grouped by the clients' number of connections. Requests of clients with several connections are as large
    as in `mixed_clients`.
    """
    found = {}
    for connections, times in ((1, 1), (3, 5)):
        chosen = [
            replace(client, connections=connections, request_bytes=times * client.request_bytes)
            for client in producers(clients, seed=seed)
        ]
        truths = [truth_of(client, seconds=COMPUTED_S, seed=seed) for client in chosen]
        later = [truth_of(client, seconds=COMPUTED_S, seed=seed, late_ms=LATE_MS) for client in chosen]
        found[str(connections)] = {
            "replay": errors(truths, replayed(chosen, truths)),
            "themselves": errors(truths, [(each.share, each.told_ms) for each in later]),
        }
    return found


def off_again(verdict: Verdict, again: Verdict, *apis: UsageApi) -> list[float]:
    """Differences between the gateway's shares in a second run of the same clients and in the first."""
    second = {(row.api, row.client_id): row.truth_share for api in apis for row in again.of(api)}
    return [
        abs(row.truth_share - second.get((row.api, row.client_id), 0.0))
        for api in apis
        for row in verdict.of(api)
    ]


def _interval(verdict: Verdict, *apis: UsageApi) -> str:
    low, high = interval(verdict.share_errors(*apis))
    return f"{low:.2%} to {high:.2%}"


def render(document: dict[str, Any], verdict: Verdict, again: Verdict, chosen: Sequence[Client]) -> str:
    """The page."""
    machine = document["machine"]
    lines = [
        "# What simulate says, and what the gateway did",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}; load average before "
        f"{machine['load_average_before']}, after {machine['load_average_after']}.",
        "",
        f"**Mutations: {'refused or throttled exactly as often' if verdict.mutations_exact else 'NOT as often'}. "
        f"Bytes: the share of throttled requests is off by {verdict.share_error:.2%} (mean; "
        f"{_interval(verdict, *BYTES)} with 95 % probability, had other such clients been drawn), the sum of the "
        "times "
        f"reported by {verdict.time_error:.1%} (median).** Bounds: exact; {SHARE_BOUND:.0%}; {TIME_BOUND:.0%}: "
        f"{'met' if met(verdict) else 'missed'}.",
        "",
        f"The same clients once more, through the same gateway: in the second run simulate is off by "
        f"{again.share_error:.2%}, and the gateway itself by {mean(off_again(verdict, again, *BYTES)):.2%} from its "
        "first run.",
        "",
        "| API | clients | off by, mean | 95 % interval | too many, mean | second run | gateway beside itself |",
        "|---|---|---|---|---|---|---|",
    ]
    for api in UsageApi:
        if rows := verdict.of(api):
            errors_, more = verdict.share_errors(api), mean(row.share - row.truth_share for row in rows)
            lines.append(
                f"| {api} | {len(rows)} | {mean(errors_):.2%} | {_interval(verdict, api)} | {more:+.2%} "
                f"| {mean(again.share_errors(api)):.2%} | {mean(off_again(verdict, again, api)):.2%} |"
            )
    several = {client.client_id for client in chosen if client.connections > 1}
    by_count: dict[bool, list[float]] = {}
    for row in (row for api in BYTES for row in verdict.of(api)):
        by_count.setdefault(row.client_id in several, []).append(abs(row.share - row.truth_share))
    lines.append("")
    lines += [
        f"Bytes of {len(found)} clients of {'three connections' if many else 'one connection'}: "
        f"{mean(found):.2%} (mean; {'{:.2%} to {:.2%}'.format(*interval(found))}).\n"
        for many, found in sorted(by_count.items())
    ]
    lines += [
        "Refused connections are shares of all connections.",
        "",
        "| client | API | quota | requests | throttled: gateway | simulate | throttle time (s): gateway | simulate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.client_id} | {row.api} | {row.quota:g} | {row.requests:.0f} | {row.truth_share:.2%} "
        f"| {row.share:.2%} | {row.truth_ms / 1000:.2f} | {row.wait_ms / 1000:.2f} |"
        for api in UsageApi
        for row in verdict.of(api)
    ]
    lines += [
        "",
        f"Without a machine in between (`campaigns.fidelity.truth`: {len(chosen)} producers for "
        f"{COMPUTED_S:g} s in computed time, request by request), the replay of their seconds, and the very same "
        f"clients, each request up to {LATE_MS:g} ms later, beside themselves: no record could be more exact.",
        "",
        "| connections | share: replay | themselves | throttle times: replay | themselves |",
        "|---|---|---|---|---|",
    ]
    for count, found in document["computed"].items():
        replay, themselves = found["replay"], found["themselves"]
        lines.append(
            f"| {count} | {replay['share']:.2%} | {themselves['share']:.2%} "
            f"| {replay['time']:.1%} | {themselves['time']:.1%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
