"""`make demo`: two minutes of load through the gateway, then from records to new quotas.

Every step is a command of the product. It is printed before it runs, so that you can repeat it by hand. The results
stay in the folder: records, compacted days, the plan, and the report's page.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.demo.load import Load
from campaigns.serving import NotReadyError, serving
from embedded_kafka.kafka import KafkaCluster

_HOST: Final = "127.0.0.1"
_STEP_TIMEOUT_S: Final = 300.0
_FOLDER: Final = Path(".cache/demo")
_CONFIG_NAME: Final = "sluice-demo.toml"
_CONFIG: Final = """\
[upstream]
bootstrap = ["{bootstrap}"]

[[listeners]]
name = "clients"
bind = "{host}:{port}"

[admin]
bind = "{host}:{admin_port}"

[log]
level = "warning"

[usage]
kind = "files"
directory = "{folder}/usage"
gateway_id = "demo"
rotate_seconds = 10

[quota_store]
data_dir = "{folder}/store"

# For a demonstration on one's own machine. Elsewhere: a list of admins.
[quota_admin]
authorize = "anyone"

# What everybody gets who has nothing of its own.
[[quotas]]
default_client_id = true
producer_byte_rate = 150_000
consumer_byte_rate = 1_000_000
controller_mutation_rate = 1.0
"""


class StepError(Exception):
    """A command of the demonstration failed; its output is on the terminal."""


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="how long there is load (120)")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="what is left (%(default)s)")
    parser.add_argument("--port", type=int, default=19092, help="of the gateway (19092)")
    parser.add_argument("--admin-port", type=int, default=19644, help="of its metrics (19644)")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    theirs = folder != _FOLDER and folder.exists() and any(folder.iterdir())
    if theirs and not (folder / _CONFIG_NAME).exists():
        print(f"demo: {folder} holds something else than an earlier demonstration", file=sys.stderr)
        return 2
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print("starting a Kafka ...", flush=True)
    with KafkaCluster() as kafka:
        config = folder / _CONFIG_NAME
        config.write_text(
            _CONFIG.format(
                bootstrap=kafka.bootstrap,
                host=_HOST,
                port=arguments.port,
                admin_port=arguments.admin_port,
                folder=folder,
            )
        )
        command = ["sluice", "serve", "--config", str(config)]
        print(f"$ {shlex.join(command)} &", flush=True)
        admin = f"{_HOST}:{arguments.admin_port}"
        try:
            with serving(config, admin=f"http://{admin}"):
                _run(folder, f"{_HOST}:{arguments.port}", admin, arguments.seconds)
        except (StepError, NotReadyError) as exc:
            print(f"demo: {exc}", file=sys.stderr)
            return 1
    page = folder / "report" / "index.html"
    print(f"\nThe report: {page.resolve().as_uri()}")
    return 0


def _run(folder: Path, bootstrap: str, admin: str, seconds: int) -> None:
    load = Load(bootstrap)
    load.start()
    print(f"load for {seconds} seconds ...", flush=True)
    time.sleep(seconds)
    load.stop()
    for text, count in sorted(load.notes.items()):
        print(f"  {count} {text}")
    _await_records(folder / "usage")
    out = str(folder / "pipeline")
    plan = str(folder / "plan.json")
    _step("sluice", "usage", str(folder / "usage"))
    _step("sluice-pipeline", "ingest", "--from", f"files:{folder / 'usage'}", "--out", out)
    print(
        "\nToday is not over, and quotas are made of whole days: --allow-open overrides that, for a demonstration.",
        flush=True,
    )
    _step("sluice-pipeline", "compact", "--out", out, "--allow-open")
    _step("sluice-pipeline", "recommend", "--out", out, "--history", "1", "--allow-open", "--plan", plan)
    _step("sluice-pipeline", "report", "--out", out, "--to-dir", str(folder / "report"), "--plan", plan)
    _step("sluice-pipeline", "plan", "show", plan)
    _step("sluice-pipeline", "plan", "diff", plan, "--bootstrap", bootstrap)
    _step("sluice-pipeline", "plan", "apply", plan, "--bootstrap", bootstrap)
    _step("sluice", "quotas", "history", "--admin", admin)


def _program(name: str) -> str:
    """A program of this environment, whether or not it is on the path."""
    return str(Path(sys.executable).with_name(name))


def _step(name: str, *arguments: str) -> None:
    print(f"\n$ {shlex.join([name, *arguments])}", flush=True)
    ended = subprocess.run([_program(name), *arguments], timeout=_STEP_TIMEOUT_S, check=False)
    if ended.returncode:
        raise StepError(f"{name} {arguments[0]} ended with {ended.returncode}")


def _await_records(folder: Path) -> None:
    """Wait until the file that was being written when the load ended is complete."""
    ended = time.time()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any(file.stat().st_mtime > ended for file in folder.glob("usage-*")):
            return
        time.sleep(0.5)
    raise StepError(f"no records in {folder}")


if __name__ == "__main__":
    sys.exit(main())
