"""Supervisor and workers over real socket pairs, with nothing behind the workers' end but what a test does."""

import asyncio
import errno
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from config import default_config, parse_bootstrap
from gateway.net.accepted_socket import AcceptedSocket
from gateway.net.listening import PlainSocket
from gateway.server import nursery, workers
from gateway.server.carrier import Carrier
from gateway.server.link import Link
from gateway.server.nursery import Nursery, WorkerSockets
from gateway.server.reload import plan
from gateway.server.supervisor import Supervisor
from gateway.server.worker import Start, WorkerSide, handover_message
from gateway.server.workers import WorkerPool
from gateway.upstream.topology import ClusterMap, Found
from quotas.entities import QuotaEntity, QuotaKey
from quotas.lending import Brake
from quotas.limits import Enforcement, Limits
from quotas.rate_quotas import RateSettings
from quotas.user_connections import UserConnections
from testkit.raw_client import until


class Places:
    """Counts what was given back."""

    def __init__(self) -> None:
        self.released: list[tuple[str, str]] = []

    def release(self, listener: str, ip: str) -> None:
        self.released.append((listener, ip))


class Ends:
    """A nursery that forks nothing: the workers' ends of the sockets, by number."""

    def __init__(self) -> None:
        self.gone = False
        self.of: dict[int, WorkerSockets] = {}
        self.pid = 100
        self.longest_drain_ms = 0
        self._all: list[WorkerSockets] = []

    def fork(self, number: int, sockets: WorkerSockets) -> int:
        self.of[number] = sockets
        self._all.append(sockets)
        self.pid += 1
        return self.pid

    def set_longest_drain(self, longest_drain_ms: int) -> None:
        self.longest_drain_ms = longest_drain_ms

    def stop(self) -> None:
        for sockets in self._all:
            sockets.close()


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
async def pool(ends: Ends) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(ends, 2, now_ms=lambda: 0)  # type: ignore[arg-type]
    pool.give_back_to(Places(), lambda _listener: None)
    yield pool
    pool.stop()
    await asyncio.sleep(0)


async def fork(pool: WorkerPool, ends: Ends, number: int, **handlers: Any) -> Link:
    """One more worker; its end of the link."""
    await pool._fork(number)
    link = Link(handlers, lambda: None)
    await link.open(ends.of[number].link)
    return link


async def ready(link: Link, pool: WorkerPool, number: int) -> None:
    link.tell("ready")
    await until(lambda: pool.workers[number].serves)


def supervisor(pool: WorkerPool, operations: Any = None, limits: Limits | None = None) -> Supervisor:
    connections: Any = Places()
    unused: Any = SimpleNamespace()
    cluster = ClusterMap([("seed", 9_092)])

    def open_port(_listener: str, _broker_id: int, found: Found) -> bool:
        cluster.learn_from(found)
        return True

    return Supervisor(
        pool,
        listeners={},
        open_port=open_port,
        connections=connections,
        users=UserConnections(limits or Limits(), RateSettings(), lambda: 10),
        live_quotas=unused,
        mutations=unused,
        operations=lambda: operations,
        on_usage=lambda _line: None,
        clusters={"main": cluster},
        now_ms=lambda: 0,
    )


def operations_of(mode: Enforcement) -> Any:
    return SimpleNamespace(config=default_config(parse_bootstrap("127.0.0.1:9092")), mode=mode, brakes={})


async def test_usage_is_told_to_workers_that_serve_alone(pool: WorkerPool, ends: Ends) -> None:
    supervisor(pool, operations_of(Enforcement.ENFORCE))
    heard: list[Any] = []
    serving = await fork(pool, ends, 0, shares=heard.append)
    beginning = await fork(pool, ends, 1, mode=lambda _mode, _by: None)  # which does not know shares yet
    await serving.ask("begin")
    await ready(serving, pool, 0)
    serving.tell("shares", [b"first"])
    await until(lambda: heard == [[b"first"]])
    assert isinstance(await beginning.ask("begin"), Start)
    assert not beginning.lost


