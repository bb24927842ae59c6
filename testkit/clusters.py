"""A gateway with several clusters, as operators run it: `sluice serve --config FILE` with [[clusters]]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from testkit.gateway import LISTENER, GatewayProcess, free_ports, serving
from testkit.process_group import members
from testkit.raw_client import HOST, PATIENCE_S, RawClient, until

_PORTS_OF_ONE: Final = 5
_LISTENER_WITH_PORTS: Final = f"broker_ports = {_PORTS_OF_ONE - 1}\nlowest_broker_id = 1"


class ClustersProcess:
    """The gateway of a test.

    Attributes:
        process: the parent.
        file: its configuration.
        ports: of the listener of each cluster.
    """

    def __init__(self, file: Path, first_port: int) -> None:
        self.file = file
        self.ports: dict[str, int] = {}
        self.process: GatewayProcess
        self.admin_port = first_port
        self._next_port = first_port + 1

    def write(
        self,
        brokers: Mapping[str, int | str],
        tables: str = "",
        *,
        admin: str = "",
        listener: str = _LISTENER_WITH_PORTS,
    ) -> None:
        """Write the configuration.

        Args:
            brokers: of each cluster: a port on loopback, or host:port.
            tables: more of each cluster, as TOML text with NAME for its name.
            admin: more keys of [admin].
            listener: more keys of the listener of each cluster, as `tables`.
        """
        lines = ["[admin]", f'bind = "{HOST}:{self.admin_port}"', admin]
        for name, broker in brokers.items():
            if name not in self.ports:
                self.ports[name] = self._next_port
                self._next_port += _PORTS_OF_ONE
            address = f"{HOST}:{broker}" if isinstance(broker, int) else broker
            lines += [
                "[[clusters]]",
                f'name = "{name}"',
                "[clusters.upstream]",
                f'bootstrap = ["{address}"]',
                "[[clusters.listeners]]",
                f'name = "{LISTENER}"',
                f'bind = "{HOST}:{self.ports[name]}"',
                listener.replace("NAME", name),
                "[clusters.drain]",
                "timeout_ms = 5000",
                "[clusters.quota_store]",
                *(['kind = "memory"'] if "data_dir" not in tables else []),
                tables.replace("NAME", name),
            ]
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    async def connect(self, name: str) -> RawClient:
        """A client on the bootstrap port of a cluster."""
        return await RawClient.connect(self.ports[name])

    async def ask(self, path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
        """Status and answer of the admin port: what JSON says, otherwise the text."""
        url = f"http://{HOST}:{self.admin_port}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
            return answer.status, (
                await answer.json() if answer.content_type == "application/json" else await answer.text()
            )

    async def clusters(self) -> dict[str, dict[str, Any]]:
        """What the index says of each cluster, by name."""
        _, answer = await self.ask("/status.json")
        return {each["name"]: each for each in answer["clusters"]}

    async def until(self, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Wait until this holds of `clusters`."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while True:
                try:
                    if holds(found := await self.clusters()):
                        return found
                except (aiohttp.ClientError, KeyError):
                    pass
                await asyncio.sleep(0.05)

    async def until_ready(self, *names: str) -> dict[str, dict[str, Any]]:
        """Wait until these clusters are ready, and there are no others."""
        return await self.until(
            lambda found: sorted(found) == sorted(names) and all(each["ready"] for each in found.values())
        )

    async def until_alone(self) -> None:
        """Wait for the ends of processes that were replaced: before, the next ones refuse to be replaced.

        There is to be one process for each cluster.
        """
        await until(lambda: len(members(self.process.process.pid)) == 1 + len(self.ports))


@asynccontextmanager
async def clusters_process(
    folder: Path, brokers: Mapping[str, int | str], tables: str = "", *, spare: int = 1, **options: str
) -> AsyncIterator[ClustersProcess]:
    """Start a gateway with several clusters, and wait until each serves or has tried.

    Args:
        folder: for its configuration.
        brokers, tables, options: see `ClustersProcess.write`.
        spare: how many clusters more there may be later.
    """
    first = free_ports(1 + _PORTS_OF_ONE * (len(brokers) + spare))
    gateway = ClustersProcess(folder / "gateway.toml", first)
    gateway.write(brokers, tables, **options)
    async with serving(gateway.file, next(iter(gateway.ports.values())), first) as gateway.process:
        yield gateway
