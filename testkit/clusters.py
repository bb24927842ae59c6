"""A gateway with several clusters, as operators run it: `sluice serve --config FILE` with [[clusters]]."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from testkit.gateway import LISTENER, GatewayProcess, free_ports, serving
from testkit.polling import pause_s
from testkit.process_group import members
from testkit.raw_client import HOST, PATIENCE_S, RawClient, until

_PORTS_OF_ONE: Final = 5
_LISTENER_WITH_PORTS: Final = f"broker_ports = {_PORTS_OF_ONE - 1}\nlowest_broker_id = 1"


class ClustersProcess:
    """The gateway of a test.

    Attributes:
        process: the parent process.
        file: its configuration.
        ports: the port of each cluster's listener.
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
        """Writes the configuration.

        Args:
            brokers: for each cluster a port on loopback, or host:port.
            tables: further tables of each cluster, as TOML text with NAME for its name.
            admin: more keys of [admin].
            listener: more keys of each cluster's listener, in the form of `tables`.
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
        """Connects a client to the bootstrap port of a cluster."""
        return await RawClient.connect(self.ports[name])

    async def ask(self, path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
        """Status and response of the admin port, decoded if it is JSON, otherwise as text."""
        url = f"http://{HOST}:{self.admin_port}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
            return answer.status, (
                await answer.json() if answer.content_type == "application/json" else await answer.text()
            )

    async def clusters(self) -> dict[str, dict[str, Any]]:
        """The entries of the index of clusters, by name."""
        _, answer = await self.ask("/status.json")
        return {each["name"]: each for each in answer["clusters"]}

    async def until(self, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Waits until a condition is true for `clusters`. Returns them."""
        found: dict[str, dict[str, Any]] = {}
        began = time.monotonic()
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                while True:
                    with suppress(aiohttp.ClientError, KeyError):
                        if holds(found := await self.clusters()):
                            return found
                    await asyncio.sleep(pause_s(time.monotonic() - began))
        except TimeoutError:
            raise AssertionError(f"not in time, but {found}") from None

    async def until_ready(self, *names: str) -> dict[str, dict[str, Any]]:
        """Waits until exactly these clusters exist and are ready."""
        return await self.until(
            lambda found: sorted(found) == sorted(names) and all(each["ready"] for each in found.values())
        )

    def program(self) -> bytes:
        """The environment of the parent's program, which changes with each program that is started in its place."""
        return Path(f"/proc/{self.process.process.pid}/environ").read_bytes()

    async def until_next_program(self, before: bytes) -> None:
        """Waits until the program after this one serves. `sluice upgrade` ends before that program starts.

        Args:
            before: see `program`.
        """
        await until(lambda: self.program() != before, pause_s=0.05)
        await self.until(lambda _: True)

    async def until_alone(self) -> None:
        """Waits until replaced processes have ended, because the next ones cannot be replaced before.

        Then there is one process for each cluster.
        """
        await until(lambda: len(members(self.process.process.pid)) == 1 + len(self.ports), pause_s=0.1)


@asynccontextmanager
async def clusters_process(
    folder: Path, brokers: Mapping[str, int | str], tables: str = "", *, spare: int = 1, **options: str
) -> AsyncIterator[ClustersProcess]:
    """Starts a gateway with several clusters, and waits until each serves clients or has failed once.

    Args:
        folder: the folder for its configuration.
        brokers, tables, options: see `ClustersProcess.write`.
        spare: how many more clusters may be added later.
    """
    first = free_ports(1 + _PORTS_OF_ONE * (len(brokers) + spare))
    gateway = ClustersProcess(folder / "gateway.toml", first)
    gateway.write(brokers, tables, **options)
    async with serving(gateway.file, next(iter(gateway.ports.values())), first) as gateway.process:
        yield gateway
