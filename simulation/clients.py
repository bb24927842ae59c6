"""Model clients: honest ones, and ones that exceed their quota or attack others.

A client is a coroutine in the loop of the process "clients". Its connections check two rules for every client: each
reply answers the oldest request without a reply, and records are those of the requested topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from simulation import messages
from simulation.brokers import payload
from simulation.messages import Frames
from simulation.network import End
from simulation.plan import Client
from simulation.world import NS_PER_MS, NS_PER_S
from testkit import wire

if TYPE_CHECKING:
    from simulation.run import Run

_LOST: Final = "the connection ended"


class Lost(Exception):
    """The connection has ended, or could not be opened."""


class Asked:
    """A request that waits for its reply."""

    __slots__ = ("at_ns", "correlation_id", "future", "key", "version")

    def __init__(
        self, key: int, version: int, correlation_id: int, at_ns: int, future: asyncio.Future[bytes]
    ) -> None:
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.at_ns = at_ns
        self.future = future


class Connection:
    """One connection of a client.

    Attributes:
        waiting: requests without a reply.
        quiet_until_ns: end of the wait that the gateway has asked for.
    """

    def __init__(self, actor: Actor, end: End) -> None:
        self.actor = actor
        self.end = end
        self.waiting: deque[Asked] = deque()
        self.quiet_until_ns = 0
        self.lost_now = False
        self._unsent: deque[bytes] = deque()
        self._frames = Frames()
        self._room: asyncio.Future[None] | None = None
        end.owner = self

    # -- the network -----------------------------------------------------------------------------------------

    def received(self, end: End) -> None:
        """See `Peer`."""
        data = end.take()
        try:
            frames = self._frames.add(data)
        except ValueError as exc:
            self.actor.run.report("answered_once_in_order", f"{self.actor.plan.client_id}: {exc}")
            self.close(abort=True)
            return
        for frame in frames:
            self._reply(frame)
        if end.ended:
            self.close()

    def sent(self, end: End) -> None:
        """See `Peer`."""
        self._flush()

    def lost(self, end: End) -> None:
        """See `Peer`."""
        self.close()

    # -- requests --------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends bytes."""
        if not self.lost_now:
            self._unsent.append(data)
            self._flush()

    def ask(self, key: int, version: int, frame: bytes, correlation_id: int) -> asyncio.Future[bytes]:
        """Sends a request. The future's result is its reply."""
        actor = self.actor
        future: asyncio.Future[bytes] = actor.loop.create_future()
        if self.lost_now:
            future.set_exception(Lost(_LOST))
            future.exception()
            return future
        asked = Asked(key, version, correlation_id, actor.run.world.now_ns, future)
        self.waiting.append(asked)
        actor.asked += 1
        self.write(frame)
        return future

    def _flush(self) -> None:
        unsent = self._unsent
        while unsent and not self.lost_now:
            try:
                sent = self.end.send(unsent[0])
            except OSError:
                self.close(abort=True)
                return
            if sent < len(unsent[0]):
                unsent[0] = unsent[0][sent:]
                return
            unsent.popleft()

    def _reply(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
        actor = self.actor
        if not self.waiting or self.waiting[0].correlation_id != correlation_id:
            expected = self.waiting[0].correlation_id if self.waiting else None
            actor.run.report(
                "answered_once_in_order",
                f"{actor.plan.client_id} got reply {correlation_id}, and waits for {expected}",
            )
            self.close(abort=True)
            return
        asked = self.waiting.popleft()
        actor.answered += 1
        actor.run.laws.answered(actor, self, asked, frame)
        if not asked.future.done():
            asked.future.set_result(frame)

    def half_close(self) -> None:
        """Sends the end of the stream."""
        self.end.finish()

    def close(self, *, abort: bool = False, vanish: bool = False) -> None:
        """Ends the connection; with `vanish` without notifying the peer."""
        if self.lost_now:
            return
        self.lost_now = True
        self.actor.connections.pop(self, None)
        if vanish:
            self.end.vanish()
        elif abort:
            self.end.abort()
        else:
            self.end.close()
        for asked in self.waiting:
            if not asked.future.done():
                asked.future.set_exception(Lost(_LOST))
                asked.future.exception()  # marks it as retrieved, because perhaps nothing awaits the future any more
        self.actor.given_up += len(self.waiting)
        self.waiting.clear()


class Actor:
    """One client of a plan.

    Attributes:
        plan: the client's entry in the plan.
        honest: whether it keeps to the protocol. Only then do the laws make promises about it.
        connections: the open ones.
        asked, answered, given_up: numbers of requests.
        done: whether it has ended.
    """

    def __init__(self, run: Run, plan: Client, number: int) -> None:
        self.run = run
        self.plan = plan
        self.options = plan.options
        self.loop = run.clients_process
        self.ip = f"10.3.{number // 200}.{number % 200 + 1}"
        self.dice: random.Random = run.world.dice(f"client/{number}")
        self.honest = plan.does in HONEST
        self.connections: dict[Connection, None] = {}
        self.asked = self.answered = self.given_up = 0
        self.done = False
        self._correlation_id = number * 1_000_000

    @property
    def going(self) -> bool:
        """Whether the client continues."""
        return self.run.world.now_ns < self.run.end_ns

    def next_id(self) -> int:
        """A new correlation id."""
        self._correlation_id += 1
        return self._correlation_id

    async def live(self) -> None:
        """Runs the client until its end."""
        # Clients do not all start at the same time.
        await self.sleep_ms(self.dice.randrange(0, 400))
        try:
            await BEHAVIOURS[self.plan.does](self)
        except Exception as exc:  # noqa: BLE001  (a client that stops early would hide what it was meant to find)
            where = traceback.extract_tb(exc.__traceback__)[-1]
            if self.loop.alive:
                self.run.report(
                    "clients_go_on", f"{self.plan.does}: {exc!r} at {where.filename}:{where.lineno}"
                )
        finally:
            for connection in list(self.connections):
                connection.close()
            self.done = True

    async def sleep_ms(self, ms: float) -> None:
        """Waits."""
        await asyncio.sleep(ms / 1000)

    async def connect(self, port: int) -> Connection:
        """Connects to a port of its gateway.

        Raises:
            Lost: it could not connect.
        """
        network = self.run.network
        done: asyncio.Future[End] = self.loop.create_future()

        def connected(end: End) -> None:
            if done.done():
                end.abort()
            else:
                done.set_result(end)

        def refused(exc: OSError) -> None:
            if not done.done():
                done.set_exception(exc)

        address = (f"10.2.0.{self.plan.gateway}", port)
        give_up = network.connect(
            self.ip,
            address,
            lambda end: self.loop.post(connected, end),
            lambda exc: self.loop.post(refused, exc),
        )
        try:
            async with asyncio.timeout(10):
                end = await done
        except (OSError, TimeoutError) as exc:
            give_up()
            raise Lost(str(exc)) from exc
        if end.reset or end.closed:
            raise Lost(_LOST)
        connection = Connection(self, end)
        self.connections[connection] = None
        return connection

    async def reply(self, future: asyncio.Future[bytes], connection: Connection) -> bytes:
        """Waits for a reply, as long as this client's patience lasts.

        Raises:
            Lost: there was no reply.
        """
        try:
            async with asyncio.timeout(self.options.get("timeout_ms", 30_000) / 1000):
                return await future
        except TimeoutError as exc:
            self.run.laws.gave_up(self, list(connection.waiting))
            connection.close(abort=True)
            raise Lost("timed out") from exc

    async def find(self, topic: str) -> dict[int, int]:
        """Requests the metadata of a topic. Returns the gateway's port for each partition's leader.

        Raises:
            Lost: there was no reply.
        """
        connection = await self.connect(self.run.bootstrap_port)
        try:
            version = self.dice.choice((1, 2, 3))
            correlation_id = self.next_id()
            frame = messages.api_versions_request(version, correlation_id, self.plan.client_id)
            await self.reply(
                connection.ask(messages.API_VERSIONS, version, frame, correlation_id), connection
            )
            correlation_id = self.next_id()
            frame = _patched(_metadata_request(9, self.plan.client_id, (topic,), False), correlation_id)
            reply = await self.reply(connection.ask(messages.METADATA, 9, frame, correlation_id), connection)
            leaders, hosts = _leaders(reply, topic)
            self.run.laws.brokers_are_hidden(self, hosts)
            return leaders
        finally:
            connection.close()


_FOUND: dict[tuple[bytes, str], tuple[dict[int, int], frozenset[str]]] = {}
_REQUESTS: dict[tuple[Any, ...], bytes] = {}


def _patched(frame: bytes, correlation_id: int) -> bytes:
    return frame[:8] + correlation_id.to_bytes(4, "big") + frame[12:]


def _metadata_request(version: int, client_id: str, topics: tuple[str, ...], create: bool) -> bytes:
    key = (version, client_id, topics, create)
    known = _REQUESTS.get(key)
    if known is None:
        fields: dict[str, Any] = {"topics": [{"name": name} for name in topics]}
        if version >= 4:
            fields["allow_auto_topic_creation"] = create
        known = _REQUESTS[key] = wire.request("Metadata", version, client_id=client_id, **fields)
    return known


def _leaders(reply: bytes, topic: str) -> tuple[dict[int, int], frozenset[str]]:
    """The port of each partition's leader, and the hosts of all brokers."""
    key = (reply[8:], topic)
    known = _FOUND.get(key)
    if known is None:
        body = wire.decode_response("Metadata", 9, reply)
        ports = {each.node_id: each.port for each in body.brokers}
        leaders: dict[int, int] = {}
        for each in body.topics:
            if each.name == topic and not each.error_code:
                leaders = {
                    part.partition_index: ports[part.leader_id]
                    for part in each.partitions
                    if part.leader_id in ports
                }
        if len(_FOUND) > 5_000:
            _FOUND.clear()
        known = _FOUND[key] = (leaders, frozenset(each.host for each in body.brokers))
    return known


# -- honest --------------------------------------------------------------------------------------------------


async def _rest(actor: Actor, connection: Connection) -> None:
    """Waits between two requests: the client's own pause, and the wait that the gateway asked for."""
    if actor.options.get("honours", True):
        wait_ns = connection.quiet_until_ns - actor.run.world.now_ns
        if wait_ns > 0:
            await actor.sleep_ms(wait_ns / NS_PER_MS)
    pause_ms = actor.options.get("pause_ms", 0)
    if pause_ms:
        await actor.sleep_ms(actor.dice.randrange(pause_ms // 2, pause_ms + pause_ms // 2 + 1))


async def _on_leader(
    actor: Actor, work: Callable[[Actor, Connection, int], Coroutine[Any, Any, None]]
) -> None:
    """Finds the leader of a partition and works there, repeatedly."""
    while actor.going:
        try:
            leaders = await actor.find(actor.options["topic"])
            if not leaders:
                await actor.sleep_ms(300)
                continue
            partition = actor.dice.choice(sorted(leaders))
            connection = await actor.connect(leaders[partition])
            try:
                await work(actor, connection, partition)
            finally:
                # Before it ends, a client waits for its replies as patiently as for each request.
                for asked in list(connection.waiting):
                    try:
                        await actor.reply(asked.future, connection)
                    except Lost:
                        break
                connection.close()
        except Lost:
            await actor.sleep_ms(200)


async def _produce(actor: Actor, connection: Connection, partition: int) -> None:
    options, dice = actor.options, actor.dice
    version, acks, client_id = options["version"], options["acks"], actor.plan.client_id
    sent = 0
    unanswered: deque[asyncio.Future[bytes]] = deque()
    while actor.going and not connection.lost_now:
        if options["each_connection"] and sent >= options["each_connection"]:
            return
        size = int(options["most_bytes"] ** dice.random()) + 20
        records = messages.batch(payload(client_id, size))
        correlation_id = actor.next_id()
        frame = messages.produce_request(
            version, correlation_id, client_id, options["topic"], partition, records, acks
        )
        sent += 1
        if acks == 0:
            connection.write(frame)
            await actor.sleep_ms(max(5, options["pause_ms"]))
            if dice.random() < 0.02:
                return
            continue
        unanswered.append(connection.ask(messages.PRODUCE, version, frame, correlation_id))
        while len(unanswered) >= options["in_flight"]:
            reply = await actor.reply(unanswered.popleft(), connection)
            if messages.read_produce_error(version, reply, options["topic"]):
                return  # the leader has moved
        await _rest(actor, connection)


async def _consume(actor: Actor, connection: Connection, partition: int) -> None:
    options = actor.options
    version, client_id = options["version"], actor.plan.client_id
    session = (0, 0) if options["sessions"] and version >= 7 else (0, -1)
    sent = 0
    unanswered: deque[asyncio.Future[bytes]] = deque()
    while actor.going and not connection.lost_now:
        if options["each_connection"] and sent >= options["each_connection"]:
            return
        correlation_id = actor.next_id()
        frame = messages.fetch_request(
            version,
            correlation_id,
            client_id,
            topic=options["topic"] if session[1] <= 0 else None,
            partition=partition,
            max_wait_ms=options["wait_ms"],
            max_bytes=options["most_bytes"],
            session=session,
        )
        sent += 1
        unanswered.append(connection.ask(messages.FETCH, version, frame, correlation_id))
        while len(unanswered) >= (1 if session[1] >= 0 else options["in_flight"]):
            reply = await actor.reply(unanswered.popleft(), connection)
            got = _read_records(actor, version, reply)
            if session[1] >= 0:
                # Error 71 or any other: begins a new session.
                session = (0, 0) if got.error_code else (got.session_id, session[1] + 1)
        await _rest(actor, connection)


def _read_records(actor: Actor, version: int, reply: bytes) -> messages.Delivered:
    """Reads the reply to a Fetch and checks that its records are those of the client's topic."""
    got = messages.read_fetch_response(version, reply)
    if got.records_bytes:
        topic = actor.options["topic"]
        at = got.records_at + messages.BATCH_BYTES
        size = got.records_bytes - messages.BATCH_BYTES
        if got.topic != topic or reply[at : at + size] != payload(topic, size):
            actor.run.report(
                "bytes_of_others", f"{actor.plan.client_id} got records that are not those of {topic}"
            )
    return got


async def _blend(actor: Actor, connection: Connection, partition: int) -> None:
    options, dice, client_id = actor.options, actor.dice, actor.plan.client_id
    unanswered: deque[tuple[int, asyncio.Future[bytes]]] = deque()
    while actor.going and not connection.lost_now:
        key = dice.choice((messages.PRODUCE, messages.FETCH, messages.HEARTBEAT))
        correlation_id = actor.next_id()
        if key == messages.PRODUCE:
            version = 9
            records = messages.batch(payload(client_id, int(options["most_bytes"] ** dice.random()) + 20))
            frame = messages.produce_request(
                version, correlation_id, client_id, options["topic"], partition, records, 1
            )
        elif key == messages.FETCH:
            version = 11
            frame = messages.fetch_request(
                version,
                correlation_id,
                client_id,
                topic=options["topic"],
                partition=partition,
                max_wait_ms=100,
                max_bytes=options["most_bytes"],
            )
        else:
            version = 4
            frame = messages.heartbeat_request(version, correlation_id, client_id)
        unanswered.append((key, connection.ask(key, version, frame, correlation_id)))
        while len(unanswered) >= options["in_flight"]:
            key, future = unanswered.popleft()
            reply = await actor.reply(future, connection)
            if key == messages.FETCH:
                _read_records(actor, 11, reply)
        await _rest(actor, connection)


async def _offer(actor: Actor, connection: Connection, partition: int) -> None:
    options, run, client_id = actor.options, actor.run, actor.plan.client_id
    size, version = options["bytes"], options["version"]
    began_ns = run.end_ns - run.plan.seconds * NS_PER_S
    records = messages.batch(payload(client_id, size))
    ready, then_ns = 0.0, run.world.now_ns
    while actor.going and not connection.lost_now:
        now_ns = run.world.now_ns
        rate = options["rates"][now_ns - began_ns >= options["change_s"] * NS_PER_S]
        # A client has bounded buffers: records that wait for longer than a second are dropped.
        ready = min(ready + rate * (now_ns - then_ns) / NS_PER_S, rate + size)
        then_ns = now_ns
        if ready < size:
            await actor.sleep_ms(min(100.0, 1 + 1000 * (size - ready) / rate))
            continue
        ready -= size
        correlation_id = actor.next_id()
        frame = messages.produce_request(
            version, correlation_id, client_id, options["topic"], partition, records, 1
        )
        reply = await actor.reply(
            connection.ask(messages.PRODUCE, version, frame, correlation_id), connection
        )
        if messages.read_produce_error(version, reply, options["topic"]):
            return  # the leader has moved
        await _rest(actor, connection)


async def offer(actor: Actor) -> None:
    """A producer that has a given number of bytes per second, and sends them as far as its waits allow."""
    await _on_leader(actor, _offer)


async def produce(actor: Actor) -> None:
    """A producer."""
    await _on_leader(actor, _produce)


async def consume(actor: Actor) -> None:
    """A consumer."""
    await _on_leader(actor, _consume)


async def blend(actor: Actor) -> None:
    """Uses one connection for everything, as librdkafka does."""
    await _on_leader(actor, _blend)


async def _on_bootstrap(actor: Actor, work: Callable[[Actor, Connection], Coroutine[Any, Any, None]]) -> None:
    while actor.going:
        try:
            connection = await actor.connect(actor.run.bootstrap_port)
            try:
                while actor.going and not connection.lost_now:
                    await work(actor, connection)
                    await _rest(actor, connection)
            finally:
                connection.close()
        except Lost:
            await actor.sleep_ms(200)


async def beat(actor: Actor) -> None:
    """A member of a consumer group that sends heartbeats."""

    async def work(actor: Actor, connection: Connection) -> None:
        version, correlation_id = actor.options["version"], actor.next_id()
        frame = messages.heartbeat_request(version, correlation_id, actor.plan.client_id)
        await actor.reply(connection.ask(messages.HEARTBEAT, version, frame, correlation_id), connection)

    await _on_bootstrap(actor, work)


async def _ask(actor: Actor, connection: Connection, api: str, version: int, **fields: Any) -> Any:
    correlation_id = actor.next_id()
    frame = wire.request(
        api, version, client_id=actor.plan.client_id, correlation_id=correlation_id, **fields
    )
    reply = await actor.reply(
        connection.ask(wire.api_key_of(api), version, frame, correlation_id), connection
    )
    return wire.decode_response(api, version, reply)


async def administer(actor: Actor) -> None:
    """Creates, grows and deletes topics."""
    own: dict[str, int] = {}
    strict, dice = actor.options["strict"], actor.dice
    most = actor.options["most_partitions"]

    async def work(actor: Actor, connection: Connection) -> None:
        what = dice.random()
        if what < 0.6 or not own:
            names = [f"{actor.plan.client_id}-{actor.next_id()}" for _ in range(dice.choice((1, 1, 3)))]
            asked = {name: dice.randrange(1, most + 1) for name in names}
            body = await _ask(
                actor,
                connection,
                "CreateTopics",
                7 if strict else 4,
                topics=[
                    {
                        "name": name,
                        "num_partitions": count,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                    for name, count in asked.items()
                ],
                timeout_ms=10_000,
                validate_only=False,
            )
            own.update({each.name: asked[each.name] for each in body.topics if not each.error_code})
        elif what < 0.75:
            name = dice.choice(sorted(own))
            count = own[name] + dice.randrange(0, most)
            body = await _ask(
                actor,
                connection,
                "CreatePartitions",
                3 if strict else 1,
                topics=[{"name": name, "count": count, "assignments": None}],
                timeout_ms=10_000,
                validate_only=False,
            )
            if not body.results[0].error_code:
                own[name] = count
        else:
            name = dice.choice(sorted(own))
            body = await _ask(
                actor, connection, "DeleteTopics", 5 if strict else 3, topic_names=[name], timeout_ms=10_000
            )
            if body.responses[0].error_code in (0, 3):
                del own[name]

    await _on_bootstrap(actor, work)


async def look(actor: Actor) -> None:
    """Requests Metadata, also of topics that do not exist."""

    async def work(actor: Actor, connection: Connection) -> None:
        version, correlation_id = actor.options["version"], actor.next_id()
        names: tuple[str, ...] = ("a", "b")
        if actor.options["create"] and actor.dice.random() < 0.3:
            names = (*names, f"made-{actor.dice.randrange(6)}")
        request = _metadata_request(version, actor.plan.client_id, names, actor.options["create"])
        await actor.reply(
            connection.ask(messages.METADATA, version, _patched(request, correlation_id), correlation_id),
            connection,
        )

    await _on_bootstrap(actor, work)


async def alter_quotas(actor: Actor) -> None:
    """Changes the quotas of a client for which the plan has none, and checks that they are in force."""

    async def work(actor: Actor, connection: Connection) -> None:
        name = f"altered-{actor.dice.randrange(3)}"
        value = float(actor.dice.randrange(10_000, 1_000_000))
        # Other clients may change the same quota before the response arrives.
        actor.run.asked_quotas[name].append(value)
        body = await _ask(
            actor,
            connection,
            "AlterClientQuotas",
            1,
            entries=[
                {
                    "entity": [{"entity_type": "client-id", "entity_name": name}],
                    "ops": [{"key": "producer_byte_rate", "value": value, "remove": False}],
                }
            ],
            validate_only=False,
        )
        if not body.entries[0].error_code:
            actor.run.laws.acknowledged(actor.plan.gateway, name, value)

    await _on_bootstrap(actor, work)


# -- not honest ----------------------------------------------------------------------------------------------


async def _port_of(actor: Actor) -> int:
    try:
        leaders = await actor.find("a")
    except Lost:
        return actor.run.bootstrap_port
    return actor.dice.choice(sorted(leaders.values())) if leaders else actor.run.bootstrap_port


async def _again_and_again(actor: Actor, attack: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    port = await _port_of(actor)
    while actor.going:
        try:
            connection = await actor.connect(port)
        except Lost:
            await actor.sleep_ms(200)
            continue
        try:
            await attack(connection)
        except Lost:
            pass
        finally:
            connection.close(abort=actor.dice.random() < 0.5)
        await actor.sleep_ms(actor.options["pause_ms"])


def _large_head(actor: Actor, size: int) -> bytes:
    frame = messages.produce_request(
        9,
        actor.next_id(),
        actor.plan.client_id,
        "a",
        0,
        messages.batch(payload(actor.plan.client_id, 100)),
        1,
    )
    return size.to_bytes(4, "big") + frame[4:40]


async def announce(actor: Actor) -> None:
    """Announces large requests, sends little of them, and leaves."""

    async def attack(connection: Connection) -> None:
        head = _large_head(actor, actor.options["bytes"])
        connection.write(head)
        if actor.options["sends"]:
            connection.write(payload(actor.plan.client_id, actor.options["sends"]))
        await actor.sleep_ms(actor.dice.randrange(1, 400))

    await _again_and_again(actor, attack)


async def drip(actor: Actor) -> None:
    """Sends single bytes."""

    async def attack(connection: Connection) -> None:
        frame = messages.heartbeat_request(4, actor.next_id(), actor.plan.client_id)
        for at in range(len(frame) - 1):
            connection.write(frame[at : at + 1])
            await actor.sleep_ms(actor.dice.randrange(10, 300))
            if not actor.going or connection.lost_now:
                return

    await _again_and_again(actor, attack)


async def halves(actor: Actor) -> None:
    """Sends requests and half of another one, and then half-closes or leaves."""

    async def attack(connection: Connection) -> None:
        for _ in range(actor.dice.randrange(0, 4)):
            correlation_id = actor.next_id()
            frame = messages.heartbeat_request(3, correlation_id, actor.plan.client_id)
            connection.ask(messages.HEARTBEAT, 3, frame, correlation_id)
        frame = messages.produce_request(
            9,
            actor.next_id(),
            actor.plan.client_id,
            "a",
            0,
            messages.batch(payload(actor.plan.client_id, 900)),
            1,
        )
        connection.write(frame[: actor.dice.randrange(1, len(frame))])
        await actor.sleep_ms(actor.dice.randrange(1, 50))
        if actor.dice.random() < 0.7:
            connection.half_close()
            await actor.sleep_ms(actor.dice.randrange(1, 3_000))

    await _again_and_again(actor, attack)


async def flood(actor: Actor) -> None:
    """Sends many ApiVersions requests, some in unknown versions."""

    async def attack(connection: Connection) -> None:
        for _ in range(20):
            for _ in range(15):
                correlation_id = actor.next_id()
                version = actor.dice.choice((0, 3, 99))
                frame = messages.api_versions_request(version, correlation_id, actor.plan.client_id)
                connection.ask(messages.API_VERSIONS, version, frame, correlation_id)
            await actor.sleep_ms(20)
            if connection.lost_now:
                return
        if connection.waiting:
            await actor.reply(connection.waiting[-1].future, connection)

    await _again_and_again(actor, attack)


async def junk(actor: Actor) -> None:
    """Sends bytes that are not requests."""

    async def attack(connection: Connection) -> None:
        connection.write(actor.dice.randbytes(actor.dice.choice((3, 40, 3_000))))
        await actor.sleep_ms(actor.dice.randrange(1, 600))

    await _again_and_again(actor, attack)


async def crowd(actor: Actor) -> None:
    """Opens many connections and sends the beginning of a request on each."""
    port = await _port_of(actor)
    while actor.going:
        open_now: list[Connection] = []
        for _ in range(actor.options["count"]):
            try:
                connection = await actor.connect(port)
            except Lost:
                break
            connection.write(_large_head(actor, 50_000))
            open_now.append(connection)
        await actor.sleep_ms(actor.options["pause_ms"] + 200)
        for connection in open_now:
            connection.close(abort=actor.dice.random() < 0.3)


def _ask_for_records(actor: Actor, connection: Connection) -> None:
    correlation_id = actor.next_id()
    frame = messages.fetch_request(
        11,
        correlation_id,
        actor.plan.client_id,
        topic="a",
        partition=0,
        max_wait_ms=500,
        max_bytes=1_000_000,
    )
    connection.ask(messages.FETCH, 11, frame, correlation_id)


async def leave(actor: Actor) -> None:
    """Requests records and leaves before they arrive."""

    async def attack(connection: Connection) -> None:
        for _ in range(actor.dice.randrange(1, 4)):
            _ask_for_records(actor, connection)
        await actor.sleep_ms(actor.dice.randrange(0, 30))

    await _again_and_again(actor, attack)


async def vanish(actor: Actor) -> None:
    """Loses power in the middle of its work, so that nothing closes its connections."""

    async def attack(connection: Connection) -> None:
        for _ in range(actor.dice.randrange(0, 4)):
            if actor.dice.random() < 0.5:
                correlation_id = actor.next_id()
                frame = messages.heartbeat_request(4, correlation_id, actor.plan.client_id)
                connection.ask(messages.HEARTBEAT, 4, frame, correlation_id)
            else:
                _ask_for_records(actor, connection)
        if actor.dice.random() < 0.3:
            connection.write(_large_head(actor, 50_000))
        await actor.sleep_ms(actor.dice.randrange(0, 2_000))
        connection.close(vanish=True)

    await _again_and_again(actor, attack)


async def ahead(actor: Actor) -> None:
    """Sends many Produce requests at once without waiting for replies; uses each connection for a second."""

    async def attack(connection: Connection) -> None:
        for _ in range(actor.options["count"]):
            correlation_id = actor.next_id()
            size = actor.dice.randrange(100, 3_000)
            frame = messages.produce_request(
                7,
                correlation_id,
                actor.plan.client_id,
                "a",
                0,
                messages.batch(payload(actor.plan.client_id, size)),
                1,
            )
            connection.ask(messages.PRODUCE, 7, frame, correlation_id)
        await actor.sleep_ms(1_000)

    await _again_and_again(actor, attack)


def _produce_as(
    actor: Actor, client_id: str, connection: Connection, partition: int
) -> asyncio.Future[bytes]:
    options, correlation_id = actor.options, actor.next_id()
    records = messages.batch(payload(client_id, options["bytes"]))
    frame = messages.produce_request(
        9, correlation_id, client_id, options.get("topic", "a"), partition, records, 1
    )
    return connection.ask(messages.PRODUCE, 9, frame, correlation_id)


async def disguise(actor: Actor) -> None:
    """Produces as much as it can under many client ids, each with a connection of its own.

    Every `every_ms` it starts `names` new client ids, which live for `life_ms`. If `idle_s` is given, it alternates
    between that many idle seconds and as many busy ones.
    """
    options, run = actor.options, actor.run
    began_ns = run.world.now_ns

    async def live(client_id: str, leaders: dict[int, int], until_ns: int) -> None:
        partition = actor.dice.choice(sorted(leaders))
        idle_ns = options.get("idle_s", 0) * NS_PER_S
        with contextlib.suppress(Lost):
            connection = await actor.connect(leaders[partition])
            while actor.going and run.world.now_ns < until_ns:
                if idle_ns and (run.world.now_ns - began_ns) // idle_ns % 2 == 0:
                    await actor.sleep_ms(20)
                    continue
                async with asyncio.timeout(max(1, until_ns - run.world.now_ns) / NS_PER_S):
                    await _produce_as(actor, client_id, connection, partition)
                await actor.sleep_ms(options.get("pause_ms", 0))

    async def leave(client_id: str, leaders: dict[int, int], until_ns: int) -> None:
        with contextlib.suppress(TimeoutError):
            await live(client_id, leaders, until_ns)

    await actor.sleep_ms(options.get("after_ms", 0))
    leaders = await actor.find(options.get("topic", "a"))
    serial = itertools.count()
    async with asyncio.TaskGroup() as lives:
        while actor.going:
            until_ns = run.world.now_ns + options["life_ms"] * NS_PER_MS
            for _ in range(options["names"]):
                lives.create_task(leave(f"{actor.plan.client_id}-{next(serial)}", leaders, until_ns))
            await actor.sleep_ms(options["every_ms"])


HONEST: Final[dict[str, Callable[[Actor], Coroutine[Any, Any, None]]]] = {
    "offer": offer,
    "produce": produce,
    "consume": consume,
    "blend": blend,
    "beat": beat,
    "administer": administer,
    "look": look,
    "alter_quotas": alter_quotas,
}
ADVERSARIES: Final[dict[str, Callable[[Actor], Coroutine[Any, Any, None]]]] = {
    "announce": announce,
    "drip": drip,
    "halves": halves,
    "flood": flood,
    "junk": junk,
    "crowd": crowd,
    "leave": leave,
    "vanish": vanish,
    "ahead": ahead,
    "disguise": disguise,
}
BEHAVIOURS: Final = {**HONEST, **ADVERSARIES}
