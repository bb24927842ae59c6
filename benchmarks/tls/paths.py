"""The paths from the load to the broker with TLS, on the client's side of the proxy or on the broker's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.connections.paths import Sluice
from benchmarks.relay.gateway_config import gateway_config
from benchmarks.relay.load import LoadRunner, NullBroker
from benchmarks.relay.native_build import NativePrograms
from benchmarks.relay.paths import GATEWAY, HAPROXY_CONFIG, RunningPath, with_compiled_core
from benchmarks.relay.processes import PinnedProcess, free_port

HAPROXY: Final = "HAProxy TLS"
KEYS: Final = {
    "RSA 2048": "rsa:2048",
    "ECDSA P-256": "ec -pkeyopt ec_paramgen_curve:P-256",
}
UNLIMITED_HANDSHAKES: Final = 100_000
BARE: Final = "bare ssl"
THREADED: Final = "Sluice, thread"

# OpenSSL sends two tickets by default, the gateway one. HAProxy has no setting for this; OpenSSL reads this file.
_OPENSSL_CONFIG: Final = """\
openssl_conf = programs
[programs]
ssl_conf = contexts
[contexts]
system_default = all
[all]
NumTickets = 1
"""


@dataclass(frozen=True, slots=True)
class Certificate:
    """One key and its certificate, signed by itself.

    Attributes:
        certificate, key: a file each, for the gateway.
        both: one file, for HAProxy.
    """

    certificate: Path
    key: Path
    both: Path


def make_certificate(kind: str, folder: Path) -> Certificate:
    """A certificate for the loopback address.

    Args:
        kind: one of `KEYS`.
        folder: for the files.
    """
    stem = kind.replace(" ", "-").lower()
    made = Certificate(*(folder / f"{stem}.{end}" for end in ("crt", "key", "pem")))
    command = f"openssl req -x509 -newkey {KEYS[kind]} -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [
            *(*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(made.key), "-out", str(made.certificate)),
        ],
        check=True,
        capture_output=True,
    )
    made.both.write_bytes(made.certificate.read_bytes() + made.key.read_bytes())
    return made


def haproxy_program() -> str:
    """The path of the HAProxy program.

    Raises:
        SystemExit: HAProxy is not installed.
    """
    found = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise SystemExit("the benchmark compares with HAProxy: apt-get install haproxy")
    return found


def start_haproxy(
    bind: str,
    server: str,
    core: int,
    folder: Path,
    *,
    listen_port: int,
    upstream_port: int,
    name: str,
    limits: str = "",
) -> RunningPath:
    """HAProxy in TCP mode, one thread, as in `benchmarks.relay`, with additional options.

    Args:
        bind: more options of its `bind` line.
        server: more options of its `server` line.
        core: the core on which it runs.
        folder: for files.
        listen_port: where it listens.
        upstream_port: where it connects.
        name: name of the path.
        limits: one more line of its global section.
    """
    text = HAPROXY_CONFIG.format(listen_port=listen_port, upstream_port=upstream_port)
    text = text.replace(f"bind 127.0.0.1:{listen_port}", f"bind 127.0.0.1:{listen_port} {bind}")
    text = text.replace(
        f"server broker 127.0.0.1:{upstream_port}", f"server broker 127.0.0.1:{upstream_port} {server}"
    )
    config = folder / f"haproxy-{listen_port}.cfg"
    config.write_text(text.replace("global\n", f"global\n  {limits}\n"))
    (openssl := folder / "openssl.cnf").write_text(_OPENSSL_CONFIG)
    argv = ["env", f"OPENSSL_CONF={openssl}", haproxy_program(), "-db", "-f", str(config)]
    log = folder / f"haproxy-{listen_port}.log"
    return RunningPath(name, listen_port, PinnedProcess(argv, core=core, log=log))


def start_terminating_haproxy(
    certificate: Certificate,
    upstream_port: int,
    core: int,
    folder: Path,
    *,
    max_handshakes_per_second: int | None = None,
) -> RunningPath:
    """TLS with clients, plaintext with the broker."""
    return start_haproxy(
        f"ssl crt {certificate.both}",
        "",
        core,
        folder,
        listen_port=free_port(),
        upstream_port=upstream_port,
        name=HAPROXY,
        limits="" if max_handshakes_per_second is None else f"maxsslrate {max_handshakes_per_second}",
    )


def start_bare_server(certificate: Certificate, core: int, folder: Path) -> RunningPath:
    """A Python server that only completes TLS handshakes."""
    port = free_port()
    files = (str(certificate.certificate), str(certificate.key))
    argv = [sys.executable, "-m", "benchmarks.tls.bare_server", str(port), *files]
    return RunningPath(BARE, port, PinnedProcess(argv, core=core, log=folder / f"bare-{port}.log"))


def start_originating_haproxy(
    tls_port: int, certificate: Certificate, core: int, folder: Path, *, name: str, resume: bool = True
) -> RunningPath:
    """Plaintext with clients, TLS with the upstream."""
    server = f"ssl verify required ca-file {certificate.certificate}"
    if not resume:
        server += " no-ssl-reuse"
    port = free_port()
    return start_haproxy("", server, core, folder, listen_port=port, upstream_port=tls_port, name=name)


def start_sluice(
    upstream_port: int,
    core: int,
    folder: Path,
    *,
    listener: Certificate | None = None,
    upstream: Certificate | None = None,
    max_handshakes_per_second: int = UNLIMITED_HANDSHAKES,
    handshake_timeout_ms: int = 10_000,
    cores: Sequence[int] = (),
    name: str = GATEWAY,
    compiled: bool = False,
) -> Sluice:
    """The gateway with quotas and metrics on.

    Args:
        upstream_port: port of the broker.
        core: the core on which it runs.
        folder: for files.
        listener: the certificate for TLS with clients.
        upstream: the broker's certificate, for TLS with the broker.
        max_handshakes_per_second: the setting of [connections].
        handshake_timeout_ms: the setting of [listeners.tls].
        cores: the cores that it may use, if more than `core`.
        name: name of the path.
        compiled: with the compiled core.
    """
    port, admin_port = free_port(), free_port()
    text = gateway_config(f"127.0.0.1:{upstream_port}", port, admin_port, free_port(block=2))
    if listener is not None:
        tls = (
            f'tls = {{ certificate = "{listener.certificate}", key = "{listener.key}", '
            f"handshake_timeout_ms = {handshake_timeout_ms} }}"
        )
        text = text.replace("[[listeners]]\n", f'[[listeners]]\nsecurity_protocol = "SSL"\n{tls}\n')
        text += f"\n[connections]\nmax_tls_handshakes_per_second = {max_handshakes_per_second}\n"
    if upstream is not None:
        tls = f'security_protocol = "SSL"\ntls = {{ ca = "{upstream.certificate}" }}\n'
        text = text.replace("[upstream]\n", f"[upstream]\n{tls}")
    config = folder / f"sluice-{port}.toml"
    config.write_text(text)
    argv = [str(Path(sys.executable).with_name("sluice")), "serve", "--config", str(config)]
    if compiled:
        argv = with_compiled_core(argv)
    if cores:
        argv = ["taskset", "-c", ",".join(map(str, cores)), *argv]
    process = PinnedProcess(argv, core=core, log=folder / f"sluice-{port}.log")
    return Sluice(RunningPath(name, port, process), admin_port)


class LoadThroughOthers(LoadRunner):
    """The relay's load. Helper processes that add or remove TLS do not count as other load of the machine.

    Idle clients use TLS themselves.
    """

    def __init__(
        self,
        programs: NativePrograms,
        broker: NullBroker,
        besides: Sequence[RunningPath],
        *,
        core: int,
        folder: Path,
    ) -> None:
        super().__init__(programs, broker, core=core, folder=folder)
        self._besides = besides

    def _start_silent(self, path: RunningPath, connections: int) -> PinnedProcess:
        argv = [sys.executable, "-m", "benchmarks.tls.handshakes", "hold", str(path.port), str(connections)]
        return PinnedProcess(argv, core=self._core, log=self._log, piped=True)

    def _known_cpu_s(self, path: RunningPath, load: PinnedProcess) -> float:
        besides = sum(each.proxy.cpu_s() for each in self._besides if each.proxy is not None)
        return super()._known_cpu_s(path, load) + besides
