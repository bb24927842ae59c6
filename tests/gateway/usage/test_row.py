"""What a row says: counts, waits, and how long of a second its client was muted."""

from typing import Any

import pytest

from gateway.usage.row import UNLIMITED, Level, RowKey, UsageRow
from quotas.usage_record import MOST_BESIDE, Beside, Limit, Row, RowFlags, UsageApi


def make(api: UsageApi = UsageApi.PRODUCE) -> tuple[UsageRow, list[UsageRow]]:
    listed: list[UsageRow] = []
    return UsageRow(RowKey("in", "alice", "app", api, 3), ("in", "alice", "app"), listed), listed


def take(row: UsageRow, now_ms: int, level: Level = UNLIMITED, begin_ms: int = 0) -> dict[Row, Any]:
    return dict(zip(Row, row.take(level, begin_ms=begin_ms, now_ms=now_ms), strict=True))


def test_requests_are_added_up_and_taking_starts_anew() -> None:
    row, listed = make()
    for size in (600, 5_000, 100):
        row.count(size)
    assert listed == [row]
    told = take(row, 1_000)
    assert [told[name] for name in (Row.LISTENER, Row.USER, Row.CLIENT_ID, Row.API, Row.NODE)] == [
        "in", "alice", "app", "produce", 3,
    ]  # fmt: skip
    assert (told[Row.REQUESTS], told[Row.OFFERED], told[Row.ADMITTED]) == (3, 5_700, 5_700)
    assert told[Row.MAX_UNITS] == 5_000
    assert (told[Row.BYTES_IN], told[Row.BYTES_OUT]) == (5_700, 0)
    row, listed = make()
    row.count(1)
    take(row, 1_000)
    listed.clear()
    row.count(2)
    row.count(2)
    assert listed == [row]
    assert take(row, 2_000)[Row.OFFERED] == 4


@pytest.mark.parametrize(("api", "bytes_out"), [(UsageApi.FETCH, 10), (UsageApi.MUTATION, 0)])
def test_bytes_of_a_fetch_go_out_and_partitions_are_no_bytes(api: UsageApi, bytes_out: int) -> None:
    row, _ = make(api)
    row.count(10)
    told = take(row, 1_000)
    assert (told[Row.BYTES_IN], told[Row.BYTES_OUT]) == (0, bytes_out)


def test_what_is_refused_or_delayed_is_counted_with_the_limit_given() -> None:
    row, _ = make(UsageApi.MUTATION)
    row.count(7)
    row.reject(4)
    told = take(row, 1_000)
    assert (told[Row.OFFERED], told[Row.ADMITTED]) == (7, 3)
    assert (told[Row.REJECTED], told[Row.REJECTED_UNITS]) == (1, 4)
    row, _ = make()
    row.delay(40)
    row.delay(2)
    told = take(row, 1_000)
    assert (told[Row.DELAYED], told[Row.THROTTLE_MS]) == (2, 42)
    row, _ = make()
    row.count(1)
    told = take(row, 1_000, Level(100.0, 99.5, observe=True))
    assert (told[Row.QUOTA], told[Row.LEVEL_END], told[Row.FLAGS]) == (100.0, 99.5, RowFlags.OBSERVED)


def test_a_mute_is_told_second_by_second_until_it_is_over() -> None:
    row, listed = make()
    row.mute(2_300, now_ms=400)
    seconds = []
    for now_ms in (1_000, 2_000, 3_000):
        assert listed == [row]
        listed.clear()
        told = take(row, now_ms)
        assert told[Row.FLAGS] == RowFlags.CENSORED
        seconds.append(told[Row.MUTED_MS])
    assert seconds == [600, 1_000, 300]
    assert listed == []


def test_mutes_of_two_connections_count_once_where_they_overlap_and_without_one_nothing_is_censored() -> None:
    row, _ = make()
    row.mute(500, now_ms=100)
    row.mute(300, now_ms=200)
    row.mute(600, now_ms=400)
    row.mute(900, now_ms=800)
    assert take(row, 1_000)[Row.MUTED_MS] == 500 + 100
    row, _ = make()
    row.count(1)
    told = take(row, 1_000)
    assert (told[Row.MUTED_MS], told[Row.FLAGS]) == (0, 0)


