"""What several processes report, added up as that of one gateway."""

import re
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from config import default_config, parse_bootstrap
from gateway.handlers.recent_topics import NOTE_MS, RecentTopics
from gateway.observability.events import CloseCause
from gateway.runtime.slices import in_slices
from gateway.server.merged_metrics import LARGEST, Departed, merged, merging, packing, unpacking
from gateway.server.merged_status import MergedMetrics, _most_used, _slowest
from gateway.server.shared_topics import SharedRecentTopics, TopicEvents
from gateway.server.worker import share_of
from gateway.usage.forwarding import WorkersRows
from protocol.api_keys import ApiKey
from quotas.usage_record import Row, TopicRow
from testkit import wire
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation
from testkit.core import GatewayCore
from testkit.frames import streams_heartbeat, subtopology


def families(opened: float, active: float, rate: float, version: float) -> list[Metric]:
    counter = CounterMetricFamily("gateway_connections_opened", "", labels=["listener"])
    counter.add_metric(["a"], opened)
    closed = CounterMetricFamily("gateway_connections_closed", "", labels=["listener", "cause"])
    closed.add_metric(["a", "client_closed"], opened - active)
    gauge = GaugeMetricFamily("gateway_connections_active", "", labels=["listener"])
    gauge.add_metric(["a"], active)
    of_client = GaugeMetricFamily("gateway_produce_byte_rate", "", labels=["user"])
    of_client.add_metric(["alice"], rate)
    of_group = GaugeMetricFamily("gateway_group_use", "", labels=["group"])
    of_group.add_metric(["team"], rate)
    stalls = HistogramMetricFamily("gateway_event_loop_stall_seconds", "")
    stalls.add_metric([], [("0.1", opened), ("+Inf", opened)], 0.5)
    version_family = GaugeMetricFamily("gateway_quota_store_version", "", value=version)
    return [counter, closed, gauge, of_client, of_group, stalls, version_family]


def values(found: list[Metric]) -> dict[str, float]:
    return {sample.name: sample.value for family in found for sample in family.samples}


def closed_by(found: list[Metric]) -> dict[str, float]:
    closed = next(family for family in found if family.name == "gateway_connections_closed")
    return {sample.labels["cause"]: sample.value for sample in closed.samples}


