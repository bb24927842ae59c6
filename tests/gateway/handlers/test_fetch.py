"""Fetch: max_bytes lowered, the answer delivered with its throttle time, then silence (KIP-13)."""

from typing import Any

import pytest

from gateway.session.announced import PASS_ON_BYTES
from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, QuotaKey
from quotas.rate_quotas import RateTracker
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import START_MS, GatewayCore, session_settings
from testkit.frames import create_topics, heartbeat, heartbeat_reply

VERSIONS = range(19)


def fetch(
    correlation_id: int = 1,
    *,
    version: int = 12,
    max_bytes: int = 50_000_000,
    min_bytes: int = 1,
    session_epoch: int = 5,
) -> bytes:
    """A Fetch request."""
    return wire.request(
        "Fetch",
        version,
        correlation_id=correlation_id,
        max_wait_ms=500,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=77,
        session_epoch=session_epoch,
        topics=[],
        forgotten_topics_data=[],
    )


def fetch_reply(counted: int, correlation_id: int = 1, *, version: int = 12, **fields: Any) -> bytes:
    """A reply that Kafka counts as so many bytes: the frame, or one less with a flexible header."""

    def reply(records: int) -> bytes:
        partition = {
            "partition_index": 0,
            "high_watermark": 1,
            "aborted_transactions": None,
            "records": b"r" * records,
        }
        topics = [{"topic": "t", "partitions": [partition]}]
        more = {"session_id": 77, **fields} if version >= 7 else fields
        return wire.response("Fetch", version, correlation_id=correlation_id, responses=topics, **more)

    wanted = counted + 4 + (1 if version >= 12 else 0)
    records = wanted - len(reply(0))
    while len(reply(records)) > wanted:
        records -= 1
    assert len(reply(records)) == wanted
    return reply(records)


def empty_reply(
    version: int, throttle_time_ms: int, error_code: int = 0, *, session_id: int = 0, correlation_id: int = 1
) -> bytes:
    """A reply without topics."""
    fields: dict[str, Any] = {"throttle_time_ms": throttle_time_ms} if version >= 1 else {}
    if version >= 7:
        fields |= {"error_code": error_code, "session_id": session_id}
    return wire.response("Fetch", version, correlation_id=correlation_id, responses=[], **fields)


def counter(c: Conversation) -> RateTracker:
    """What the client is counted by."""
    (_, tracker), *others = c.core.client_quotas.fetch.own()
    assert not others
    return tracker


def under_way(c: Conversation) -> int:
    return counter(c).fetches


def recorded(c: Conversation) -> float:
    return counter(c).recorded


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_consumer_quota_everything_is_relayed_as_it_comes(version: int) -> None:
    c = Conversation(producer_byte_rate=1).client_sends(fetch(version=version)).upstream_sees(fetch(version=version))
    reply = fetch_reply(100_000, version=version)
    c.upstream_answers(reply, piece_bytes=9_999).client_sees(reply).reading()


@pytest.mark.parametrize("version", range(3, 19))
def test_c13_max_bytes_is_lowered_to_what_the_window_can_pass(version: int) -> None:
    c = Conversation(consumer_byte_rate=1_000)
    c.client_sends(fetch(version=version, max_bytes=50_000_000, min_bytes=20_000))
    c.upstream_sees(fetch(version=version, max_bytes=10_000, min_bytes=10_000))


def test_within_the_quota_requests_and_answers_go_on_as_they_came() -> None:
    c = Conversation(consumer_byte_rate=1_000).client_sends(fetch(max_bytes=9_000))
    c.upstream_sees(fetch(max_bytes=9_000))
    session = Conversation(consumer_byte_rate=1_000_000).client_sends(fetch(1)).session
    chunk = fetch_reply(100_000)[:50_000]
    session.receive_from_upstream(chunk, now_ms=START_MS)
    assert [given is chunk for given in session.to_client] == [True]


@pytest.mark.parametrize("version", [4, 14, 15, 17])
def test_a36_a_client_under_the_id_of_a_replica_is_lowered_and_waits_like_any_other(version: int) -> None:
    replica = {"replica_id": 1} if version < 15 else {"replica_state": {"replica_id": 1, "replica_epoch": 9}}
    fields: dict[str, Any] = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "topics": [],
        "forgotten_topics_data": [],
        **replica,
    }
    c = Conversation(consumer_byte_rate=100)
    c.client_sends(wire.request("Fetch", version, correlation_id=1, max_bytes=50_000_000, **fields))
    c.upstream_sees(wire.request("Fetch", version, correlation_id=1, max_bytes=1_000, **fields))
    c.upstream_answers(fetch_reply(1_500, version=version))
    c.client_sees(fetch_reply(1_500, version=version, throttle_time_ms=5_000)).muted_until(5_000)


