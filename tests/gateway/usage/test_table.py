"""The table: whose row, bounds, and sums that are complete whatever is over a bound."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.usage.names import Names
from gateway.usage.row import Level, RowValues, UsageRow
from gateway.usage.table import UsageTable
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateQuotas, RateSettings, RateTracker
from quotas.usage_record import OTHER, Event, Row, UsageApi
from tests.gateway.usage.files import event


def taken(table: UsageTable, now_ms: int = 1_000) -> list[RowValues]:
    return [table.values(row, begin_ms=0, now_ms=now_ms) for row in table.take_listed(now_ms=now_ms)]


def produce(table: UsageTable, client_id: str, tracker: RateTracker | None = None) -> UsageRow:
    return table.row("in", "alice", client_id, UsageApi.PRODUCE, 1, tracker)


def test_each_client_api_and_broker_has_a_row_and_no_huge_client_id_is_kept_whole() -> None:
    table = UsageTable()
    rows = {
        table.row("in", user, client, api, node)
        for user in "ab"
        for client in "xy"
        for api in (UsageApi.PRODUCE, UsageApi.FETCH)
        for node in (1, None)
    }
    assert len(rows) == 16
    assert table.row("in", "a", "x", UsageApi.FETCH, 1) in rows
    table = UsageTable()
    first = produce(table, "x" * 32_767)
    assert len(first.key.client_id) < 300
    assert produce(table, "x" * 32_767) is first


def test_only_rows_with_something_to_tell_are_taken_once_and_give_their_place_away() -> None:
    table = UsageTable()
    produce(table, "silent")
    produce(table, "busy").count(5)
    assert [row[Row.CLIENT_ID] for row in taken(table)] == ["busy"]
    assert taken(table) == []
    table = UsageTable(max_rows=2)
    for name in "ab":
        produce(table, name).count(1)
    taken(table)
    produce(table, "c").count(1)
    assert [row[Row.CLIENT_ID] for row in taken(table)] == ["c"]
    assert len(table) <= 2


def limited(*, entity: QuotaEntity) -> RateQuotas:
    limits = Limits()
    limits.set(entity, QuotaKey.PRODUCER_BYTE_RATE, 100.0)
    return RateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings())


def test_clients_share_rows_as_they_share_limits() -> None:
    quotas = limited(entity=QuotaEntity(user="alice"))
    table = UsageTable()
    for client_id in ("x", "y"):
        tracker = quotas.tracker("alice", client_id, now_ms=0)
        assert tracker is not None
        tracker.record(500, now_ms=500)
        produce(table, client_id, tracker).count(500)
    (row,) = taken(table)
    assert (row[Row.USER], row[Row.CLIENT_ID], row[Row.OFFERED]) == ("alice", "", 1_000)
    assert (row[Row.QUOTA], row[Row.LEVEL_END]) == (100.0, 100.0)
    quotas = limited(entity=QuotaEntity(user="bob"))
    table = UsageTable()
    for client_id in ("x", "y"):
        produce(table, client_id, quotas.tracker("alice", client_id, now_ms=0)).count(1)
    assert [(row[Row.CLIENT_ID], row[Row.QUOTA]) for row in taken(table)] == [("x", None), ("y", None)]
    quotas = limited(entity=QuotaEntity(client_id=DEFAULT))
    table = UsageTable()
    produce(table, "x", quotas.tracker("alice", "x", now_ms=0)).count(1)
    ((_, user, client_id, *_),) = taken(table)
    assert (user, client_id) == ("", "x")


def test_rows_without_a_tracker_or_counter_of_their_own_are_told_with_their_limits() -> None:
    limits = Limits()
    limits.set(QuotaEntity(client_id=DEFAULT), QuotaKey.PRODUCER_BYTE_RATE, 100.0)
    quotas = RateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings(max_trackers=1))
    table = UsageTable()
    quotas.tracker("alice", "first", now_ms=0).record(1, now_ms=0)  # type: ignore[union-attr]
    for client_id, units in (("x", 1), ("y", 10), ("x", 100)):
        produce(table, client_id, quotas.tracker("alice", client_id, now_ms=0)).count(units)
    rows = [(row[Row.USER], row[Row.CLIENT_ID], row[Row.OFFERED], row[Row.QUOTA]) for row in taken(table)]
    assert rows == [("alice", "x", 101, 100.0), ("alice", "y", 10, 100.0)]
    table = UsageTable()
    table.watch(UsageApi.CONNECT, lambda key, now_ms: Level(float(len(key.client_id)), float(now_ms)))
    table.row("in", "", "::1", UsageApi.CONNECT).count(1)
    (row,) = taken(table, now_ms=77)
    assert (row[Row.QUOTA], row[Row.LEVEL_END]) == (3.0, 77.0)


def test_rows_and_events_beyond_their_caps_are_counted() -> None:
    table = UsageTable(max_rows=2)
    for name in "abcd":
        produce(table, name).count(10)
    produce(table, "c").count(10)
    rows = {row[Row.CLIENT_ID]: row[Row.OFFERED] for row in taken(table)}
    assert rows == {"a": 10, "b": 10, OTHER: 30}
    assert table.take_dropped() == (2, 0)
    assert table.take_dropped() == (0, 0)
    assert table.folded_total == 2
    table = UsageTable(max_events=2)
    row = table.row("in", "alice", "app", UsageApi.MUTATION)
    for topic in range(5):
        event(table, row, topic)
    assert len(list(table.take_events())) == 2
    assert table.take_dropped() == (0, 3)
    event(table, row, "later")
    assert len(list(table.take_events())) == 1


def test_a_row_whose_place_was_given_away_is_told_all_the_same() -> None:
    table = UsageTable(max_rows=1)
    kept = produce(table, "a")
    produce(table, "b").count(1)
    kept.count(7)
    assert {row[Row.CLIENT_ID]: row[Row.OFFERED] for row in taken(table)} == {"b": 1, OTHER: 7}
    kept.count(8)
    assert [(row[Row.CLIENT_ID], row[Row.OFFERED]) for row in taken(table)] == [("a", 8)]
    table = UsageTable(max_rows=1)
    kept = produce(table, "a")
    produce(table, "b")
    again = produce(table, "a")
    assert again is not kept
    kept.count(1)
    again.count(2)
    assert [(row[Row.CLIENT_ID], row[Row.OFFERED]) for row in taken(table)] == [("a", 3)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("count"), st.sampled_from("abcdefg"), st.integers(1, 9)),
            st.tuples(st.just("kept"), st.sampled_from("abcdefg"), st.integers(1, 9)),
            st.just(("take", "", 0)),
        ),
        max_size=60,
    ),
    st.integers(1, 4),
)
def test_sums_are_complete_whatever_comes_and_goes(steps: list[tuple[str, str, int]], max_rows: int) -> None:
    table = UsageTable(max_rows=max_rows)
    kept: dict[str, UsageRow] = {}
    counted = told = 0.0
    for step, name, units in [*steps, ("take", "", 0)]:
        if step == "take":
            rows = taken(table)
            told += sum(row[Row.OFFERED] for row in rows)
            names = [row[Row.CLIENT_ID] for row in rows]
            assert len(names) == len(set(names))
            assert len(set(names) - {OTHER}) <= max_rows
            continue
        row = kept.setdefault(name, produce(table, name)) if step == "kept" else produce(table, name)
        row.count(units)
        counted += units
        assert len(table) <= max_rows
    assert told == counted


def test_a_topic_asked_for_again_after_a_refusal_is_another_attempt_for_a_while() -> None:
    table = UsageTable()
    row = table.row("in", "alice", "app", UsageApi.MUTATION)
    event(table, row, b"t", admitted=False, now_ms=0)
    event(table, row, b"other", admitted=True, now_ms=10)
    event(table, row, b"t", admitted=False, now_ms=1_000)
    event(table, row, b"t", admitted=True, now_ms=2_000)
    event(table, row, b"t", admitted=True, now_ms=3_000)
    assert [each[Event.ATTEMPT] for each in table.take_events()] == [1, 1, 2, 3, 1]
    table = UsageTable()
    row = table.row("in", "alice", "app", UsageApi.MUTATION)
    event(table, row, b"t", admitted=False, now_ms=0)
    event(table, row, b"t", admitted=True, now_ms=200_000)
    assert [each[Event.ATTEMPT] for each in table.take_events()] == [1, 1]


def test_i11_rows_and_events_have_hashed_names() -> None:
    table = UsageTable(Names(b"s" * 32))
    row = table.row("in", "alice", "app", UsageApi.MUTATION)
    row.count(1)
    event(table, row, b"t")
    told = repr([*taken(table), *table.take_events()])
    assert "alice" not in told
    assert "app" not in told
    assert "'in'" in told
