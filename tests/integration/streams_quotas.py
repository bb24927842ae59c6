"""Applications of Kafka Streams under a mutation quota, through the gateway and directly under the broker's own.

``python -m tests.integration.streams_quotas`` runs each version of Streams with each protocol and quota, and keeps
benchmarks/results/streams.md. It ends with 1 if an application through the gateway fails, counts wrongly, or has
other internal topics than the same application directly. `test_streams.py` has a short form.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import confluent_kafka

from campaigns.serving import serving
from embedded_kafka.jars import streams_class_path
from embedded_kafka.kafka import KafkaCluster
from testkit.gateway import free_ports
from testkit.wire_client import WireClient
from tests.integration.conftest import eventually
from tests.integration.java_programs import java_program

VERSIONS: Final = ("4.2.2", "4.3.1", "4.4.0")
PROTOCOLS: Final = ("classic", "streams")
INPUT: Final = "quotas-input"
PARTITIONS: Final = 6
"""Of the input, thus of two repartition topics and two changelogs: 24 of one application."""
INTERNAL: Final = 4 * PARTITIONS
KEYS: Final = 3
EACH: Final = 10
"""Records of each key."""
LARGE: Final = 100.0
CHANGED_AFTER_S: Final = 20.0
_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Quota:
    """A controller_mutation_rate, and the one that takes its place after `CHANGED_AFTER_S`, if any does."""

    name: str
    rate: float
    later: float | None = None

    @property
    def text(self) -> str:
        """As the page says it."""
        return f"{self.name}: {self.rate:g}" + ("" if self.later is None else f", then {self.later:g}")


QUOTAS: Final = (
    Quota("large enough", LARGE),
    Quota("too small", 0.5),
    Quota("too small, then raised", 0.1, LARGE),
    Quota("large, then too small", LARGE, 0.1),
)


@dataclass(slots=True)
class Application:
    """One application.

    Attributes:
        name: of it, of its output, and at the beginning of its client ids and internal topics.
        protocol: of its group.
        path: "direct" or "gateway".
        quota: of its clients.
        counts: key -> the largest count in its output.
        seconds: from its start until all records were counted; None: they were not.
        failure: what ended it.
        topics: its internal topics without its name -> partitions.
    """

    name: str
    protocol: str
    path: str
    quota: Quota
    counts: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    seconds: float | None = None
    failure: str = ""
    topics: dict[str, int] = field(default_factory=dict)

    @property
    def clients(self) -> tuple[str, str]:
        """The client ids that create topics: of the admin client, and of the member of the group."""
        return f"{self.name}-admin", f"{self.name}-StreamThread-1-consumer"

    def row(self) -> dict[str, object]:
        """What is kept of it."""
        return {
            "protocol": self.protocol,
            "path": self.path,
            "quota": self.quota.name,
            "seconds": self.seconds,
            "failure": self.failure,
            "counts": {key.decode(): count for key, count in sorted(self.counts.items())},
            "topics": self.topics,
        }

    @property
    def whole(self) -> bool:
        """Whether all records were counted."""
        return len(self.counts) == KEYS and all(count == EACH for count in self.counts.values())


def applications(quotas: Sequence[Quota] = QUOTAS) -> list[Application]:
    """One for each protocol, path and quota."""
    return [
        Application(f"{protocol}-{path}-{at}", protocol, path, quota)
        for protocol in PROTOCOLS
        for path in ("direct", "gateway")
        for at, quota in enumerate(quotas)
    ]


def set_quota(address: tuple[str, int], app: Application, rate: float) -> None:
    """Give the clients of an application a quota, at the broker or at the gateway."""
    entries = [
        {
            "entity": [{"entity_type": "client-id", "entity_name": client_id}],
            "ops": [{"key": "controller_mutation_rate", "value": rate, "remove": False}],
        }
        for client_id in app.clients
    ]
    with WireClient(address) as client:
        body = client.ask("AlterClientQuotas", 1, entries=entries, validate_only=False).body
    assert all(entry.error_code == 0 for entry in body.entries), body


def run_applications(
    folder: Path,
    kafka: KafkaCluster,
    gateway: tuple[str, int],
    apps: Sequence[Application],
    *,
    version: str,
    within_s: float = _WITHIN_S,
) -> None:
    """Run them together until each has counted everything or failed; they have the results afterwards."""
    broker = kafka.brokers[1]
    ways = {"direct": (broker, kafka.bootstrap), "gateway": (gateway, f"{gateway[0]}:{gateway[1]}")}
    with WireClient(broker) as client:
        wanted = {INPUT: PARTITIONS} | dict.fromkeys((app.name for app in apps), 1)
        topics = [{"name": name, "num_partitions": n, "replication_factor": 1} for name, n in wanted.items()]
        client.ask("CreateTopics", 7, topics=topics, timeout_ms=30_000)
        eventually(lambda: wanted.keys() <= _partitions(client).keys())
        for app in apps:
            set_quota(ways[app.path][0], app, app.quota.rate)
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(KEYS * EACH):
            producer.produce(INPUT, key=b"k%d" % (number % KEYS), value=b"x")
        assert producer.flush(60) == 0
        named = [word for app in apps for word in (ways[app.path][1], app.protocol, app.name)]
        command = java_program(
            "StreamsQuotas",
            [str(folder / "state"), INPUT, *named],
            more_jars=streams_class_path(version),
            version=version,
        )
        output = folder / "applications.log"
        with (
            output.open("w") as log,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT) as running,
        ):
            try:
                _await(kafka, ways, apps, output, within_s)
                running.communicate(b"\n", timeout=60)
            finally:
                running.kill()
        for app in apps:
            start = f"{app.name}-"
            found = {name: n for name, n in _partitions(client).items() if name.startswith(start)}
            app.topics = {name.removeprefix(start): n for name, n in found.items()}


def _partitions(client: WireClient) -> dict[str, int]:
    topics = client.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False).body.topics
    return {topic.name: len(topic.partitions) for topic in topics}


def _await(
    kafka: KafkaCluster,
    ways: Mapping[str, tuple[tuple[str, int], str]],
    apps: Iterable[Application],
    output: Path,
    within_s: float,
) -> None:
    """Read the outputs, and change quotas in between."""
    begin_s = time.monotonic()
    reading = {"bootstrap.servers": kafka.bootstrap, "group.id": "streams-quotas", "auto.offset.reset": "earliest"}
    reader = confluent_kafka.Consumer({**reading, "enable.auto.commit": False})
    by_name = {app.name: app for app in apps}
    unchanged = [app for app in by_name.values() if app.quota.later is not None]
    try:
        reader.subscribe(list(by_name))
        while any(app.seconds is None and not app.failure for app in by_name.values()):
            elapsed_s = time.monotonic() - begin_s
            if elapsed_s > within_s:
                return
            if unchanged and elapsed_s > CHANGED_AFTER_S:
                for app in unchanged:
                    set_quota(ways[app.path][0], app, app.quota.later or 0.0)
                unchanged = []
            for message in reader.consume(100, timeout=0.2):
                assert message.error() is None, message.error()
                app, key = by_name[message.topic()], message.key()
                app.counts[key] = max(app.counts[key], int(message.value()))
                if app.whole and app.seconds is None:
                    app.seconds = round(time.monotonic() - begin_s, 1)
            for line in output.read_text().splitlines():
                name, _, why = line.partition(" failed: ")
                if why and name in by_name:
                    by_name[name].failure = why
    finally:
        reader.close()


def findings(apps: Sequence[Application]) -> list[str]:
    """What is wrong with the applications through the gateway."""
    found = []
    direct = {app.protocol: app for app in apps if app.path == "direct" and app.whole}
    for app in apps:
        if app.path != "gateway":
            continue
        other = direct.get(app.protocol)
        if app.failure or not app.whole:
            found.append(f"{app.name}: {app.failure or 'not everything was counted'}")
        if sum(app.topics.values()) != INTERNAL or (other is not None and app.topics != other.topics):
            found.append(f"{app.name}: its topics are {app.topics}")
    return found


def gateway_configuration(first_port: int, broker: str, folder: Path) -> str:
    """As TOML; its ports are that of the listener, that of the broker, and the admin port."""
    return f"""\
