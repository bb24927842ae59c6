"""How many connections the process has descriptors for, so that accept never runs out of them (hazard F01).

A client costs two descriptors, its own and its broker's; a held socket one, and one that was closed with bytes unsent
one for a while longer. What is left over serves listening ports, the admin port, discovery, files, and the slots that
the protected listener may take beyond the cap.
"""

from __future__ import annotations

from typing import Final

OTHER_DESCRIPTORS: Final = 64
"""Standard streams, the loop's own, logs, DNS, the admin port and its scrapers."""

DESCRIPTORS_PER_CLIENT: Final = 2


def connection_cap(descriptor_limit: int, *, ports: int, max_held: int, protected_slots: int) -> int:
    """The most client connections, derived from the soft limit of descriptors (RLIMIT_NOFILE).

    Args:
        descriptor_limit: see above.
        ports: listening sockets, broker ports included.
        max_held: most sockets held because of their address's rate.
        protected_slots: connections that the protected listener may have beyond the cap.

    Returns:
        0 when not even one fits.
    """
    left = descriptor_limit - reserved(
        descriptor_limit, ports=ports, max_held=max_held, protected_slots=protected_slots
    )
    return max(0, left // DESCRIPTORS_PER_CLIENT)


def reserved(descriptor_limit: int, *, ports: int, max_held: int, protected_slots: int) -> int:
    """How many descriptors everything else may take; arguments as for `connection_cap`."""
    clients = DESCRIPTORS_PER_CLIENT * protected_slots
    return OTHER_DESCRIPTORS + ports + max_held + lingering_cap(descriptor_limit) + clients


def lingering_cap(descriptor_limit: int) -> int:
    """The most closed connections whose last bytes may still be on their way."""
    return max(4, min(256, descriptor_limit // 32))


def held_cap(descriptor_limit: int) -> int:
    """The most held sockets when none is configured: an eighth of the descriptors, 1,000 at most."""
    return max(1, min(1_000, descriptor_limit // 8))
