"""Byte rates and request time as connections use them: who shares a counter, and what is booked where."""

import pytest

from gateway.session.client_quotas import ClientQuotas, QuotaScope, RequestTimeSource
from gateway.session.response_queue import TimedRequest
from protocol.api_keys import ApiKey, describe
from quotas.combine import ThrottledBy
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings
from testkit.core import RecordingObserver

NOW_MS = 1_000
FETCH = describe(ApiKey.FETCH, 12)


def quotas(
    *, scope: QuotaScope = QuotaScope.GATEWAY, source: RequestTimeSource = RequestTimeSource.GATEWAY, **limits: float
) -> tuple[ClientQuotas, RecordingObserver]:
    """Quotas with these limits for every user."""
    configured = Limits()
    for key, value in limits.items():
        configured.set(QuotaEntity(user=DEFAULT), QuotaKey(key), value)
    observer = RecordingObserver()
    return ClientQuotas(configured, RateSettings(), observer, scope=scope, source=source), observer


def test_counters_are_for_all_brokers_by_default_and_none_without_a_quota() -> None:
    client_quotas, _ = quotas(producer_byte_rate=10)
    assert client_quotas.produce_tracker("u", "c", 1, now_ms=NOW_MS) is not None
    assert client_quotas.fetch_tracker("u", "c", 1, now_ms=NOW_MS) is None
    client_quotas, _ = quotas(producer_byte_rate=10)
    trackers = {id(client_quotas.produce_tracker("u", "c", broker, now_ms=NOW_MS)) for broker in (None, 1, 2)}
    assert len(trackers) == 1


def test_in_the_brokers_scope_each_broker_has_counters_of_its_own() -> None:
    client_quotas, _ = quotas(scope=QuotaScope.BROKER, consumer_byte_rate=10)
    found = [client_quotas.fetch_tracker("u", "c", broker, now_ms=NOW_MS) for broker in (None, 1, 2, 1, None)]
    assert found[0] is found[4]
    assert found[1] is found[3]
    assert len({id(tracker) for tracker in found}) == 3
    client_quotas, _ = quotas(scope=QuotaScope.BROKER, request_percentage=1)
    waits = [
        client_quotas.record_request_time(
            "u", TimedRequest(FETCH, "c", 0), broker, busy_ns=100_000_000, answered_ns=0, kind="u", now_ms=NOW_MS
        )
        for broker in (1, 2, 1)
    ]
    assert waits == [0, 0, 1_000]


@pytest.mark.parametrize("busy_ns", [0, 200_000_000])
def test_the_brokers_time_is_that_between_forwarding_and_answer(busy_ns: int) -> None:
    client_quotas, _ = quotas(source=RequestTimeSource.UPSTREAM, request_percentage=1)
    timed = TimedRequest(describe(ApiKey.HEARTBEAT, 4), "c", 1_000)
    wait_ms = client_quotas.record_request_time(
        "u", timed, 1, busy_ns=busy_ns, answered_ns=1_000 + 102_000_000, kind="u", now_ms=NOW_MS
    )
    assert wait_ms == 200


def test_a_wait_is_booked_with_its_counter_and_told_to_the_observer() -> None:
    client_quotas, observer = quotas(consumer_byte_rate=10)
    tracker = client_quotas.fetch_tracker("u", "c", 1, now_ms=NOW_MS)
    assert tracker is not None
    client_quotas.record_throttle(
        ApiKey.FETCH, ThrottledBy.FETCH, tracker, 250, user="u", client_id="c", now_ms=NOW_MS
    )
    assert (tracker.throttles.throttled_total, tracker.throttles.throttled_ms_total) == (1, 250)
    assert observer.throttles == [(ApiKey.FETCH, tracker.match.rule, 250, ThrottledBy.FETCH)]
    client_quotas, observer = quotas(request_percentage=1, consumer_byte_rate=10)
    timed = TimedRequest(FETCH, "c", 0)
    client_quotas.record_request_throttle("u", timed, 1, 250, now_ms=NOW_MS)
    (row,) = client_quotas.request_time.snapshot(now_ms=NOW_MS)
    assert (row.throttled_total, row.throttled_ms_total) == (1, 250)
    assert [(key, ms, by) for key, _, ms, by in observer.throttles] == [(ApiKey.FETCH, 250, ThrottledBy.REQUEST)]
