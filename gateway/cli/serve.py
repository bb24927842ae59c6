"""``sluice serve``: runs the gateway, before the user's cluster or before an embedded Kafka."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

import config
from config.loader import DEFAULT_BIND
from config.sections.admin import AdminSettings
from config.sections.log import LogSettings
from config.sections.quota_admin import Authorize, QuotaAdminSettings
from config.sections.server import MAX_WORKERS, ServerSettings
from gateway.observability.logging_setup import report_suppressed, setup
from gateway.runtime.compiled_core import stale_modules
from gateway.server.handover_link import DESCRIPTOR

# What to try with the embedded Kafka: a quota small enough for one command to use up.
_DEMO_CLIENT_ID: Final = "demo"
_DEMO_RATE: Final = 1
_DEMO_PARTITIONS: Final = 60
_DEMO_PORTS: Final = (DEFAULT_BIND, AdminSettings().bind)
_DEMO_RIGHTS: Final = QuotaAdminSettings(authorize=Authorize.ANYONE)


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway until SIGTERM or Ctrl-C. Without --config and --upstream it first starts a "
        "Kafka of its own, for trying things out. This needs Java and Maven. The first start downloads Kafka's "
        "jars. All topics and quotas of this Kafka are deleted at the end.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration file (TOML)")
    parser.add_argument(
        "--upstream",
        metavar="HOST:PORT[,...]",
        type=_bootstrap,
        nargs="+",
        action="extend",
        help="brokers of the cluster; overrides the configuration file",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=_workers,
        help="number of processes that serve clients, or auto; overrides the configuration file",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal; 2 when it can't begin."""
    if DESCRIPTOR not in os.environ:
        return _run(arguments)
    # This process replaces another one, which learns why this one can't.
    from gateway.server.predecessor import tell_failure

    reasons = _Reasons(sys.stderr)
    sys.stderr = reasons
    code = 1
    try:
        code = _run(arguments)
    except config.ConfigError as exc:
        reasons.lines += exc.lines
        raise
    except Exception as exc:
        reasons.lines.append(f"{type(exc).__name__}: {exc}")
        raise
    finally:
        if code:
            tell_failure(os.environ, "; ".join(reasons.lines) or f"exit code {code}")
    return code


class _Reasons(io.TextIOBase):
    """Standard error, whose lines for people are kept."""

    def __init__(self, stream: TextIO) -> None:
        self.lines: list[str] = []
        self._stream = stream

    def write(self, text: str) -> int:
        if text.startswith("sluice: "):
            self.lines.append(text.removeprefix("sluice: ").strip())
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()


def _run(arguments: argparse.Namespace) -> int:
    brokers = tuple(broker for brokers in arguments.upstream or () for broker in brokers)
    if arguments.config is None and not brokers:
        if DESCRIPTOR in os.environ:
            print("sluice: a gateway with a Kafka of its own cannot be upgraded", file=sys.stderr)
            return 2
        return _serve_embedded(arguments.workers)
    if arguments.config is None:
        found = _with_workers(config.default_config(brokers), arguments.workers)
        return _serve(found, banner=short_banner(found))

    def read() -> config.Config:
        from_file = config.load(arguments.config)
        found = config.replace_upstream(from_file, brokers) if brokers else from_file
        return _with_workers(found, arguments.workers)

    found = read()
    return _serve(found, banner=short_banner(found), read=read)


def _bootstrap(text: str) -> tuple[config.HostPort, ...]:
    try:
        return config.parse_bootstrap(text)
    except config.ConfigError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _workers(text: str) -> ServerSettings:
    try:
        return ServerSettings(workers="auto" if text == "auto" else int(text))
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f'must be a number up to {MAX_WORKERS}, or "auto"') from exc


def _with_workers(found: config.Config, wanted: ServerSettings | None) -> config.Config:
    return found if wanted is None else found.model_copy(update={"server": wanted})


def _serve(found: config.Config, *, banner: str, read: Callable[[], config.Config] | None = None) -> int:
    # Checking a file or asking for help must not wait for a server's worth of imports.
    from gateway import app
    from gateway.server.operations import ConfigSource, log_findings

    stale = stale_modules()
    if stale:
        print(
            f"sluice: {', '.join(stale)} changed since the compiled core was built: build it again (make compiled)",
            file=sys.stderr,
        )
        return 2
    limiter = setup(found.log.level, found.log.format)
    log_findings(config.findings(found))

    def set_log(log: LogSettings) -> None:
        setup(log.level, log.format, limiter=limiter)

    try:
        return app.run(found, banner=banner, source=ConfigSource(read, set_log) if read else None)
    finally:
        report_suppressed(limiter)