async def test_usage_of_the_process_before_does_not_end_a_worker_that_begins(pool: WorkerPool, ends: Ends) -> None:
    """Messages about usage come ten times a second, and the first one ended a worker without a handler for it."""
    supervisor(pool, operations_of(Enforcement.ENFORCE))
    carrier = Carrier({}, pool, lambda: 0)
    heard: list[Any] = []
    kinds = ("take_counter_states", "take_use", "tell_use")
    serving = await fork(
        pool, ends, 0, **{kind: lambda value, kind=kind: heard.append((kind, value)) for kind in kinds}
    )
    await serving.ask("begin")
    await ready(serving, pool, 0)
    beginning = await fork(pool, ends, 1)
    carrier.take_states([])
    carrier.tell_use(lambda _rows: None)
    carrier.take_use([])
    carrier.stop()
    await until(lambda: len(heard) == 4)
    assert heard == [("take_counter_states", []), ("tell_use", True), ("take_use", []), ("tell_use", False)]
    assert isinstance(await beginning.ask("begin"), Start)
    assert list(pool.workers) == [0, 1]


@pytest.mark.parametrize("hurried", [False, True])
async def test_worker_that_begins_is_drained_too(pool: WorkerPool, ends: Ends, hurried: bool) -> None:
    heard: list[str] = []
    hurry = asyncio.Event()
    link = await fork(pool, ends, 0, drain=lambda _gently: heard.append("drain"), hurry=lambda: heard.append("hurry"))
    draining = asyncio.create_task(pool.drain(60.0, hurry=hurry))
    await until(lambda: heard == ["drain"])
    if hurried:
        hurry.set()
        await until(lambda: heard == ["drain", "hurry"])
    link.close()
    await draining


async def test_worker_is_not_asked_to_close_a_connection_of_the_one_before(pool: WorkerPool, ends: Ends) -> None:
    """It had no handler for the question yet, and ended."""
    supervising = supervisor(pool, operations_of(Enforcement.ENFORCE))
    crowded = [["one", "two"], []]
    supervising._crowded = lambda: crowded.pop(0)  # type: ignore[method-assign]
    asked: list[str] = []
    answer = asyncio.Event()

    async def idle_since(name: str) -> int | None:
        asked.append(name)
        if name == "one":
            return 1
        await answer.wait()
        return None

    dies, lives = [await fork(pool, ends, number, idle_since=idle_since) for number in range(2)]
    for number, link in enumerate((dies, lives)):
        await link.ask("begin")
        await ready(link, pool, number)
    evicting = asyncio.create_task(supervising._evict())
    await until(lambda: asked == ["one", "one", "two", "two"])
    dies.close()
    await until(lambda: ends.pid == 103)
    beginning = Link({}, lambda: None)
    await beginning.open(ends.of[0].link)
    answer.set()
    await evicting
    assert isinstance(await beginning.ask("begin"), Start)


async def test_connections_of_users_of_a_worker_that_died_are_no_more(pool: WorkerPool, ends: Ends) -> None:
    limits = Limits()
    limits.set(QuotaEntity("alice"), QuotaKey.CONNECTION_COUNT, 3)
    supervising = supervisor(pool, operations_of(Enforcement.ENFORCE), limits)
    dies, lives = await fork(pool, ends, 0), await fork(pool, ends, 1)
    assert (await dies.ask("user_enters", "alice", 1)).decision == "admit"
    dies.tell("users_changed", [], [(2, "alice")])
    # The same number of another worker is another connection.
    assert (await lives.ask("user_enters", "alice", 1)).decision == "admit"
    assert (await lives.ask("user_enters", "alice", 2)).decision == "refuse"
    dies.close()
    await until(lambda: supervising._users.by_user == {"alice": 1})
    lives.tell("users_changed", [1, 1, 7], [])
    await until(lambda: not supervising._users.by_user)


