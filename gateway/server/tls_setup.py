"""TLS from the configuration: certificates and checks of their files, handshake rate limiter, acceptors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import structlog

from config import Config, ConfigError, ListenerSettings
from config.mapping_rules import MappingRules
from config.sections.listeners import ListenerTls
from config.sections.upstream import UpstreamSettings, UpstreamTls
from gateway.net.tls_acceptor import TlsAcceptor
from gateway.observability.tls_metrics import TlsMetrics
from gateway.runtime.clock import loop_clock
from gateway.server.admin_tls import ADMIN_PORT, AdminTls
from gateway.tls.contexts import Certificates, FileUser, TlsIdentity, reload_all
from gateway.tls.handshake_rate import HandshakeRateLimiter
from gateway.tls.handshake_steps import HandshakeSteps, may_use_another_core
from gateway.tls.records import ReceiveBuffer
from gateway.upstream.tls import BrokerTls
from gateway.upstream.topology import NamedBrokers

LOOK_S: Final = 5.0
"""The interval of checks of certificate files; a check is one system call per file."""

MAX_WAITING: Final = 4_096
"""The most handshakes that wait for the rate limiter, over all listeners. Each is a counted connection of at most
20 KiB."""

_log = structlog.get_logger("gateway.tls")


def load_identities(config: Config) -> tuple[dict[str, Certificates], dict[str, TlsIdentity]]:
    """The certificates of the listeners and of the upstreams that use TLS, by name.

    The admin port counts as a listener, `ADMIN_PORT`.

    Args:
        config: valid.

    Raises:
        ConfigError: files are unusable; the text names all of them.
    """
    faults: list[str] = []

    def read(owner: str, section: ListenerTls | UpstreamTls) -> Iterator[TlsIdentity]:
        try:
            yield TlsIdentity(owner, section)
        except ConfigError as exc:
            faults.extend(exc.lines)

    listeners = {}
    for each in config.listeners:
        if each.tls is not None:
            identities = [*read(f"{each.path}.tls", each.tls)]
            for at, other in enumerate(each.tls.certificates):
                identities += read(f"{each.path}.tls.certificates.{at}", each.tls.with_certificate(other))
            listeners[each.name] = Certificates(identities)
    if config.admin.tls is not None:
        listeners[ADMIN_PORT] = Certificates([*read("admin.tls", config.admin.tls)])
    upstreams = {}
    for name, upstream in (
        {"upstream": config.upstream} | {each.name: each for each in config.upstreams}
    ).items():
        if upstream.security_protocol.tls:
            for identity in read(f"{upstream.path}.tls", upstream.tls or UpstreamTls()):
                upstreams[name] = identity
    if faults:
        raise ConfigError(faults)
    return listeners, upstreams


class TlsParts:
    """Everything that the TLS connections of a gateway share.

    Attributes:
        metrics: to be registered.
        handshake_limiter: bounds the rate of handshakes.
        identities: certificates in force.
    """

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        """Read the files of all listeners and upstreams with TLS.

        Args:
            config: valid.
            loop: gives timers.

        Raises:
            ConfigError: a file is unusable.
        """
        self.metrics = TlsMetrics()
        self.handshake_limiter = HandshakeRateLimiter(
            loop, per_second=config.connections.max_tls_handshakes_per_second, max_waiting=MAX_WAITING
        )
        self._loop = loop
        self._buffer = ReceiveBuffer()
        self._steps = HandshakeSteps(loop, threaded=may_use_another_core())
        self._listeners, self._upstreams = load_identities(config)
        own = [identity for each in self._listeners.values() for identity in each.identities]
        self.identities: Final = [*own, *self._upstreams.values()]
        self._file_users: list[FileUser] = [*self.identities]
        self.metrics.watch(
            listeners=self._listeners,
            upstreams=self._upstreams,
            identities=self.identities,
            handshake_limiter=self.handshake_limiter,
        )
        self._looking: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()

    def tls_acceptor(self, listener: ListenerSettings, brokers: NamedBrokers | None) -> TlsAcceptor | None:
        """The handshakes of a listener's clients; None without TLS.

        Args:
            listener: its settings.
            brokers: the brokers that clients choose by server name; None: each broker has a port.
        """
        section = listener.tls
        if section is None:
            return None
        # With SASL, the SASL exchange determines the user, as in Kafka.
        by_certificate = section.client_auth != "none" and not listener.security_protocol.sasl
        return TlsAcceptor(
            listener.name,
            self._listeners[listener.name],
            loop=self._loop,
            now_ms=loop_clock(self._loop),
            handshake_limiter=self.handshake_limiter,
            buffer=self._buffer,
            steps=self._steps,
            timeout_ms=section.handshake_timeout_ms,
            rules=MappingRules.parse(section.principal_mapping_rules) if by_certificate else None,
            metrics=self.metrics,
            all_utf8=section.certificate_texts == "utf8",
            protected=listener.protected,
            brokers=brokers,
        )

    def admin_tls(self, section: ListenerTls | None) -> AdminTls | None:
        """The handshakes of the admin port's clients; None without TLS."""
        if section is None:
            return None
        return AdminTls(
            section,
            self._listeners[ADMIN_PORT].identities[0],
            loop=self._loop,
            handshake_limiter=self.handshake_limiter,
            buffer=self._buffer,
            steps=self._steps,
            metrics=self.metrics,
        )

    def look_after(self, user: FileUser) -> None:
        """Check the files of this user too; to be called before `start`."""
        self._file_users.append(user)

    def upstream_identity(self, name: str) -> TlsIdentity | None:
        """The certificates of an upstream; None without TLS."""
        return self._upstreams.get(name)

    def upstream_tls(self, name: str, section: UpstreamSettings) -> BrokerTls | None:
        """TLS with the brokers of an upstream; None without TLS."""
        identity = self._upstreams.get(name)
        if identity is None:
            return None
        return BrokerTls(
            name,
            identity,
            server_name=None if section.tls is None else section.tls.server_name,
            buffer=self._buffer,
            steps=self._steps,
            metrics=self.metrics,
        )

    def start(self) -> None:
        """Check the files from now on."""
        if self._file_users:
            self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Stop checking the files, and begin no waiting handshake."""
        self.handshake_limiter.stop()
        self._steps.stop()
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            # Even if the task has failed, the rest must be stopped.
            await asyncio.gather(looking, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            asked = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    asked = await self._asked.wait()
            self._asked.clear()
            # At a reload, files are read in any case: on network file systems a changed file may look the same.
            by = "reload" if asked else "change of the files"
            # In a thread: the file system may be slow.
            try:
                await asyncio.to_thread(reload_all, self._file_users, only_if_changed=not asked, by=by)
            except Exception:  # noqa: BLE001  (no other task checks the files)
                _log.exception("certificates_not_looked_at")  # the next check follows

    def look_now(self) -> None:
        """Read the files again, whether they seem to have changed or not."""
        self._asked.set()
