"""The supervisor's services for its workers: quotas, mutations, broker ports, connection slots. [io]

The parts are those of a gateway of one process; workers use them through links (docs/decisions/0021-workers.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from config import Config
from gateway.net.accepted_socket import AcceptedSocket
from gateway.quota_admin.store.interface import Alteration, HistoryEntry, StoredChange
from gateway.quota_admin.store.live import LiveQuotas
from gateway.runtime.clock import NowMs
from gateway.server.asked_mutations import ASKED
from gateway.server.link import LinkLost
from gateway.server.operations import Operations
from gateway.server.reload import ReloadPlan, plan
from gateway.server.shared_topics import TopicEvents
from gateway.server.worker import FoundBrokers, Start, share_of
from gateway.server.workers import Worker, WorkerPool
from gateway.upstream.topology import ClusterMap, Found
from quotas.connections import ConnectionQuotas
from quotas.entities import QuotaKey
from quotas.lending import Brake
from quotas.limits import Enforcement
from quotas.mutations import MutationQuotas
from quotas.user_connections import UserConnections


class _Listener(Protocol):
    def offer_slot(self) -> None: ...


class _FleetTopic(Protocol):
    relay: Callable[[Sequence[bytes]], None] | None

    def send_encoded(self, values: Sequence[bytes]) -> None: ...


def _is_of(pid: int, connection: Hashable) -> bool:
    return isinstance(connection, tuple) and connection[0] == pid


class Supervisor:
    """See the module."""

    def __init__(
        self,
        pool: WorkerPool,
        *,
        listeners: Mapping[str, _Listener],
        open_port: Callable[[str, int, Found], bool],
        connections: ConnectionQuotas,
        users: UserConnections,
        live_quotas: LiveQuotas,
        mutations: MutationQuotas,
        operations: Callable[[], Operations],
        on_usage: Callable[[bytes], None],
        clusters: Mapping[str, ClusterMap],
        now_ms: NowMs,
        fleet_topic: _FleetTopic | None = None,
    ) -> None:
        """Serve the workers of this pool from now on.

        Args:
            pool: not started yet.
            listeners: by name.
            open_port: opens the port of a broker for a listener.
            connections: counts the connections of all workers.
            users: counts the connections of users.
            live_quotas: the quotas in force, and their store.
            mutations: the counters.
            operations: the configuration in force and its changes.
            on_usage: takes workers' lines of usage records.
            clusters: by the name of the upstream.
            now_ms: the clock.
            fleet_topic: carries messages of workers; None: there is no fleet.
        """
        self._pool = pool
        self._fleet_topic = fleet_topic
        if fleet_topic is not None:
            fleet_topic.relay = self._relay
        self._listeners = listeners
        self._open_port = open_port
        self._connections = connections
        self._users = users
        self._live_quotas = live_quotas
        self._mutations = mutations
        self._operations = operations
        self._clusters = clusters
        self._spread_brokers: FoundBrokers = {}
        self._now_ms = now_ms
        self._topic_events = TopicEvents()
        pool.on_lost.append(lambda worker: self._topic_events.forget(worker.pid))
        pool.on_lost.append(lambda worker: users.leave_all(partial(_is_of, worker.pid)))
        self._evicting: asyncio.Task[None] | None = None
        pool.give_back_to(connections, lambda name: listeners[name].offer_slot())
        pool.handlers |= {
            "begin": self._begin,
            "open_store": self._open_store,
            "write": self._write,
            "catch_up": self._catch_up,
            "history": self._history,
            "open_port": self._open_port_for,
            "mutations": self._ask_mutations,
            "user_enters": lambda worker, user, connection: users.enter(
                user, (worker.pid, connection), now_ms=self._now_ms()
            ),
            "users_changed": self._users_changed,
            "topic_event": lambda worker, event: self._topic_events.told(worker.pid, event),
            "claim_creations": lambda _worker, names, now_ms: self._topic_events.creations.claim(
                names, now_ms=now_ms
            ),
            "end_creation": lambda _worker, name: self._topic_events.creations.end(name),
            "topic_events": lambda worker: self._topic_events.fetched(worker.pid),
            "shares": self._share,
            "usage": lambda _worker, line: on_usage(line),
        }
        pool.on_ready.append(self._bring_up_to_date)
        live_quotas.spread = self._quotas_changed
        # By process id: what a worker started with, until it serves or is gone.
        self._began: dict[int, tuple[Config, Enforcement, FoundBrokers]] = {}
        pool.on_lost.append(lambda worker: self._began.pop(worker.pid, None))

    # -- what workers begin with -----------------------------------------------------------------------------

    def _begin(self, worker: Worker) -> Start:
        self._topic_events.joined(worker.pid)
        operations = self._operations()
        self._began[worker.pid] = operations.config, operations.mode, self._found()
        known = {name: Found(each.cluster_id, {**each.brokers}) for name, each in self._clusters.items()}
        return Start(share_of(operations.config, self._pool.count), operations.mode, known)

    def _bring_up_to_date(self, worker: Worker) -> None:
        """Send a new worker the changes since it began, which were not sent to it with the others."""
        operations = self._operations()
        config, mode, found = self._began.pop(worker.pid)
        if (brokers := self._found()) != found:
            worker.link.tell("brokers", brokers)
        missed = plan(config, operations.config)
        if missed.applies:
            worker.link.tell("reload", self._shared(missed), "start")
        # The missed reload carries the mode of its time, which may have changed since.
        if missed.applies or operations.mode is not mode:
            worker.link.tell("mode", operations.mode, "start")
        if operations.brakes:
            worker.link.tell("brakes", operations.brakes, "start")

    def _shared(self, decided: ReloadPlan) -> ReloadPlan:
        return replace(decided, config=share_of(decided.config, self._pool.count))

    # -- what changes ----------------------------------------------------------------------------------------

    async def spread(self, what: str, value: ReloadPlan | Enforcement | Mapping[int, Brake], by: str) -> None:
        """Put a reload, a mode or brakes in force in all workers; see `Operations`."""
        if isinstance(value, ReloadPlan):
            self._pool.set_longest_drain(value.config.drain.longest_ms)
            value = self._shared(value)
        await self._pool.ask_all(what, value, by)

    async def tier_use(self, tier: int) -> dict[QuotaKey, float]:
        """The recent usage of a tier: for each quota the most that a worker reports. {}: none has answered."""
        most: dict[QuotaKey, float] = {}
        for use in (await self._pool.ask_all("tier_use", tier)).values():
            for key, used in use.items():
                most[key] = max(used, most.get(key, 0.0))
        return most

    async def _quotas_changed(self, changes: Sequence[StoredChange], version: int) -> None:
        await self._pool.ask_all("quotas_changed", tuple(changes), version, following=True)

    def _open_store(self, worker: Worker) -> tuple[list[StoredChange], int]:
        worker.follows = True
        return self._live_quotas.stored()

    async def _write(self, _worker: Worker, alteration: Alteration) -> int:
        return await self._live_quotas.alter(alteration)

    async def _catch_up(self, _worker: Worker) -> None:
        await self._live_quotas.catch_up()

    async def _history(self, _worker: Worker, limit: int) -> list[HistoryEntry]:
        return await self._live_quotas.history(limit)

    def _found(self) -> FoundBrokers:
        return {name: each.found for name, each in self._clusters.items()}

    def _open_port_for(self, _worker: Worker, listener: str, broker_id: int, found: Found) -> bool:
        opened = self._open_port(listener, broker_id, found)
        self.brokers_changed()
        return opened

    def brokers_changed(self) -> None:
        """Send newly known brokers to the workers, which may get connections to them from now on."""
        brokers = self._found()
        if brokers != self._spread_brokers:
            self._spread_brokers = brokers
            for worker in self._pool.workers.values():
                if worker.serves:  # otherwise it gets them when it does
                    worker.link.tell("brokers", brokers)

    # -- what is counted here --------------------------------------------------------------------------------

    def _share(self, _worker: Worker, messages: Sequence[bytes]) -> None:
        """Pass messages to all workers, including the sender, which detects by this that it is connected.

        With a fleet all messages go through the topic, and come back from there.
        """
        if self._fleet_topic is not None:
            self._fleet_topic.send_encoded(messages)
        else:
            self._relay(messages)

    def _relay(self, messages: Sequence[bytes]) -> None:
        for worker in self._pool.workers.values():
            if worker.serves:  # otherwise it does not handle them yet
                worker.link.tell_now("shares", messages)

    def _ask_mutations(
        self, _worker: Worker, what: str, values: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        assert what in ASKED
        return getattr(self._mutations, what)(*values, **named, now_ms=self._now_ms())

    def _users_changed(self, worker: Worker, ended: Sequence[int], there: Sequence[tuple[int, str]]) -> None:
        for connection in ended:
            self._users.leave((worker.pid, connection))
        for connection, user in there:
            self._users.there(user, (worker.pid, connection))

    # -- connections -----------------------------------------------------------------------------------------

    def hand_over(self, listener: str, accepted: AcceptedSocket) -> None:
        """Give an admitted socket to a worker; if there are too many connections then, close another one."""
        self._pool.hand_over(listener, accepted)
        if self._evicting is None and self._crowded():
            self._evicting = asyncio.ensure_future(self._evict())

    def _crowded(self) -> list[str]:
        return [name for name in self._listeners if self._connections.must_close_one(name)]

    async def _evict(self) -> None:
        """Close the connections that were idle longest while the protected listener needs their places."""
        try:
            while names := self._crowded():
                idle = [
                    (since_ms, number, name)
                    for name in names
                    for number, since_ms in (await self._pool.ask_all("idle_since", name)).items()
                    if since_ms is not None
                ]
                if not idle:
                    return
                _, number, name = min(idle)
                worker = self._pool.workers.get(number)
                if worker is not None and worker.serves:  # otherwise it is another one of the same number
                    with suppress(LinkLost):  # the worker is gone, and its places are free
                        await worker.link.ask("evict", name)
        finally:
            self._evicting = None