def taken(steps: Generator[None, None, list[Metric]]) -> tuple[int, list[Metric]]:
    """The number of steps, and their result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_merging_and_unpacking_take_a_step_for_each_series_or_family() -> None:
    own, others = families(0, 0, 0, 7), [families(2, 1, 50, 0), families(3, 2, 70, 0)]
    count, unpacked = taken(unpacking(part for family in others[0] for part in packing(family)))
    assert (count, values(unpacked)) == (len(others[0]), values(others[0]))
    count, found = taken(merging(own, others))
    assert values(found) == values(merged(own, others))
    # The supervisor alone has the version of the store.
    assert count == sum(len(family.samples) for each in (own, *others) for family in each) - len(others)


def test_a_family_of_many_series_is_sent_in_parts_and_one_without_series_too() -> None:
    many = CounterMetricFamily("gateway_connections_opened", "", labels=["listener"])
    for at in range(1_234):
        many.add_metric([str(at)], at)
    empty = GaugeMetricFamily("gateway_connections_active", "", labels=["listener"])
    count, parts = taken(unpacking(part for family in (many, empty) for part in packing(family)))
    assert count == 3 + 1
    found = merged((), [parts])
    assert [family.name for family in found] == [many.name, empty.name]
    assert [family.samples for family in found] == [many.samples, []]


def test_counters_and_histograms_add_up_and_gauges_by_their_meaning() -> None:
    found = values(merged(families(0, 0, 0, 7), [families(2, 1, 50, 0), families(3, 2, 70, 0)]))
    assert found["gateway_connections_opened_total"] == 5
    assert found["gateway_connections_active"] == 3
    assert found["gateway_produce_byte_rate"] == 70  # each worker knows the whole
    assert found["gateway_group_use"] == 70
    assert found["gateway_event_loop_stall_seconds_count"] == 5
    assert found["gateway_quota_store_version"] == 7


def test_each_gauge_of_a_clients_counter_shows_the_largest_value() -> None:
    """Workers know the whole use of a counter, so their values are not added up."""
    page = Path("docs/reference/metrics.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `(gateway_\w+)` \| gauge \| `user`, `client_id`", page, re.MULTILINE)
    assert len(found) > 20
    assert [name for name in found if not name.startswith(LARGEST)] == []


def test_the_overload_of_a_gateway_is_that_of_its_slowest_process_with_the_episodes_of_all() -> None:
    def told(usable: float, clients: int, *episodes: tuple[int, int | None]) -> dict[str, Any]:
        found = [{"from_ms": from_ms, "until_ms": until_ms} for from_ms, until_ms in episodes]
        return {"usable": usable, "clients": clients, "episodes": found}

    # The supervisor has no clients.
    found = _slowest([told(1, 0), told(0.8, 3, (5, None), (1, 2)), told(0.5, 2, (6, None), (3, 4)), None])
    assert (found["usable"], found["clients"]) == (0.5, 2)
    assert [each["from_ms"] for each in found["episodes"]] == [6, 5, 3, 1]
    assert _slowest([told(1, 0), told(1, 3), told(1, 2)])["clients"] == 3
    assert _slowest([None, None]) is None


def test_the_usable_part_of_a_capacity_is_that_of_the_worker_whose_brokers_are_slowest() -> None:
    def of(usable: float, time_s: float) -> list[Metric]:
        return [
            GaugeMetricFamily("gateway_produce_usable_capacity_ratio", "", value=usable),
            GaugeMetricFamily("gateway_produce_broker_time_seconds", "", value=time_s),
        ]

    found = values(merged(of(1.0, 0.0), [of(0.4, 0.9), of(0.7, 0.6)]))
    assert found == {"gateway_produce_usable_capacity_ratio": 0.4, "gateway_produce_broker_time_seconds": 0.9}


def test_i10_what_a_dead_worker_counted_stays_and_what_it_held_goes() -> None:
    departed = Departed()
    departed.others({0: families(2, 1, 50, 0), 1: families(3, 2, 70, 0)})
    departed.lost(1, CloseCause.WORKER_LOST)
    found = values(merged(families(0, 0, 0, 7), departed.others({0: families(4, 1, 50, 0)})))
    assert found["gateway_connections_opened_total"] == 4 + 3
    assert found["gateway_connections_active"] == 1
    silent = merged(families(0, 0, 0, 7), departed.others({}))
    assert values(silent)["gateway_connections_opened_total"] == 4 + 3
    # Opened less closed is active: the other worker has one connection.
    assert closed_by(silent) == {"client_closed": 3 + 1, "worker_lost": 2}


class Pool:
    """A `WorkerPool` of one worker, which may be lost and replaced."""

    def __init__(self) -> None:
        self.stopping = False
        self.on_lost: list[Callable[[Any], None]] = []
        self.workers = {0: SimpleNamespace(number=0)}
        self.families = families(10, 4, 50, 0)

    async def ask_all(self, _what: str) -> dict[int, list[bytes]]:
        return {0: [part for family in self.families for part in packing(family)]}

    def lose(self) -> None:
        (lost,) = self.workers.values()
        self.workers[0] = SimpleNamespace(number=0)
        self.families = families(0, 0, 0, 0)
        for told in self.on_lost:
            told(lost)


async def scraped(metrics: MergedMetrics) -> list[Metric]:
    await metrics.prepare()
    return list(metrics.collect())


def merging_of(pool: Pool) -> MergedMetrics:
    async def prepare() -> None:
        pass

    own: Any = SimpleNamespace(collect=lambda: families(0, 0, 0, 7))
    of_pool: Any = pool
    return MergedMetrics(own, of_pool, prepare)


@pytest.mark.parametrize("stopping", [False, True])
async def test_what_a_worker_that_has_ended_had_open_counts_as_closed(stopping: bool) -> None:
    pool = Pool()
    metrics = merging_of(pool)
    await scraped(metrics)
    pool.stopping = stopping
    pool.lose()
    closed = closed_by(await scraped(metrics))
    assert closed == {"client_closed": 6, "drained" if stopping else "worker_lost": 4}


async def test_a_worker_that_is_lost_while_its_metrics_are_unpacked_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool()
    metrics = merging_of(pool)
    await scraped(metrics)

    async def lost_meanwhile(steps: Any, slices: Any) -> Any:
        monkeypatch.undo()
        pool.lose()
        return await in_slices(steps, slices)

    monkeypatch.setattr("gateway.server.merged_status.in_slices", lost_meanwhile)
    for _ in range(2):
        assert values(await scraped(metrics))["gateway_connections_opened_total"] == 10


def test_waits_for_other_limits_are_added_up_and_bounded() -> None:
    rows = WorkersRows()
    for names in (["a"], ["a", *(f"group-{at}" for at in range(7))], [f"other-{at}" for at in range(8)]):
        line = orjson.loads(usage_line(100, 1, 1.0, 0))
        line["rows"][0][Row.BESIDE] = [["group", name, 1, 10] for name in names]
        rows.add(orjson.dumps(line))
    rows.add(usage_line(100, 1, 1.0, 0))
    (row,) = rows.take_rows()
    found = row[Row.BESIDE]
    assert found is not None
    assert found[0] == ["group", "a", 2, 20]
    assert found[-1] == ["group", "~other", 8, 80]
    assert len(found) == 9


def usage_line(ts: int, requests: int, offered: float, offset_ms: int) -> bytes:
    row: list[Any] = [0] * len(Row)
    row[: Row.NODE + 1] = ["a", "", "x", "produce", 1]
    row[Row.REQUESTS], row[Row.OFFERED], row[Row.MAX_UNITS] = requests, offered, offered
    row[Row.QUOTA], row[Row.LEVEL_END] = 100, offered
    row[Row.CONNECTIONS], row[Row.FIRST_MS] = requests, offset_ms
    row[Row.BESIDE] = None
    line = {"ts": ts, "rows": [row], "events": [[offset_ms, "a"]], "dropped_rows": 1, "dropped_events": 0}
    return orjson.dumps(line)


def test_rows_of_workers_are_added_up_by_client_and_events_keep_their_time() -> None:
    rows = WorkersRows()
    rows.add(usage_line(100, 2, 10.0, 500))
    rows.add(usage_line(99, 3, 30.0, 900))
    (row,) = rows.take_rows()
    assert (row[Row.REQUESTS], row[Row.OFFERED], row[Row.MAX_UNITS], row[Row.LEVEL_END]) == (5, 40.0, 30.0, 30.0)
    assert (row[Row.CONNECTIONS], row[Row.FIRST_MS]) == (5, 500)
    assert rows.take_events(100) == [[500, "a"], [-100, "a"]]
    assert rows.take_dropped() == (2, 0)
    assert rows.take_topics() == []
    assert (rows.take_rows(), rows.take_events(101), rows.take_dropped()) == ([], [], (0, 0))


def test_a_division_is_shown_as_the_process_knows_it_that_knows_of_most_use() -> None:
    silent, busy = ({"guaranteed": used, "lent": used, "shares": [], "tiers": []} for used in (0.0, 5.0))
    assert _most_used("produce", [{"produce": silent}, {}, {"produce": busy}]) == busy


def test_what_is_left_to_a_tier_is_shown_as_the_process_has_it_that_leaves_least() -> None:
    def told(used: float, shed: float, overload: float | None) -> dict[str, Any]:
        tier = {"tier": 3, "used": used, "lent": used, "shed": shed, "brake": 9.0 - used, "overload": overload}
        return {"produce": {"guaranteed": used, "lent": 0.0, "shares": [], "tiers": [tier]}}

    (tier,) = _most_used("produce", [told(0, 0, None), told(2, 3, 4.0), told(5, 0, None)])["tiers"]
    assert tier == {"tier": 3, "used": 5, "lent": 5, "shed": 3, "brake": 4.0, "overload": 4.0}


def test_workers_divide_bytes_and_handshakes() -> None:
    config = default_config(parse_bootstrap("127.0.0.1:9092"))
    part = share_of(config, 4)
    assert part.limits.queued_max_request_bytes == config.limits.queued_max_request_bytes // 4
    assert part.connections.max_tls_handshakes_per_second == 50


def test_rows_of_topics_are_added_up_and_what_is_beyond_the_caps_of_a_line_shares_one() -> None:
    rows = WorkersRows(max_topics_of_client=3, max_topics=3)

    def told(client_id: str, *topics: tuple[str, int]) -> None:
        head = ["a", "", client_id, "produce", 1]
        found = [[*head, topic, 1, size, 2] for topic, size in topics]
        rows.add(
            orjson.dumps({"ts": 1, "rows": [], "topics": found, "events": [], "dropped_rows": 0, "dropped_events": 0})
        )

    told("x", ("", 7), ("t", 100), ("u", 10))
    told("x", ("t", 200), ("", 1), ("beyond-its-client", 5), ("~other", 3))
    told("y", ("t", 50), ("beyond-the-line", 60))
    found = {(row[TopicRow.CLIENT_ID], row[TopicRow.TOPIC]): row[TopicRow.REQUESTS :] for row in rows.take_topics()}
    assert found == {
        ("x", ""): (2, 8, 4),
        ("x", "t"): (2, 300, 4),
        ("x", "u"): (1, 10, 2),
        ("x", "~other"): (2, 8, 4),
        ("y", "t"): (1, 50, 2),
        ("y", "~other"): (1, 60, 2),
    }
    told("x", ("t", 1))
    assert [row[TopicRow.BYTES] for row in rows.take_topics()] == [1]


class _Asking:
    """A `BlockingLink` that leads to `TopicEvents` without a socket.

    Attributes:
        unread: what the supervisor has not read yet; it reads one worker's socket in order, those of several in any.
    """

    def __init__(self, worker: int, events: TopicEvents) -> None:
        self._worker, self._events = worker, events
        self.unread: list[tuple[str, Any]] = []
        self.claims = 0
        events.joined(worker)

    def tell(self, what: str, value: Any) -> None:
        self.unread.append((what, value))

    def ask(self, what: str, *values: Any) -> Any:
        for told, value in self.unread:
            if told == "topic_event":
                self._events.told(self._worker, value)
            else:
                self._events.creations.end(value)
        self.unread.clear()
        if what == "claim_creations":
            names, now_ms = values
            self.claims += 1
            return self._events.creations.claim(names, now_ms=now_ms)
        return self._events.fetched(self._worker)


def test_topics_that_one_worker_changed_are_known_to_the_next_as_in_one_process() -> None:
    events = TopicEvents()
    alone = RecentTopics()
    first, second = (
        SharedRecentTopics(_Asking(worker, events), lambda: True)  # type: ignore[arg-type]
        for worker in (1, 2)
    )
    for recent in (first, alone):
        change = recent.begin(b"t", 3, 1_000, now_ms=10)
        recent.note(b"u", 5, now_ms=11)
    first.catch_up()  # as before its mutation continues
    second.catch_up()
    for recent in (second, alone):
        assert recent.most_partitions(b"t", now_ms=20) == 3
        assert recent.partitions(b"u", now_ms=20) == 5
        rival = recent.begin(b"t", 0, 1_000, now_ms=21)
        recent.catch_up()
        # No one can know in which order the two are carried out.
        assert not recent.end_done(rival, 0, now_ms=22)
    first.catch_up()
    assert not first.end_done(change, 3, now_ms=23)
    assert first.may_be_deleted(b"t", now_ms=24) is alone.may_be_deleted(b"t", now_ms=24) is True


def sharing(workers: int, topics: dict[str, int]) -> tuple[GatewayCore, GatewayCore, ScriptedCluster]:
    """Two workers that share counters and recent topics, or one in both places; and a cluster with these topics."""
    first, other = cores = [GatewayCore(controller_mutation_rate=2) for _ in range(2)]
    events = TopicEvents()
    for worker, core in enumerate(cores[:workers]):
        core.context.mutations = first.mutations
        core.context.recent_topics = SharedRecentTopics(_Asking(worker, events), lambda: True)  # type: ignore[arg-type]
    return first, other if workers == 2 else first, ScriptedCluster(topics)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_topic_grown_behind_a_deletion_costs_the_same_at_one_worker_and_at_two(workers: int) -> None:
    first, other, cluster = sharing(workers, {"a": 1})
    deletes, grows = (Conversation(cluster=cluster, core=core) for core in (first, other))
    full = first.tokens
    deletes.client_sends(wire.request("DeleteTopics", 3, topic_names=["a"], timeout_ms=1_000))
    late = cluster.answer(deletes.take_upstream())
    topics = [{"name": "a", "count": 9, "assignments": None}]
    grows.client_sends(wire.request("CreatePartitions", 3, topics=topics, timeout_ms=1_000, validate_only=False))
    grows.serve()
    deletes.upstream_answers(late).serve()
    assert first.tokens == full - 8 - 9


@pytest.mark.parametrize("workers", [1, 2])
def test_a_deletion_answered_while_a_growth_is_under_way_is_not_certain_at_one_worker_and_at_two(
    workers: int,
) -> None:
    first, other, cluster = sharing(workers, {"a": 1})
    deletes, grows = (Conversation(cluster=cluster, core=core) for core in (first, other))
    full = first.tokens
    deletes.client_sends(wire.request("DeleteTopics", 3, topic_names=["a"], timeout_ms=1_000))
    deletes.upstream_answers(cluster.answer(deletes.take_upstream()))
    deletion = deletes.take_upstream()
    topics = [{"name": "a", "count": 9, "assignments": None}]
    grows.client_sends(wire.request("CreatePartitions", 3, topics=topics, timeout_ms=1_000, validate_only=False))
    growth = grows.take_upstream()
    while growth[4:6] != ApiKey.CREATE_PARTITIONS.to_bytes(2, "big"):
        grows.upstream_answers(cluster.answer(growth))
        growth = grows.take_upstream()
    grown, deleted = cluster.answer(growth), cluster.answer(deletion)
    deletes.upstream_answers(deleted)
    # Nothing says in which order they were carried out.
    assert first.context.recent_topics.partitions(b"a", now_ms=deletes.clock.now_ms) is None
    grows.upstream_answers(grown)
    assert other.context.recent_topics.partitions(b"a", now_ms=grows.clock.now_ms) is None
    assert first.tokens == full - 9


def test_a_topic_that_two_workers_ask_for_at_once_is_created_and_charged_once() -> None:
    first, other, cluster = sharing(2, {})
    clients = [Conversation(cluster=cluster, core=core) for core in (first, other)]
    full = first.tokens
    wanted = wire.request("Metadata", 12, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    looks = [cluster.answer(client.client_sends(wanted).take_upstream()) for client in clients]
    for client, unknown in zip(clients, looks, strict=True):
        client.upstream_answers(unknown)
    for client in clients:
        client.serve()
    assert first.tokens == full - 1
    assert [body.allow_auto_topic_creation for body in cluster.asked("Metadata")].count(True) == 1
    first.context.recent_topics.end_creation(b"new")  # deleted
    first.context.recent_topics.catch_up()
    assert other.context.recent_topics.claim_creations([b"new"], now_ms=0) == [b"new"]


def test_members_of_a_streams_group_at_two_workers_pay_once_and_are_refunded_once() -> None:
    cluster = ScriptedCluster({"source": 5})
    cluster.creates = False
    first, other = GatewayCore(controller_mutation_rate=2), GatewayCore(controller_mutation_rate=2)
    events = TopicEvents()
    for worker, core in enumerate((first, other)):
        core.context.mutations = first.mutations
        core.context.recent_topics = SharedRecentTopics(_Asking(worker, events), lambda: True)  # type: ignore[arg-type]
    joins = [Conversation(cluster=cluster, core=core) for core in (first, other)]
    parts = subtopology("source", changelogs=["counts"])
    full = first.tokens
    for at, client in enumerate(joins):
        client.client_sends(streams_heartbeat("g", parts, member=f"m{at}")).serve()
    assert first.tokens == full - 5
    first.context.recent_topics.catch_up()
    cluster.creates = True
    for core in (first, other):
        core.clock.advance(NOTE_MS)
    joins[1].client_sends(streams_heartbeat("g", member_epoch=1, member="m1")).serve()
    assert first.tokens == full - 5  # the first charge is back, and the second made
    joins[0].client_sends(streams_heartbeat("g", member_epoch=1, member="m0")).serve()
    assert first.tokens == full - 5


def test_a_join_at_one_worker_has_the_other_ask_again() -> None:
    cluster = ScriptedCluster({"source": 5, "counts": 5})
    cores = [GatewayCore(controller_mutation_rate=2) for _ in range(2)]
    events = TopicEvents()
    for worker, core in enumerate(cores):
        core.context.recent_topics = SharedRecentTopics(_Asking(worker, events), lambda: True)  # type: ignore[arg-type]
    first, other = (Conversation(cluster=cluster, core=core) for core in cores)
    parts = subtopology("source", changelogs=["counts"])
    first.client_sends(streams_heartbeat("g", parts)).serve()
    later = streams_heartbeat("g", member_epoch=1)
    first.client_sends(later)
    assert first.serve() == [later]
    other.client_sends(streams_heartbeat("h", parts)).serve()
    first.client_sends(later)
    assert len(first.serve()) == 3


@pytest.mark.parametrize("limited", [True, False])
def test_a_client_that_names_many_unknown_topics_has_its_worker_ask_once_for_many_of_them(limited: bool) -> None:
    core = GatewayCore(controller_mutation_rate=1_000)
    asking = _Asking(1, TopicEvents())
    core.context.recent_topics = SharedRecentTopics(asking, lambda: True)  # type: ignore[arg-type]
    names = [{"name": f"t{number}"} for number in range(300)]
    c = Conversation(cluster=ScriptedCluster({}), core=core)
    if not limited:
        c.session.user = "somebody else"
    c.exchange("Metadata", 12, topics=[*names, *names], allow_auto_topic_creation=True)
    assert core.observer.auto_created == 300
    assert asking.claims <= 3