[upstream]
bootstrap = ["{broker}"]
[[listeners]]
name = "streams"
bind = "127.0.0.1:{first_port}"
first_broker_port = {first_port + 1}
lowest_broker_id = 1
broker_ports = 1
[admin]
bind = "127.0.0.1:{first_port + 2}"
[quota_store]
data_dir = "{folder / "data"}"
[quota_admin]
authorize = "anyone"
"""


def run_version(version: str) -> list[Application]:
    """All applications of one version of Streams, with a broker and a gateway of their own."""
    apps = applications()
    with tempfile.TemporaryDirectory(prefix="sluice-streams-") as name, KafkaCluster() as kafka:
        folder, port = Path(name), free_ports(3)
        file = folder / "gateway.toml"
        file.write_text(gateway_configuration(port, str(kafka.brokers[1]), folder))
        with serving(file, admin=f"http://127.0.0.1:{port + 2}", log=folder / "gateway.log"):
            run_applications(folder, kafka, ("127.0.0.1", port), apps, version=version)
    return apps


def _page(rows: Sequence[Mapping[str, object]], wrong: Sequence[str]) -> str:
    lines = [
        "# Kafka Streams under a mutation quota",
        "",
        "`python -m tests.integration.streams_quotas`. Each application has two repartition topics and two",
        f"changelogs with {PARTITIONS} partitions each ({INTERNAL} in total), one thread, and {KEYS * EACH} records.",
        "Its clients have a `controller_mutation_rate`: at a broker of Kafka 4.4.0, or at the gateway before",
        f"it. The burst is eleven seconds of the rate. A quota that changes does so {CHANGED_AFTER_S:g} s after",
        "the start. All applications of one version run at the same time in one process.",
        "The figures are the seconds until all records are counted.",
        "",
        f"**{len(rows) // 2} pairs of applications, {len(wrong)} findings.**",
        "",
        "| Streams | protocol | quota, partitions/s | direct, s | gateway, s |",
        "|---|---|---|---|---|",
    ]
    pairs: dict[tuple[object, ...], dict[object, str]] = defaultdict(dict)
    for row in rows:
        told = row["failure"] or row["seconds"] or f"not in {_WITHIN_S:g} s"
        pairs[row["version"], row["protocol"], row["quota"]][row["path"]] = str(told)
    rates = {each.name: each.text for each in QUOTAS}
    lines += [
        f"| {version} | {protocol} | {rates[str(quota)]} | {told['direct']} | {told['gateway']} |"
        for (version, protocol, quota), told in pairs.items()
    ]
    return "\n".join(lines + [f"* {each}" for each in wrong]) + "\n"


def _raw(document: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> str:
    """Rows one to a line, so that a new run gives a readable difference."""
    body = ",\n  ".join(json.dumps(row) for row in rows)
    return f'{json.dumps(document, indent=1)[:-2]},\n "rows": [\n  {body}\n ]\n}}\n'


def main() -> int:
    """All versions; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    wrong: list[str] = []
    document: dict[str, object] = {
        "command": "python -m tests.integration.streams_quotas",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg(),
    }
    for version in arguments.versions:
        apps = run_version(version)
        wrong += [f"Streams {version}, {each}" for each in findings(apps)]
        rows += [{"version": version, **app.row()} for app in apps]
    page = _page(rows, wrong)
    (arguments.output / "streams.json").write_text(_raw(document, rows))
    (arguments.output / "streams.md").write_text(page)
    print(page)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