def test_c14_a_consumer_that_waits_keeps_its_place_in_the_group_by_its_other_connection() -> None:
    c = Conversation(consumer_byte_rate=100).client_sends(fetch()).upstream_answers(fetch_reply(100_000))
    coordinator = c.another()
    c.take_client()
    for number in range(5):
        c.after(3_000).still_muted()
        coordinator.client_sends(heartbeat(number)).upstream_sees(heartbeat(number))
        coordinator.upstream_answers(heartbeat_reply(number)).client_sees(heartbeat_reply(number)).reading()


@pytest.mark.parametrize("version", range(1, 19))
def test_over_the_quota_the_answer_is_delivered_whole_with_its_throttle_time(version: int) -> None:
    c = Conversation(consumer_byte_rate=100).client_sends(fetch(version=version))
    c.upstream_answers(fetch_reply(1_500, version=version))
    c.client_sees(fetch_reply(1_500, version=version, throttle_time_ms=5_000)).muted_until(5_000)


def test_c12_of_a_throttled_answer_only_the_throttle_time_is_changed() -> None:
    c = Conversation(consumer_byte_rate=100).client_sends(fetch(version=7))
    reply = fetch_reply(1_500, version=7)
    c.upstream_answers(reply)
    told = c.take_client()
    assert (told[:8], told[12:]) == (reply[:8], reply[12:])
    c = Conversation(consumer_byte_rate=100).client_sends(fetch(version=0))
    c.upstream_answers(fetch_reply(1_500, version=0)).client_sees(fetch_reply(1_500, version=0))
    c.muted_until(5_000)
    reply = fetch_reply(100_000)
    c = Conversation(consumer_byte_rate=9_000).client_sends(fetch()).upstream_answers(reply[:200])
    assert len(c.take_client()) == 200
    c.still_muted().client_sends(heartbeat(2))
    c.upstream_answers(reply[200:]).client_sees(reply[200:])


def test_c13_a_batch_larger_than_the_window_arrives_and_the_next_one_later() -> None:
    c = Conversation(consumer_byte_rate=1_000)
    for _ in range(3):
        c.client_sends(fetch()).upstream_answers(fetch_reply(60_000))
        told = wire.decode_response("Fetch", 12, c.take_client())
        assert len(told.responses[0].partitions[0].records) > 59_000
        assert 49_000 <= told.throttle_time_ms <= 60_000
        c.muted_for(told.throttle_time_ms)


@pytest.mark.parametrize(("broker_ms", "told_ms"), [(0, 5_000), (9_000, 9_000)])
def test_c10_the_brokers_own_throttle_is_never_lowered(broker_ms: int, told_ms: int) -> None:
    c = Conversation(consumer_byte_rate=100).client_sends(fetch())
    c.upstream_answers(fetch_reply(1_500, throttle_time_ms=broker_ms))
    c.client_sees(fetch_reply(1_500, throttle_time_ms=told_ms)).muted_until(told_ms)


def test_c07_a_longer_debt_than_the_ceiling_is_told_and_waited_for_bit_by_bit() -> None:
    c = Conversation(consumer_byte_rate=10, settings=session_settings(max_mute_ms=20_000)).client_sends(fetch())
    c.upstream_answers(fetch_reply(1_500)).client_sees(fetch_reply(1_500, throttle_time_ms=20_000))
    # 1,500 bytes at 10 a second ask for 140 seconds. The counter has forgotten them after eleven.
    for told_ms in [20_000] * 5:
        c.muted_for(20_000).take_upstream()
        c.client_sends(fetch()).upstream_sees().client_sees(empty_reply(12, told_ms, error_code=71))
    # Less than a window is left, so that the client hardly notices.
    c.muted_for(20_000).client_sends(fetch()).upstream_sees().client_sees().after(7_999).upstream_sees()
    c.after(1).upstream_sees(fetch(max_bytes=100)).upstream_answers(fetch_reply(60))
    c.client_sees(fetch_reply(60, throttle_time_ms=6_000))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("epoch", "error_code"), [(-1, 0), (0, 0), (5, 71)])
