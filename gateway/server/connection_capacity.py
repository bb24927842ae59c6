"""Connection limits at start: limits that are not configured follow from the file descriptors (hazard F01).

A client costs two descriptors, its own and its broker's. A throttled socket costs one, and so does a closed
connection that still sends its last bytes. The rest serves listening ports, the admin port, discovery, files, and the
slots that the protected listener may take beyond the cap. The process raises its descriptor limit as far as the
system allows. A configuration that needs more descriptors is refused at the start, with the numbers, so that accept
never runs out of them.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from config import Config, ConfigError
from gateway.session.settings import SessionSettings
from quotas.connections import ConnectionLimits, ListenerLimits

OTHER_DESCRIPTORS: Final = 64
"""Standard streams, the loop's own, logs, DNS, the admin port and its scrapers."""

DESCRIPTORS_PER_CLIENT: Final = 2


def raise_descriptor_limit() -> int:
    """The soft limit of descriptors, made as large as the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        # Linux has a ceiling of its own; this stays below it.
        hard = max(soft, 1 << 20)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (OSError, ValueError):
            return soft
    return hard


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """How the descriptors are divided, for one configuration.

    Attributes:
        max_connections: of all listeners but a protected one.
        protected_slots: additional connections of the protected listener; 0 without one.
        max_held: sockets throttled by the rate of their address.
        max_lingering: closed connections of one listener whose last bytes are still on their way.
    """

    max_connections: int
    protected_slots: int
    max_held: int
    max_lingering: int


def connection_cap(descriptor_limit: int, *, ports: int, max_held: int, protected_slots: int) -> int:
    """The most client connections, derived from the soft limit of descriptors (RLIMIT_NOFILE).

    Args:
        descriptor_limit: the soft limit.
        ports: listening sockets, including broker ports.
        max_held: most sockets throttled by the rate of their address.
        protected_slots: connections that the protected listener may have beyond the cap.

    Returns:
        0 when not even one client fits.
    """
    left = descriptor_limit - reserved(
        descriptor_limit, ports=ports, max_held=max_held, protected_slots=protected_slots
    )
    return max(0, left // DESCRIPTORS_PER_CLIENT)


def reserved(descriptor_limit: int, *, ports: int, max_held: int, protected_slots: int) -> int:
    """How many descriptors all other uses may take; arguments as for `connection_cap`."""
    clients = DESCRIPTORS_PER_CLIENT * protected_slots
    return OTHER_DESCRIPTORS + ports + max_held + lingering_cap(descriptor_limit) + clients


def lingering_cap(descriptor_limit: int) -> int:
    """The most closed connections that may still send their last bytes."""
    return max(4, min(256, descriptor_limit // 32))


def held_cap(descriptor_limit: int) -> int:
    """The most throttled sockets when none is configured: an eighth of the descriptors, 1,000 at most."""
    return max(1, min(1_000, descriptor_limit // 8))


def plan_descriptors(config: Config, descriptor_limit: int) -> DescriptorPlan:
    """Divide the descriptors.

    Args:
        config: valid by itself.
        descriptor_limit: of the process.

    Raises:
        ConfigError: the configuration needs more than that.
    """
    section = config.connections
    ports = sum(1 + len(listener.ports_of_brokers) for listener in config.listeners)
    protected = len(config.listeners) > 1 and any(listener.protected for listener in config.listeners)
    protected_slots = section.protected_slots if protected else 0
    max_held = held_cap(descriptor_limit) if section.max_held is None else section.max_held
    cap = connection_cap(descriptor_limit, ports=ports, max_held=max_held, protected_slots=protected_slots)
    wanted = 1 if section.max_connections is None else section.max_connections
    if wanted > cap:
        rest = reserved(descriptor_limit, ports=ports, max_held=max_held, protected_slots=protected_slots)
        raise ConfigError(
            [
                f"connections.max_connections: {wanted} and what else there is ({max_held} throttled connections, "
                f"{ports} ports) need {rest + DESCRIPTORS_PER_CLIENT * wanted} file descriptors; the limit is "
                f"{descriptor_limit}, which carries {cap}; raise it (ulimit -n, LimitNOFILE) or lower what needs them"
            ]
        )
    max_lingering = max(1, lingering_cap(descriptor_limit) // len(config.listeners))
    return DescriptorPlan(section.max_connections or cap, protected_slots, max_held, max_lingering)


def connection_limits(config: Config, plan: DescriptorPlan) -> ConnectionLimits:
    """The limits of connections in force.

    Args:
        config: valid by itself.
        plan: made for it.
    """
    section = config.connections
    running = {
        listener.name: ListenerLimits(listener.max_connections, listener.max_connection_creation_rate)
        for listener in config.listeners
    }
    protected = next((each.name for each in config.listeners if each.protected), None)
    if protected is not None and plan.protected_slots:
        # Exempt from the common limit, but not from that of the descriptors.
        own = running[protected]
        most = plan.max_connections + plan.protected_slots
        running[protected] = ListenerLimits(
            min(own.max_connections or most, most), own.max_connection_creation_rate
        )
    return ConnectionLimits(
        running,
        max_connections=plan.max_connections,
        max_connection_creation_rate=section.max_connection_creation_rate,
        max_connections_per_ip=section.max_connections_per_ip,
        max_connections_per_ip_overrides=section.max_connections_per_ip_overrides,
        protected_listener=protected,
        after_hold=section.after_hold,
        max_held=plan.max_held,
    )


def session_settings(config: Config) -> SessionSettings:
    """The bounds of each connection."""
    return SessionSettings(
        **config.limits.model_dump(),
        failed_authentication_delay_ms=config.connections.failed_authentication_delay_ms,
    )