async def test_a_worker_that_began_before_a_reload_gets_the_mode_of_now(pool: WorkerPool, ends: Ends) -> None:
    operations = operations_of(Enforcement.ENFORCE)
    supervisor(pool, operations)
    told: list[Any] = []
    link = await fork(
        pool,
        ends,
        0,
        reload=lambda plan, _by: told.append(plan.config.enforcement.mode),
        mode=lambda mode, _by: told.append(mode),
    )
    await link.ask("begin")
    # The file turns quotas off, and the kill switch puts them back before the worker serves.
    enforcement = operations.config.enforcement.model_copy(update={"mode": Enforcement.OFF})
    operations.config = operations.config.model_copy(update={"enforcement": enforcement})
    await ready(link, pool, 0)
    await until(lambda: told == [Enforcement.OFF, Enforcement.ENFORCE])


async def test_nothing_is_kept_of_a_worker_that_died_before_it_served(pool: WorkerPool, ends: Ends) -> None:
    supervising = supervisor(pool, operations_of(Enforcement.ENFORCE))
    link = await fork(pool, ends, 0)
    await link.ask("begin")
    assert len(supervising._began) == 1
    link.close()
    await until(lambda: pool.restarts == 1)
    assert supervising._began == {}


async def test_a_worker_that_begins_gets_the_brakes_of_now(pool: WorkerPool, ends: Ends) -> None:
    operations = operations_of(Enforcement.ENFORCE)
    supervisor(pool, operations)
    heard: list[Any] = []
    link = await fork(pool, ends, 0, brakes=lambda brakes, _by: heard.append(brakes))
    await link.ask("begin")
    operations.brakes = {3: Brake(0.2, 60_000, "ops")}
    await ready(link, pool, 0)
    await until(lambda: heard == [operations.brakes])


async def test_all_workers_hear_of_a_broker_that_one_has_discovered(pool: WorkerPool, ends: Ends) -> None:
    supervisor(pool, operations_of(Enforcement.ENFORCE))
    heard: defaultdict[int, list[Any]] = defaultdict(list)
    links = [await fork(pool, ends, number, brokers=heard[number].append) for number in range(2)]
    for number, link in enumerate(links):
        assert (await link.ask("begin")).brokers == {"main": Found(None, {})}
        if not number:
            await ready(link, pool, number)
    found = {"main": Found("a cluster", {4: ("broker-4", 9_092)})}
    assert await links[0].ask("open_port", "clients", 4, found["main"])
    assert await links[0].ask("open_port", "clients", 5, Found("another", {5: ("broker-5", 9_092)}))
    # The other one has begun with less, and does not serve yet.
    await ready(links[1], pool, 1)
    assert await links[1].ask("open_port", "clients", 4, found["main"])
    await until(lambda: heard == {0: [found], 1: [found]})
    # One that replaces a killed worker knows it from its start.
    assert (await (await fork(pool, ends, 2)).ask("begin")).brokers == found


async def test_what_a_tier_uses_is_the_most_that_a_worker_knows_of(pool: WorkerPool, ends: Ends) -> None:
    supervising = supervisor(pool, operations_of(Enforcement.ENFORCE))
    produce, fetch = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
    assert await supervising.tier_use(3) == {}
    for number, use in enumerate(({produce: 0.0, fetch: 7.0}, {produce: 5.0, fetch: 2.0})):
        link = await fork(pool, ends, number, tier_use=lambda tier, use=use: use if tier == 3 else {})
        await link.ask("begin")
        await ready(link, pool, number)
    assert await supervising.tier_use(3) == {produce: 5.0, fetch: 7.0}


async def test_a_reload_says_how_long_workers_may_drain_without_their_supervisor(
    pool: WorkerPool, ends: Ends
) -> None:
    running = default_config(parse_bootstrap("127.0.0.1:9092"))
    drain = running.drain.model_copy(update={"timeout_ms": 2_000})
    decided = plan(running, running.model_copy(update={"drain": drain}))
    await supervisor(pool).spread("reload", decided, "a test")
    assert ends.longest_drain_ms == 3_000


async def test_answer_of_a_worker_that_died_before_the_others_answered_does_not_count(
    pool: WorkerPool, ends: Ends
) -> None:
    answers = asyncio.Event()
    answered: list[int] = []
    dies = await fork(pool, ends, 0, metrics=lambda: answered.append(0))
    lives = await fork(pool, ends, 1, metrics=answers.wait)
    for number, link in enumerate((dies, lives)):
        await ready(link, pool, number)
    asked = asyncio.ensure_future(pool.ask_all("metrics", within_s=60.0))
    await until(lambda: answered)
    dies.close()
    await until(lambda: pool.restarts == 1)
    answers.set()
    assert await asked == {1: True}