def test_k03_a_fetch_that_would_wait_long_is_answered_empty_on_any_connection(
    version: int, epoch: int, error_code: int
) -> None:
    c = Conversation(consumer_byte_rate=100).client_sends(fetch()).upstream_answers(fetch_reply(5_000))
    request = fetch(version=version, session_epoch=epoch)
    other = c.another().client_sends(heartbeat(9), request, piece_bytes=11).upstream_sees(heartbeat(9))
    other.client_sees().upstream_answers(heartbeat_reply(9))
    # Behind the first one, whose next answer may be of ten seconds.
    other.client_sees(heartbeat_reply(9), empty_reply(version, 38_000, error_code)).still_muted()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("piece_bytes", [None, 65, 1])
def test_k03_answers_under_way_when_the_quota_is_used_up_are_emptied(version: int, piece_bytes: int | None) -> None:
    c = Conversation(consumer_byte_rate=100)
    other = c.another().client_sends(heartbeat(1), fetch(2, version=version), heartbeat(3))
    c.client_sends(fetch()).upstream_answers(fetch_reply(3_000))
    answer = fetch_reply(9_000, 2, version=version)
    other.upstream_answers(heartbeat_reply(1), answer, heartbeat_reply(3), piece_bytes=piece_bytes)
    told = empty_reply(version, 8_000, 0, correlation_id=2, session_id=77)
    other.client_sees(heartbeat_reply(1), told, heartbeat_reply(3)).muted_until(8_000)


@pytest.mark.parametrize("max_bytes", [10, 50 * 1024 * 1024])
def test_k03_a_client_whose_answer_was_emptied_is_first_when_it_returns_as_told(max_bytes: int) -> None:
    """Also if its request is lowered; 50 MiB is Java's default."""
    c = Conversation(consumer_byte_rate=100).client_sends(fetch(1, max_bytes=max_bytes))
    other = c.another().client_sends(fetch(2, max_bytes=max_bytes))
    c.upstream_answers(fetch_reply(3_000))
    other.upstream_answers(fetch_reply(9_000, 2))
    told = wire.decode_response("Fetch", 12, other.take_client())
    assert (told.responses, told.throttle_time_ms) == ([], 8_000)
    other.take_upstream()
    other.at(8_005).client_sends(fetch(3, max_bytes=max_bytes))
    assert other.take_upstream()


def test_k03_fetches_under_way_share_the_window_and_a_wait_is_booked_once() -> None:
    c = Conversation(consumer_byte_rate=100).client_sends(fetch()).upstream_sees(fetch(max_bytes=1_000))
    other = c.another().client_sends(fetch()).upstream_sees(fetch(max_bytes=500))
    c.another().client_sends(fetch()).upstream_sees(fetch(max_bytes=333))
    c.upstream_answers(fetch_reply(100))
    other.session.ended(now_ms=other.clock.now_ms)
    c.client_sends(fetch()).upstream_sees(fetch(max_bytes=500))
    c = Conversation(consumer_byte_rate=100).client_sends(fetch()).upstream_answers(fetch_reply(1_500))
    ((api_key, _, throttle_ms, by),) = c.core.observer.throttles
    assert (api_key, throttle_ms, by) == (ApiKey.FETCH, 5_000, ThrottledBy.FETCH)


def test_a_quota_that_changes_or_goes_during_a_long_poll_applies_to_its_answer() -> None:
    c = Conversation(consumer_byte_rate=1_000_000).client_sends(fetch())
    c.core.set_quota(QuotaKey.CONSUMER_BYTE_RATE, 100)
    c.upstream_answers(fetch_reply(1_500)).client_sees(fetch_reply(1_500, throttle_time_ms=5_000))
    c = Conversation(consumer_byte_rate=100).client_sends(fetch())
    c.core.set_quota(QuotaKey.CONSUMER_BYTE_RATE, None)
    c.upstream_answers(fetch_reply(1_500)).client_sees(fetch_reply(1_500)).reading()


@pytest.mark.parametrize("piece_bytes", [1, 7, 63, 64, 65])
def test_requests_and_answers_in_pieces_are_the_same(piece_bytes: int) -> None:
    c = Conversation(consumer_byte_rate=100)
    c.client_sends(fetch(), fetch(2), piece_bytes=piece_bytes)
    c.upstream_sees(fetch(max_bytes=1_000))
    c.upstream_answers(fetch_reply(500), piece_bytes=piece_bytes).client_sees(fetch_reply(500))
    c.upstream_sees(fetch(2, max_bytes=1_000))
    c.upstream_answers(fetch_reply(1_000, 2), piece_bytes=piece_bytes)
    c.client_sees(fetch_reply(1_000, 2, throttle_time_ms=5_000))


