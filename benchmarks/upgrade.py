"""``python -m benchmarks.upgrade``: clients connect all the time while the gateway is replaced and reloaded.

200 connects a second, each with one request, before a Kafka of one broker; a producer whose records must all be there
once. Upgrades and reloads take turns. Nothing may be refused, reset or lost: 1 when something was.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine
from benchmarks.relay.native_build import ROOT
from campaigns.serving import serving
from embedded_kafka.kafka import KafkaCluster
from testkit.upgrade_load import Newcomers

RESULTS: Final = ROOT / "benchmarks" / "results"
_SLUICE: Final = Path(sys.executable).with_name("sluice")
_TOPIC: Final = "upgrades"
_HOST: Final = "127.0.0.1"
_PATIENCE_S: Final = 120.0


def main() -> int:
    """Run it, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrades", type=int, default=50)
    parser.add_argument("--reloads", type=int, default=100)
    parser.add_argument("--per-second", type=float, default=200)
    parser.add_argument("--workers", type=int, default=1)
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
    keep_results(run | found, _page(found), arguments.output, name)
    print(_page(found))
    wrong = [found[name] for name in ("records_not_delivered", "records_missing", "records_twice")]
    return int(any(wrong) or set(found["connects"]) != {"answered"} or not found["ready_at_the_end"])


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
    pids: list[int] = []
    took_s: list[float] = []
    sent = 0
    with serving(config, admin=admin, log=directory / "gateway.log") as first:
        pids.append(first.pid)
        producer = Producer({"bootstrap.servers": f"{_HOST}:{port}", "enable.idempotence": True})
        newcomers = Newcomers((_HOST, port), per_s=arguments.per_second, threads=16)
        try:
            for turn in turns:
                if turn == "reload":
                    os.kill(pids[-1], signal.SIGHUP)
                    time.sleep(0.2)
                else:
                    began_s = time.monotonic()
                    pids.append(_upgrade(admin))
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
        if len(pids) > 1:
            os.kill(pids[-1], signal.SIGTERM)
            _wait_for_end(pids[-1], first)
    return {
        "workers": arguments.workers,
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
    }


def _upgrade(admin: str) -> int:
    command = [str(_SLUICE), "upgrade", "--admin", admin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    return int(done.stdout.split()[1])


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
    rows = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in found.items())
    return (
        "# Upgrades under load\n\n"
        "Newcomers connect, ask once and close; `answered` is all that may happen to them. Made by\n"
        f"`python -m benchmarks.upgrade --workers {found['workers']} --upgrades {found['upgrades']} "
        f"--reloads {found['reloads']}`.\n\n"
        f"| | |\n|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
