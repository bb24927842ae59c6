"""The seam between gateway and pipeline: what the one writes the other reads, every line and every value of it."""

from functools import partial
from pathlib import Path
from typing import Any

from gateway.session.api_limits import FAMILIES
from gateway.usage.connections import ConnectionUsage, record_user_connection
from gateway.usage.mutations import mutation_level, record_mutations
from gateway.usage.names import Names
from gateway.usage.part_file import PartFile
from gateway.usage.recorder import LineBuilder
from gateway.usage.stored import TOPICS_PER_LINE, StoredBytes
from gateway.usage.table import UsageTable
from pipeline.ingest.collector import Collector
from quotas.connections import Admission, AdmissionCause, AdmissionDecision
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.rate_quotas import RateQuotas, RateSettings
from quotas.usage_record import STORED, Limit, UsageApi
from quotas.user_connections import UserConnections

SECONDS = 5
START = 1_700_000_000
SCOPE = "fleet:cluster/topic"
NAMES = ("app", "", "~other", 'a"b\\c', "line\nfeed", "\x00\x1f", "\u2028🜃", "NaN", "x" * 5_000)


def write(directory: Path) -> tuple[bytes, int, float, int]:
    """A file with rows of every API, limited and not, and events; lines, bytes offered, events."""
    limits = Limits()
    for key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONTROLLER_MUTATION_RATE):
        limits.set(QuotaEntity(user="alice", client_id=DEFAULT), key, 2.0)
    produce = RateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings())
    mutations = MutationQuotas(limits, MutationSettings())
    table = UsageTable(max_rows=40)
    table.watch(UsageApi.MUTATION, mutation_level(mutations))
    connections = ConnectionUsage(table)
    limits.set(QuotaEntity(user="alice"), QuotaKey.CONNECTION_COUNT, 2)
    users = UserConnections(limits, RateSettings(), lambda: 10)
    users.on_decided = partial(record_user_connection, table)
    part = PartFile(directory, "gw", 1, 0)
    offered = 0.0
    events = 0
    for second in range(SECONDS):
        now_ms = 1_000 * second
        for at, name in enumerate(NAMES):
            user = "alice" if at % 2 else "bob"
            tracker = produce.tracker(user, name, now_ms=now_ms)
            assert tracker is not None
            row = table.row("in", user, name, UsageApi.PRODUCE, 3, tracker)
            row.count(100 * at)
            tracker.record(100 * at, now_ms=now_ms)
            row.delay(7, beside=(Limit.GROUP, "team") if at % 2 else None)
            row.mute(now_ms + 2_500, now_ms=now_ms)
            table.row("in", user, name, UsageApi.FETCH).count(50)
            table.row("in", user, name, UsageApi.REQUEST, 1).count(0.25)
            offered += 100 * at
        for family in FAMILIES:
            table.row("in", "alice", "app", family.usage, 1).count(1)
        users.enter("alice", second, now_ms=now_ms)
        decision = mutations.charge_request("alice", "app", [20, 9, 3], strict=second > 1, now_ms=now_ms)
        record_mutations(
            table,
            "in",
            "alice",
            "app",
            "create_topics",
            enumerate(decision.topics),
            strict=second > 1,
            correlation_id=-second,
            now_ms=now_ms,
        )
        events += 3
        connections.decided("in", "::1", Admission(AdmissionDecision.ADMIT), counted=False)
        connections.decided("in", "::2", Admission(AdmissionDecision.REFUSE, AdmissionCause.IP_COUNT), counted=False)
        builder = LineBuilder()
        listed = table.take_listed(now_ms=now_ms + 1_000)
        builder.add_rows([table.values(each, begin_ms=now_ms, now_ms=now_ms + 1_000) for each in listed])
        line = builder.finish(
            gateway="gw",
            boot=1,
            seq=second,
            ts=START + second,
            dur_ms=1_000,
            algorithm="token_bucket",
            scope=SCOPE,
            events=table.take_events(),
            clock_offset_ms=now_ms,
            dropped=table.take_dropped(),
            jump_ms=-5_000 if second == 3 else 0,
        )
        part.append(line)
    return part.publish().read_bytes(), SECONDS, offered, events


def test_the_pipeline_reads_every_line_row_and_event_that_the_gateway_writes(tmp_path: Path) -> None:
    content, lines, offered, events = write(tmp_path)
    batches = [each for batch in Collector().file("f", content) for each in batch.to_pylist()]
    kinds = {each["kind"] for each in batches}
    assert kinds == {"lines", "rows", "events"}
    (heads,) = (each for each in batches if each["kind"] == "lines")
    assert heads["seq"] == list(range(lines))
    assert heads["scope"] == [SCOPE] * lines
    rows = [each for each in batches if each["kind"] == "rows"]
    told = sum(sum(each["offered"]) for each in rows if each["api"] == "produce")
    assert told == offered
    assert {each["api"] for each in rows} == {str(api) for api in UsageApi}
    alices = [each for each in rows if each["user"] == "alice" and each["api"] == "produce"]
    # As in Kafka, a client without an id is looked up as the user, and that has no quota here.
    limited = [each for each in alices if each["client_id"]]
    assert len(limited) == len(alices) - 1 == 3
    assert {quota for each in limited for quota in each["quota"]} == {2.0}
    assert all(censored for each in limited for censored in each["censored"])
    produce = [each for each in rows if each["api"] == "produce"]
    assert sum(sum(each["beside_ms"]) for each in produce) == sum(7 for at in range(len(NAMES)) if at % 2) * lines
    assert sum(len(each["e_units"]) for each in batches if each["kind"] == "events") == events


def test_the_pipeline_reads_every_topic_of_a_sample_that_the_gateway_writes_in_parts(tmp_path: Path) -> None:
    topics = {f"topic-{at}": at for at in range(3 * TOPICS_PER_LINE // 2)}
    stored = StoredBytes(Names())
    stored.add("cluster", 3, {name.encode(): size for name, size in topics.items()}, sum(topics.values()), at_s=START)
    part = PartFile(tmp_path, "gw", 1, 0)
    seq = 0
    while stored.waiting:
        builder = LineBuilder()
        for some in stored.take():
            builder.add_stored(some)
        head: dict[str, Any] = {
            "gateway": "gw",
            "boot": 1,
            "seq": seq,
            "ts": START + seq,
            "dur_ms": 1_000,
            "algorithm": "rate",
        }
        part.append(builder.finish(**head, scope="", events=(), clock_offset_ms=0, dropped=(0, 0)))
        seq += 1
    batches = [each for batch in Collector().file("f", part.publish().read_bytes()) for each in batch.to_pylist()]

    (heads,) = (each for each in batches if each["kind"] == "lines")
    rows = [each for each in batches if each["kind"] == "rows"]
    assert sum(heads["row_count"]) == sum(len(each["t"]) for each in rows) == len(topics) + 1
    assert {(each["listener"], each["user"], each["api"], each["node"]) for each in rows} == {
        ("cluster/3", "", STORED, -1)
    }
    assert {tuple(each["t"]) for each in rows} == {(START % 86_400,)}
    sizes = {each["client_id"]: each["admitted"][0] for each in rows}
    assert sizes == {**topics, "": sum(topics.values())}
    assert seq == 2
