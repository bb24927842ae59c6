"""``python -m benchmarks.upgrade``: clients connect all the time while the gateway is replaced and reloaded.

Clients open 200 connections a second, each with one request, to a gateway with a Kafka of one broker. A producer's
records must each arrive exactly once. Upgrades and reloads take turns. No connection may be refused or reset, and no
record lost: otherwise the exit code is 1.

With ``--from`` the first gateway is an earlier version, and its quotas must still exist at the end. The new version
is installed into its environment before the first upgrade, as docs/how-to/upgrade.md describes.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import yaml
from confluent_kafka import Consumer, Producer

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine
from benchmarks.relay.native_build import ROOT
from campaigns.serving import SLUICE, environment_of, serving
from embedded_kafka.kafka import KafkaCluster
from testkit.installed import Environment, build_wheel
from testkit.upgrade_load import Newcomers

RESULTS: Final = ROOT / "benchmarks" / "results"
_TOPIC: Final = "upgrades"
_HOST: Final = "127.0.0.1"
_PATIENCE_S: Final = 120.0
_QUOTAS: Final = """
quotas:
  - client_id: app
    producer_byte_rate: 1000000
  - user: alice
    consumer_byte_rate: 2000000
"""
"""In a format that every version can read."""
_LOST: Final = ("records_not_delivered", "records_missing", "records_twice")
_KEPT: Final = {
    "quotas": [
        {"user": "alice", "consumer_byte_rate": "2MB"},
        {"client-id": "app", "producer_byte_rate": "1MB"},
    ]
}


def main() -> int:
    """Run it, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrades", type=int, default=50)
    parser.add_argument("--reloads", type=int, default=100)
    parser.add_argument("--per-second", type=float, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--from", dest="earlier", metavar="REVISION", help="begin with the version of this revision of git"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, KafkaCluster() as kafka:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        begun_s = time.monotonic()
        found = _campaign(arguments, Path(directory), kafka.bootstrap)
        run = {
            "started": started,
            "seconds": round(time.monotonic() - begun_s),
            "machine": describe_machine(),
        }
    name = "upgrade" if arguments.workers == 1 else f"upgrade-workers{arguments.workers}"
    name += "-earlier" if arguments.earlier else ""
    keep_results(run | found, _page(found), arguments.output, name)
    print(_page(found))
    return int(
        any(found[name] for name in _LOST)
        or set(found["connects"]) != {"answered"}
        or not found["ready_at_the_end"]
        or not found.get("quotas_kept", True)
    )


def _campaign(arguments: argparse.Namespace, directory: Path, brokers: str) -> dict[str, Any]:
    port = random.randrange(20_000, 30_000, 16)
    admin = f"http://{_HOST}:{port + 1}"
    config = directory / "gateway.toml"
    config.write_text(
        f'[upstream]\nbootstrap = ["{brokers}"]\n'
        f'[[listeners]]\nname = "clients"\nbind = "{_HOST}:{port}"\n'
        f"first_broker_port = {port + 2}\nbroker_ports = 4\n"
        f'[admin]\nbind = "{_HOST}:{port + 1}"\n[drain]\ntimeout_ms = 3000\n[server]\nworkers = {arguments.workers}\n'
        f'[connections]\nmax_connections_per_ip = 5000\n[quota_store]\ndata_dir = "{directory / "data"}"\n'
    )
    random.seed(15)
    turns = ["upgrade"] * arguments.upgrades + ["reload"] * arguments.reloads
    random.shuffle(turns)
    earlier = _install(arguments.earlier, directory) if arguments.earlier else None
    sluice = earlier.programs / "sluice" if earlier else SLUICE
    versions = [_version(sluice)]
    pids: list[int] = []
    took_s: list[float] = []
    sent = 0
    with serving(config, admin=admin, log=directory / "gateway.log", sluice=sluice) as first:
        pids.append(first.pid)
        if earlier:
            (directory / "quotas.yaml").write_text(_QUOTAS)
            _run(sluice, "quotas", "import", "--admin", admin, str(directory / "quotas.yaml"))
        producer = Producer({"bootstrap.servers": f"{_HOST}:{port}", "enable.idempotence": True})
        newcomers = Newcomers((_HOST, port), per_s=arguments.per_second, threads=16)
        try:
            for turn in turns:
                if turn == "reload":
                    os.kill(pids[-1], signal.SIGHUP)
                    time.sleep(0.2)
                else:
                    if earlier and len(pids) == 1:
                        (directory / "new").mkdir()
                        earlier.install_sluice(build_wheel(directory / "new"))
                        versions.append(_version(sluice))
                    began_s = time.monotonic()
                    pids.append(int(_run(sluice, "upgrade", "--admin", admin).split()[1]))
                    took_s.append(time.monotonic() - began_s)
                    _wait_for_end(pids[-2], first)
                for _ in range(100):
                    producer.produce(_TOPIC, str(sent).encode())
                    sent += 1
                producer.poll(0)
            lost = producer.flush(60)
        finally:
            outcomes = newcomers.stop()
        found = _read_back(f"{_HOST}:{port}", sent)
        with urllib.request.urlopen(f"{admin}/readyz", timeout=5) as answer:
            ready = answer.status == 200
        kept = yaml.safe_load(_run(sluice, "quotas", "export", "--admin", admin)) if earlier else None
        if len(pids) > 1:
            os.kill(pids[-1], signal.SIGTERM)
            _wait_for_end(pids[-1], first)
    return {
        "workers": arguments.workers,
        **({"from": arguments.earlier} if earlier else {}),
        "upgrades": len(took_s),
        "reloads": arguments.reloads,
        "connects_per_s": arguments.per_second,
        "connects": dict(sorted(outcomes.items())),
        "upgrade_s": {"median": sorted(took_s)[len(took_s) // 2], "max": max(took_s)} if took_s else {},
        "records_sent": sent,
        "records_not_delivered": lost,
        "records_missing": len(set(range(sent)) - set(found)),
        "records_twice": len(found) - len(set(found)),
        "ready_at_the_end": ready,
        **({"versions": versions, "quotas_kept": kept == _KEPT} if earlier else {}),
    }


def _install(revision: str, directory: Path) -> Environment:
    """Install the revision into a new environment, with its locked packages."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    sources = directory / "earlier"
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(sources, filter="data")
    made = Environment(directory / "installed")
    made.install("--require-hashes", "-r", str(sources / "requirements.lock"))
    made.install("--no-deps", "--no-build-isolation", str(sources))
    return made


def _version(sluice: Path) -> str:
    return _run(sluice, "--version").strip()


def _run(sluice: Path, *words: str) -> str:
    return subprocess.run(
        [sluice, *words],
        env=environment_of(sluice),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=True,
    ).stdout


def _wait_for_end(pid: int, first: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while Path(f"/proc/{pid}").exists():
        first.poll()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"process {pid} does not end")
        time.sleep(0.05)


def _read_back(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "upgrade", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([_TOPIC])
    found: list[int] = []
    quiet = 0
    while quiet < (1 if len(found) >= count else 5):
        messages = consumer.consume(1_000, timeout=3)
        found += [int(message.value() or b"") for message in messages if message.error() is None]
        quiet = 0 if messages else quiet + 1
    consumer.close()
    return found


def _page(found: dict[str, Any]) -> str:
    outcomes = ", ".join(
        f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in found["connects"].items()
    )
    took = found["upgrade_s"]
    shown = found | {
        "connects": outcomes,
        "upgrade_s": f"median {took['median']:.1f}, longest {took['max']:.1f}",
    }
    rows = "\n".join(f"| {name.replace('_', ' ')} | {_value(value)} |" for name, value in shown.items())
    lost = sum(found[name] for name in _LOST)
    return (
        "# Upgrades under load\n\n"
        "Clients connect, send one request and close, while others produce. Every connect must be answered, and\n"
        "every record must be in the topic once. Made by\n"
        f"`python -m benchmarks.upgrade --workers {found['workers']} --upgrades {found['upgrades']} "
        f"--reloads {found['reloads']}{' --from ' + found['from'] if 'from' in found else ''}`.\n\n"
        f"**{sum(found['connects'].values()):,} connects: {outcomes}; {found['records_sent']:,} records, {lost} lost "
        f"or twice**\n\n| | |\n|---|---|\n{rows}\n"
    )


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main())
