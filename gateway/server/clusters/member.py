"""The process of one cluster: what it gets from the parent, and how it differs from a whole gateway. [io]

The parent starts it as `sluice serve --config FILE --cluster NAME`, with one environment variable. A process that
replaces it in an upgrade inherits the variable.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from aiohttp import web

from config import Config
from gateway.server.admin_access import AdminAccess, answer
from gateway.server.clusters import CALLER, MEMBER
from gateway.server.control import control_name
from gateway.server.handover_link import DESCRIPTOR


@dataclass(frozen=True, slots=True)
class Member:
    """What the process of a cluster gets from the parent.

    Attributes:
        name: of the cluster.
        parent: process id; it stays the same as long as the gateway runs.
        admin: the listening socket for the parent; None: the process to replace hands it over.
        control: the name of the socket for upgrade requests to this cluster; see `gateway.server.control`.
    """

    name: str
    parent: int
    admin: socket.socket | None
    control: str

    @property
    def sockets(self) -> list[socket.socket]:
        """`admin`, if this process has it."""
        return [] if self.admin is None else [self.admin]

    def watch_parent(self, on_gone: Callable[[], object]) -> None:
        """Call a function once the parent has ended: no process of a gateway outlives it."""
        loop = asyncio.get_running_loop()
        try:
            ends = os.pidfd_open(self.parent)
        except ProcessLookupError:
            loop.call_soon(on_gone)
            return

        def ended() -> None:
            loop.remove_reader(ends)
            os.close(ends)
            on_gone()

        loop.add_reader(ends, ended)


class ParentsAccess:
    """Access for requests that the parent passes on: it has decided already, and no other process may connect."""

    def check_routes(self, router: web.UrlDispatcher) -> None:
        """See `AdminAccess`. The parent decides by the roles of the cluster's routes."""
        AdminAccess.check_routes(router)

    def refusal(self, request: web.Request) -> tuple[web.Response, bool] | None:
        """None: the request is allowed, as it came through the parent's socket. All other requests are refused."""
        sock = None if request.transport is None else request.transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            return None
        return answer(403, "only the parent of this cluster may ask"), False

    def caller(self, request: web.Request) -> str:
        """The caller, as sent by the parent."""
        return request.headers.get(CALLER, "admin port")

    def still_allows(self, _request: web.Request) -> bool:
        """Always: the parent ends responses that are no longer allowed."""
        return True


def without_access(config: Config) -> Config:
    """The configuration of a cluster behind a parent, which has the TLS and the keys of the admin port."""
    return config.model_copy(update={"admin": config.admin.model_copy(update={"tls": None, "keys": ()})})


def cluster_control_name(host: str, port: int, cluster: str) -> str:
    """The name of a cluster's control socket, from the gateway's admin port."""
    return f"{control_name(host, port)}/{cluster}"


def environment_of_member(
    environment: Mapping[str, str], admin: socket.socket, control: str
) -> dict[str, str]:
    """The environment for a cluster's process. To be called in the parent.

    Args:
        environment: of the parent.
        admin: the listening socket, which the process must inherit.
        control: see `Member`.
    """
    return {**environment, MEMBER: f"{os.getpid()}:{admin.fileno()}:{control[1:]}"}


def member_of(environment: MutableMapping[str, str], name: str | None) -> Member | None:
    """What this process got from a parent; None: it is not the process of a cluster.

    Args:
        environment: of the process.
        name: of the cluster.
    """
    text = environment.get(MEMBER)
    if text is None or name is None:
        return None
    parent, descriptor, control = text.split(":", 2)
    admin = None
    if DESCRIPTOR not in environment:
        admin = socket.socket(fileno=int(descriptor))
        admin.set_inheritable(False)
        admin.setblocking(False)
        # Workers serve no admin port.
        os.register_at_fork(after_in_child=admin.close)
    return Member(name, int(parent), admin, f"\0{control}")
