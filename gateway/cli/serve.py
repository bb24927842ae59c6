"""``sluice serve``: runs the gateway, before the user's cluster or before an embedded Kafka."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

import config
from config.loader import DEFAULT_BIND
from config.sections.admin import AdminSettings
from config.sections.log import LogSettings
from config.sections.quota_admin import Authorize, QuotaAdminSettings
from config.sections.server import MAX_WORKERS, ServerSettings
from gateway.runtime.compiled_core import stale_modules
from gateway.server.clusters import IN_PLACE, MEMBER
from gateway.server.handover_link import DESCRIPTOR

# The quota to try with the embedded Kafka is so small that one command exceeds it.
_DEMO_CLIENT_ID: Final = "demo"
_DEMO_RATE: Final = 1
_DEMO_PARTITIONS: Final = 60
_DEMO_PORTS: Final = (DEFAULT_BIND, AdminSettings().bind)
_AGAIN_S: Final = 1.0
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
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        help="serve this cluster of the file alone; a gateway with several clusters starts its own processes so",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal; 2 when it can't start."""
    if DESCRIPTOR not in os.environ:
        return _run(arguments)
    # This is the new process of an upgrade: it reports to the old process why it can't start.
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
    """Standard error; it keeps a copy of the lines for people."""

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

    file, cluster = arguments.config, arguments.cluster
    first = _first_read(file)
    if isinstance(first, config.Clusters) and cluster is None:
        if brokers or DESCRIPTOR in os.environ:
            reason = "--upstream is for one cluster" if brokers else "this needs a restart"
            raise config.ConfigError([f"{file}: has several clusters ({first.names}); {reason}"])
        return _serve_clusters(first, file)

    def made(from_file: config.Config | config.Clusters) -> config.Config:
        found = config.one_of(from_file, file, cluster)
        if cluster is not None:
            from gateway.server.clusters.gateway_id import with_own_id
            from gateway.server.clusters.member import without_access

            found = with_own_id(found, cluster)
            found = without_access(found) if MEMBER in os.environ else found
        found = config.replace_upstream(found, brokers) if brokers else found
        return _with_workers(found, arguments.workers)

    found = made(first)
    banner = None if MEMBER in os.environ else short_banner(found)
    return _serve(found, banner=banner, read=lambda: made(config.load_file(file)), cluster=cluster)


def _first_read(file: str) -> config.Config | config.Clusters:
    while True:
        try:
            found = config.load_file(file)
            if IN_PLACE in os.environ and isinstance(found, config.Config):
                raise config.ConfigError([f"{file}: has no [[clusters]] any more"])
            return found
        except config.ConfigError as exc:
            if IN_PLACE not in os.environ:
                raise
            # The file was changed after an upgrade had checked it. The clusters already serve, so wait until it is
            # valid.
            for line in exc.lines:
                print(f"sluice: {line}", file=sys.stderr)
            time.sleep(_AGAIN_S)


def _serve_clusters(found: config.Clusters, file: str) -> int:
    from gateway.observability.logging_setup import report_suppressed, setup
    from gateway.server.clusters import parent
    from gateway.server.operations import log_findings

    limiter = setup(found.shared.log.level, found.shared.log.format)
    log_findings(config.cluster_findings(found))

    def set_log(log: LogSettings) -> None:
        setup(log.level, log.format, limiter=limiter)

    source = parent.ClustersSource(file, lambda: config.load_file(file), set_log)
    banner = f"sluice: clusters {found.names}; admin {found.shared.admin.url}/; stop with Ctrl-C or SIGTERM"
    try:
        return parent.run(found, source, banner=banner)
    finally:
        report_suppressed(limiter)


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


def _serve(
    found: config.Config,
    *,
    banner: str | None,
    read: Callable[[], config.Config] | None = None,
    cluster: str | None = None,
) -> int:
    # Imported here so that other commands do not wait for the server's imports.
    from gateway import app
    from gateway.observability.logging_setup import report_suppressed, setup
    from gateway.server.clusters.member import member_of
    from gateway.server.operations import ConfigSource, log_findings

    stale = stale_modules()
    if stale:
        print(
            f"sluice: {', '.join(stale)} changed since the compiled core was built: build it again (make compiled)",
            file=sys.stderr,
        )
        return 2
    limiter = setup(found.log.level, found.log.format, cluster=cluster)
    member = member_of(os.environ, cluster)
    if member is None:  # otherwise the parent has done it
        log_findings(config.findings(found))

    def set_log(log: LogSettings) -> None:
        setup(log.level, log.format, limiter=limiter, cluster=cluster)

    try:
        source = ConfigSource(read, set_log) if read else None
        return app.run(found, banner=banner, source=source, member=member)
    finally:
        report_suppressed(limiter)


def _serve_embedded(workers: ServerSettings | None) -> int:
    from embedded_kafka.kafka import KafkaCluster, KafkaStartError
    from pinned_jars import FetchError, MissingProgramError

    # Until the gateway handles the signal, a stop must still clean up the brokers' files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for address in _DEMO_PORTS:
        try:
            # Checks early that the port is free: Kafka takes seconds to start, and minutes to fetch.
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
        # Quotas and usage of the trial are deleted together with the embedded Kafka.
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
    """The addresses of listeners and upstreams, and of the metrics."""
    listeners = ", ".join(f"{listener.name} {listener.bind}" for listener in found.listeners)
    return (
        f"sluice: listeners {listeners}; upstream {found.upstream.brokers}; "
        f"metrics {found.admin.url}/metrics; stop with Ctrl-C or SIGTERM"
    )


def demo_banner(found: config.Config) -> str:
    """Examples for the embedded Kafka; every command can be pasted into a shell."""
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
    """The shorter of the absolute and the relative path, for a shell."""
    return shlex.quote(min(str(path), os.path.relpath(path), key=len))
