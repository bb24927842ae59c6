"""Resolves names of brokers without blocking the loop (hazard D03)."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Final, TypeAlias

from gateway.runtime.clock import NowMs

Lookup: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> numeric addresses; raises OSError."""

_MOST_NAMES: Final = 1_000


async def _getaddrinfo(host: str, port: int) -> list[str]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


class Resolver:
    """Caches addresses for a while; an expired name is resolved again at its next use."""

    def __init__(self, now_ms: NowMs, *, ttl_ms: int = 30_000, lookup: Lookup = _getaddrinfo) -> None:
        self._now_ms = now_ms
        self._ttl_ms = ttl_ms
        self._lookup = lookup
        self._cache: dict[tuple[str, int], tuple[int, list[str]]] = {}

    def known(self, host: str, port: int) -> list[str] | None:
        """Numeric addresses of `host`, in the resolver's order; None: they must be resolved first."""
        if _is_literal(host):
            return [host]
        cached = self._cache.get((host, port))
        return cached[1] if cached is not None and cached[0] > self._now_ms() else None

    async def resolve(self, host: str, port: int) -> list[str]:
        """See `known`.

        Raises:
            OSError: the name cannot be resolved.
        """
        addresses = self.known(host, port)
        if addresses is None:
            addresses = await self._lookup(host, port)
            if len(self._cache) >= _MOST_NAMES:
                self._cache.clear()
            self._cache[host, port] = (self._now_ms() + self._ttl_ms, addresses)
        return addresses


@lru_cache(maxsize=1024)
def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