def test_connections_count_once_in_a_line_and_the_first_request_has_its_moment() -> None:
    row, _ = make()
    a, b = 1, 2
    for connection, now_ms in ((a, 2_250), (a, 2_300), (b, 2_400), (a, 2_900)):
        row.use(connection, now_ms=now_ms)
        row.count(1)
    told = take(row, 3_001, begin_ms=2_000)
    assert (told[Row.CONNECTIONS], told[Row.FIRST_MS]) == (2, 250)
    row.use(b, now_ms=3_001)
    row.count(1)
    assert take(row, 4_000, begin_ms=3_000)[Row.FIRST_MS] == 1
    row.mute(9_000, now_ms=4_500)
    told = take(row, 5_000, begin_ms=4_000)
    assert (told[Row.CONNECTIONS], told[Row.FIRST_MS]) == (0, 0)


def test_waits_for_other_limits_are_named_and_their_number_is_bounded() -> None:
    row, _ = make()
    row.delay(7)
    assert take(row, 1_000)[Row.BESIDE] is None
    row.delay(100, beside=(Limit.GROUP, "team"))
    row.delay(50, beside=(Limit.GROUP, "team"), again=True)
    row.delay(5, beside=(Limit.CAPACITY, ""))
    row.delay(7)
    told = take(row, 2_000)
    assert told[Row.BESIDE] == [["group", "team", 1, 150], ["capacity", "", 1, 5]]
    assert (told[Row.DELAYED], told[Row.THROTTLE_MS]) == (3, 162)
    for at in range(100):
        row.delay(1, beside=(Limit.TOPIC, f"topic-{at}"))
        row.delay(1, beside=(Limit.GROUP, f"group-{at}"))
    found = take(row, 3_000)[Row.BESIDE]
    assert isinstance(found, list)
    assert len(found) <= MOST_BESIDE
    assert ["topic", "~other", 96, 96] in found
    assert sum(each[Beside.THROTTLE_MS] for each in found) == 200
    assert take(row, 4_000)[Row.BESIDE] is None


def test_pouring_moves_waits_for_other_limits() -> None:
    row, _ = make()
    other, _ = make()
    row.delay(5, beside=(Limit.GROUP, "team"))
    other.delay(6, beside=(Limit.GROUP, "team"))
    row.pour_into(other, now_ms=1_000)
    assert take(other, 1_000)[Row.BESIDE] == [["group", "team", 2, 11]]
    assert take(row, 1_000)[Row.BESIDE] is None


def test_pouring_moves_everything_with_a_mute_under_way_or_over() -> None:
    row, listed = make()
    other, _ = make()
    other._list = listed
    row.use(1, now_ms=300)
    row.count(3)
    row.count(9)
    row.reject(1)
    row.delay(5)
    row.mute(1_500, now_ms=700)
    other.use(2, now_ms=400)
    other.count(4)
    row.pour_into(other, now_ms=1_000)
    told = take(other, 1_000)
    assert (told[Row.REQUESTS], told[Row.OFFERED], told[Row.ADMITTED], told[Row.MAX_UNITS]) == (3, 16, 15, 9)
    assert (told[Row.DELAYED], told[Row.THROTTLE_MS], told[Row.MUTED_MS]) == (1, 5, 300)
    assert (told[Row.CONNECTIONS], told[Row.FIRST_MS]) == (2, 300)
    assert take(other, 2_000)[Row.MUTED_MS] == 500
    assert take(row, 1_000)[Row.OFFERED] == 0
    row, listed = make()
    other, _ = make()
    other._list = listed
    row.mute(900, now_ms=700)
    row.pour_into(other, now_ms=1_000)
    assert take(other, 1_000)[Row.MUTED_MS] == 200


def test_connections_whose_requests_are_never_answered_are_told_once_and_forgotten() -> None:
    row, listed = make(UsageApi.FETCH)
    for second_ms in (0, 1_000, 2_000):
        for connection in range(100):
            row.use(1 + second_ms + connection, now_ms=second_ms + 100 + connection)
        assert listed == [row]
        listed.clear()
        told = take(row, second_ms + 1_000, begin_ms=second_ms)
        assert (told[Row.REQUESTS], told[Row.CONNECTIONS], told[Row.FIRST_MS]) == (0, 100, 100)