def test_c02_fetches_of_a_client_with_a_limit_are_answered_one_by_one_and_wait_for_nothing_else() -> None:
    c = Conversation(consumer_byte_rate=100).client_sends(*(fetch(i) for i in range(20)), heartbeat(20))
    c.upstream_sees(fetch(0, max_bytes=1_000)).still_muted()
    c.upstream_answers(fetch_reply(1_000, 0)).upstream_sees(fetch(1, max_bytes=1_000))
    c.upstream_answers(fetch_reply(1_000, 1)).after(9_999).upstream_sees()
    c.after(1).upstream_sees(fetch(2, max_bytes=1_000)).still_muted()
    c = Conversation(consumer_byte_rate=100).client_sends(heartbeat(1), fetch(2), heartbeat(3)).reading()
    c.upstream_sees(heartbeat(1), fetch(2, max_bytes=1_000), heartbeat(3))
    c = Conversation(consumer_byte_rate=100, controller_mutation_rate=2)
    c.client_sends(fetch(1), create_topics(2, ("a", 1)), fetch(3)).take_upstream()
    c.upstream_answers(fetch_reply(500)).upstream_sees().still_muted()
    c = Conversation(consumer_byte_rate=100)
    c.session.user = "somebody else"
    c.client_sends(fetch(1), fetch(2)).upstream_sees(fetch(1), fetch(2)).reading()


@pytest.mark.parametrize("piece_bytes", [None, 7, 1_500])
def test_fetches_of_a_connection_pass_together_while_all_of_them_fit_into_what_is_left(
    piece_bytes: int | None,
) -> None:
    # Ten thousand may pass at once.
    c = Conversation(consumer_byte_rate=1_000)
    requests = [fetch(i, max_bytes=1_000) for i in range(5)]
    c.client_sends(*requests, piece_bytes=piece_bytes).upstream_sees(*requests).reading()
    assert under_way(c) == 5
    answers = [fetch_reply(1_000, i) for i in range(5)]
    c.upstream_answers(*answers, piece_bytes=piece_bytes).client_sees(*answers).reading()
    assert (under_way(c), recorded(c)) == (0, 5_000)
    # 5,000 are left: enough for two of these, and for the third when the first has brought less than it might.
    requests = [fetch(i, max_bytes=2_000) for i in range(3)]
    c.client_sends(*requests).upstream_sees(*requests[:2]).still_muted()
    c.upstream_answers(fetch_reply(900, 0)).upstream_sees(requests[2])
    assert under_way(c) == 2
    c.upstream_answers(fetch_reply(2_000, 1), fetch_reply(2_100, 2))
    c.client_sees(fetch_reply(900, 0), fetch_reply(2_000, 1), fetch_reply(2_100, 2)).reading()
    assert not c.core.observer.throttles
    assert (under_way(c), recorded(c)) == (0, 10_000)
    c.client_sends(fetch(7, max_bytes=1), fetch(8, max_bytes=1)).upstream_sees(fetch(7, max_bytes=1)).still_muted()


def test_c02_a_fetch_waits_behind_another_where_it_may_bring_more_than_is_left() -> None:
    c = Conversation(consumer_byte_rate=1_000).client_sends(fetch(1, max_bytes=6_000), fetch(2, max_bytes=6_000))
    c.upstream_sees(fetch(1, max_bytes=6_000)).still_muted()
    # What those under way may bring counts, and not how many they are.
    c = Conversation(consumer_byte_rate=1_000).client_sends(fetch(1, max_bytes=8_000), fetch(2, max_bytes=4_000))
    c.upstream_sees(fetch(1, max_bytes=8_000)).still_muted()
    # A broker gives one batch at least, whatever is asked for: the last answer says how large one may be.
    c = Conversation(consumer_byte_rate=1_000).client_sends(fetch(max_bytes=1)).upstream_answers(fetch_reply(4_000))
    c.take_upstream()
    c.client_sends(fetch(2, max_bytes=1), fetch(3, max_bytes=1)).upstream_sees(fetch(2, max_bytes=1)).still_muted()
    c.upstream_answers(fetch_reply(100, 2)).upstream_sees(fetch(3, max_bytes=1)).reading()
    # Before version 3 a request does not say how much it wants in all.
    c = Conversation(consumer_byte_rate=1_000_000).client_sends(fetch(1, version=2), fetch(2, version=2))
    c.upstream_sees(fetch(1, version=2)).still_muted()
    # Other connections count, too.
    c = Conversation(consumer_byte_rate=1_000).client_sends(fetch(1, max_bytes=3_000))
    c.take_upstream()
    other = c.another().client_sends(fetch(1, max_bytes=3_000), fetch(2, max_bytes=4_001))
    other.upstream_sees(fetch(1, max_bytes=3_000)).still_muted()