def _serve_embedded(workers: ServerSettings | None) -> int:
    from embedded_kafka.kafka import KafkaCluster, KafkaStartError
    from pinned_jars import FetchError, MissingProgramError

    # Until the gateway takes the signal over, a stop must still clean up behind the brokers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for address in _DEMO_PORTS:
        try:
            # Closed at once. Kafka takes seconds to start, and minutes to fetch.
            socket.create_server((address.host, address.port)).close()
        except OSError as exc:
            print(f"sluice: cannot listen on {address}: {os.strerror(exc.errno or 0)}", file=sys.stderr)
            return 2
    print("no --upstream and no --config: starting an embedded Kafka ...", flush=True)
    cluster = KafkaCluster()
    try:
        cluster.start()
        brokers = config.parse_bootstrap(cluster.bootstrap)
        found = _with_workers(config.default_config(brokers, quota_admin=_DEMO_RIGHTS), workers)
        # What is tried out goes with the Kafka it was tried on.
        store = found.quota_store.model_copy(update={"data_dir": str(cluster.directory / "gateway")})
        usage = found.usage.model_copy(
            update={"kind": "files", "directory": str(cluster.directory / "usage"), "rotate_seconds": 10}
        )
        found = found.model_copy(update={"quota_store": store, "usage": usage})
        return _serve(found, banner=demo_banner(found))
    except (MissingProgramError, FetchError, KafkaStartError) as exc:
        print(f"sluice: {exc}", file=sys.stderr)
        return 2
    finally:
        # The gateway has drained; a second Ctrl-C must not leave data behind. Stopping is bounded in time.
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
        cluster.stop()


def short_banner(found: config.Config) -> str:
    """Where clients come in, where they go to, and where the numbers are."""
    listeners = ", ".join(f"{listener.name} {listener.bind}" for listener in found.listeners)
    return (
        f"sluice: listeners {listeners}; upstream {found.upstream.brokers}; "
        f"metrics {found.admin.url}/metrics; stop with Ctrl-C or SIGTERM"
    )


def demo_banner(found: config.Config) -> str:
    """What to try with the embedded Kafka; every command can be pasted into a shell."""
    gateway = found.listeners[0].bind
    python = _program(Path(sys.executable))
    sluice = _program(Path(sys.executable).parent / "sluice")
    server = f"--bootstrap-server {gateway}"
    client = f"--entity-type clients --entity-name {_DEMO_CLIENT_ID}"
    setting = f"--add-config controller_mutation_rate={_DEMO_RATE}"
    demo = f"{python} -m kafka.admin -b {gateway} -C client_id={_DEMO_CLIENT_ID} topics create"
    create = f"{demo} -t {{}} --num-partitions {_DEMO_PARTITIONS} --replication-factor 1 | tail -3"
    return f"""
Kafka {found.upstream.bootstrap[0]} is behind the gateway; clients use {gateway}.
Every client may change quotas. Topics and quotas are deleted at the end. More: docs/how-to/set-quotas.md.

Try, in another shell (kafka-tool runs Kafka's own tools):
  a topic             {sluice} kafka-tool kafka-topics {server} --create --topic hello
  write to it         echo hi | {python} -m kafka.producer -b {gateway} -t hello
  read until Ctrl-C   {python} -m kafka.consumer -b {gateway} -t hello -C auto_offset_reset=earliest
  set a quota         client id "{_DEMO_CLIENT_ID}" may create or delete {_DEMO_RATE} partition per second:
    set               {sluice} kafka-tool kafka-configs {server} --alter {client} {setting}
    accepted          {create.format("first")}
    refused at once   {create.format("second")}
  show its quota      {sluice} quotas --client-id {_DEMO_CLIENT_ID}
  why it was refused  {sluice} why --client-id {_DEMO_CLIENT_ID}
  watch               {sluice} top --admin {found.admin.bind}
    in a browser      http://{found.admin.bind}/
    as metrics        curl -s http://{found.admin.bind}/metrics | grep -i mutation
  usage by client     {sluice} usage {shlex.quote(found.usage.directory or "DIR")}

Stop with Ctrl-C."""


def _program(path: Path) -> str:
    """The shorter of its two paths, for a shell."""
    return shlex.quote(min(str(path), os.path.relpath(path), key=len))