async def test_a_worker_whose_sockets_could_not_be_made_is_tried_again(
    pool: WorkerPool, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(workers, "_AGAIN_S", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(WorkerSockets, "pair", full)
        await pool._fork(0)
        assert pool.workers == {}
    await until(lambda: 0 in pool.workers)


async def test_sockets_are_handed_over_once_the_kernel_has_room_again(
    pool: WorkerPool, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        monkeypatch.undo()
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    link = await fork(pool, ends, 0)
    await ready(link, pool, 0)
    monkeypatch.setattr(socket, "send_fds", full)
    client, accepted = socket.socketpair()
    pool.hand_over("a", AcceptedSocket(PlainSocket(fileno=accepted.detach()), "10.0.0.1", 1, None, None, None))
    handover = ends.of[0].handover
    handover.setblocking(False)
    message, descriptors = b"", []

    def received() -> bool:
        nonlocal message, descriptors
        try:
            message, descriptors, _, _ = socket.recv_fds(handover, 1024, 1)
        except BlockingIOError:
            return False
        return True

    await until(received)
    assert len(descriptors) == 1
    os.close(descriptors[0])
    client.close()


async def test_a_socket_that_did_not_arrive_gives_its_place_back_and_a_failed_tick_ends_no_others() -> None:
    ours, theirs = WorkerSockets.pair()
    told: list[Any] = []
    supervisor_link = Link(
        {"ready": lambda: told.append("ready"), "alive": lambda: told.append("alive"), "ended": told.append},
        lambda: None,
    )
    await supervisor_link.open(ours.link)
    side = WorkerSide(1, theirs)
    await side.link.open(theirs.link)
    ticks: list[int] = []

    def fails_at_first() -> None:
        ticks.append(len(ticks))
        if len(ticks) == 2:
            raise ValueError("a fault of ours")

    side.on_tick.append(fails_at_first)
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context["exception"]))
    operations = SimpleNamespace(set_mode=None, set_brakes=None)
    side.serve(SimpleNamespace(operations=operations, learn_brokers=None))  # type: ignore[arg-type]
    sock = PlainSocket(socket.AF_INET, socket.SOCK_STREAM)
    ours.handover.send(handover_message("a", AcceptedSocket(sock, "10.0.0.1", 1, None, None, None)))
    sock.close()
    await until(lambda: [("a", "10.0.0.1")] in told)
    await until(lambda: len(ticks) > 3)
    assert [type(each) for each in failed] == [ValueError]
    side.close()
    supervisor_link.close()
    for each in (ours, theirs):
        each.handover.close()
        each.asking.close()


def test_a_nursery_that_does_not_answer_in_time_forks_no_more() -> None:
    nursery = object.__new__(Nursery)  # the constructor forks
    nursery._sock, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery._sock.settimeout(0.05)
    nursery._longest_drain_ms = 0
    nursery.gone = False
    for _ in range(2):
        ours, theirs = WorkerSockets.pair()
        with pytest.raises(OSError):
            nursery.fork(0, theirs)
        ours.close()
        assert nursery.gone
        assert theirs.link.fileno() < 0
    # What it would have answered late is no one's.
    with pytest.raises(OSError):
        other.send(b"\0\0\0\1")
    other.close()
    nursery.set_longest_drain(1)  # sends it to no one


def test_a_nursery_that_is_out_of_descriptors_says_so_and_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("signal", "pthread_sigmask"):
        monkeypatch.setattr(nursery.signal, name, lambda *_: None)
    asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with asking, asked:
        for _ in range(2):
            asking.send(nursery._REQUEST.pack(0, 0))  # as it arrives where the sockets find no place
        asking.shutdown(socket.SHUT_WR)
        nursery._nurse(asked, lambda _number, _sockets: None)
        replies = [nursery._REPLY.unpack(asking.recv(nursery._REPLY.size)) for _ in range(2)]
    assert replies == [(-errno.EMFILE,)] * 2