def test_each_share_fetch_waits_for_the_one_before_as_its_answer_cannot_be_emptied() -> None:
    c = Conversation(consumer_byte_rate=1_000)
    requests = [wire.request("ShareFetch", 2, correlation_id=i, max_bytes=10, min_bytes=1) for i in range(2)]
    c.client_sends(*requests).upstream_sees(requests[0]).still_muted()


def test_k03_of_answers_that_come_together_those_beyond_the_bound_are_emptied() -> None:
    """A broker may bring more than it was asked for."""
    c = Conversation(consumer_byte_rate=100).client_sends(*(fetch(i, max_bytes=10) for i in range(4)))
    c.upstream_sees(*(fetch(i, max_bytes=10) for i in range(4)))
    c.upstream_answers(*(fetch_reply(1_500, i) for i in range(4)))
    told = [wire.decode_response("Fetch", 12, frame) for frame in frames_of(c.take_client())]
    assert [len(each.responses) for each in told] == [1, 1, 0, 0]
    assert [each.throttle_time_ms > 0 for each in told] == [True] * 4
    assert (under_way(c), recorded(c)) == (0, 3_000)


def test_nothing_stays_under_way_of_a_connection_that_ends() -> None:
    c = Conversation(consumer_byte_rate=1_000)
    c.client_sends(*(fetch(i, max_bytes=100) for i in range(9))).upstream_answers(fetch_reply(100, 0))
    assert under_way(c) == 8
    c.session.ended(now_ms=c.clock.now_ms)
    assert under_way(c) == 0


def test_fetches_for_topics_with_quotas_wait_for_each_other() -> None:
    core = GatewayCore(consumer_byte_rate=1_000_000)
    core.limits.set(QuotaEntity(topic="t"), QuotaKey.CONSUMER_BYTE_RATE, 1_000_000)
    c = Conversation(core=core).client_sends(fetch(1, max_bytes=1_000), fetch(2, max_bytes=1_000))
    c.upstream_sees(fetch(1, max_bytes=1_000)).still_muted()


def test_k12_a_request_of_megabytes_is_lowered_where_it_stands_and_the_rest_goes_on_as_it_comes() -> None:
    c = Conversation(consumer_byte_rate=100)
    padding, rest = b"\0" * PASS_ON_BYTES, b"\0" * 9_000_000
    small, lowered = (fetch(1, max_bytes=most) + padding for most in (1_000_000, 1_000))
    size = (len(small) + len(rest) - 4).to_bytes(4, "big")
    c.client_sends(size + small[4:]).upstream_sees(size + lowered[4:])
    c.client_sends(rest).upstream_sees(rest)
    c.upstream_answers(fetch_reply(1_500)).client_sees(fetch_reply(1_500, throttle_time_ms=5_000))


@pytest.mark.parametrize("piece_bytes", [1, 7, 60])
def test_k12_a_request_in_pieces_is_lowered_as_a_whole_one(piece_bytes: int) -> None:
    c = Conversation(consumer_byte_rate=100)
    c.client_sends(fetch(1, max_bytes=1_000_000), piece_bytes=piece_bytes)
    c.upstream_sees(fetch(1, max_bytes=1_000))


def test_k16_a_request_that_is_cut_anywhere_behind_many_others_is_lowered_as_a_whole_one() -> None:
    asked, lowered = fetch(1, max_bytes=1_000_000), fetch(1, max_bytes=1_000)
    before = heartbeat(0) * (PASS_ON_BYTES // len(heartbeat(0)) + 1)
    for cut in range(1, len(asked)):
        c = Conversation(settings=session_settings(max_in_flight_requests=10_000), consumer_byte_rate=100)
        c.client_sends(before + asked[:cut]).upstream_sees(before)
        c.client_sends(asked[cut:]).upstream_sees(lowered)


def test_each_fetch_under_way_for_a_topic_with_a_quota_ends() -> None:
    core = GatewayCore()
    core.limits.set(QuotaEntity(topic="t"), QuotaKey.CONSUMER_BYTE_RATE, 1_000_000)
    c = Conversation(core=core).client_sends(fetch()).upstream_answers(fetch_reply(500))
    ((_, tracker),) = core.client_quotas.fetch_topics.own()
    c.client_sends(fetch(2), fetch(3))
    assert tracker.fetches == 2
    c.upstream_answers(fetch_reply(500, 2))
    assert tracker.fetches == 1
    c.upstream_answers(fetch_reply(500, 3))
    assert tracker.fetches == 0
