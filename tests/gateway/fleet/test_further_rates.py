"""Rates that Kafka has not, between members of a fleet and between the two processes of an upgrade."""

from __future__ import annotations

import orjson
import pytest

from gateway.fleet.counters import AllCounters, counters_of
from gateway.fleet.shares import Member, Share, decode_share, encode_share
from gateway.server.carried import OwnUse, states, take_states, take_use
from gateway.session.client_quotas import ClientQuotas
from quotas.entities import API_RATE_KEYS, BURST_KEYS, Family, QuotaEntity, QuotaKey
from quotas.group_quotas import GroupKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings, RateTracker, ScopedKey
from quotas.resolution import TrackerKey
from quotas.topic_quotas import TopicKey
from testkit.observer import SilentObserver

ALICE = ScopedKey(None, TrackerKey("alice", ""))
NOW_MS = 1_000_000
KEYS = (*BURST_KEYS, *API_RATE_KEYS)


def gateway() -> AllCounters:
    """The counters of a gateway that limits alice to ten of everything a second, of bytes with a burst of two."""
    limits = Limits()
    for key in KEYS:
        limits.set(QuotaEntity("alice"), key, 10)
    for key in BURST_KEYS.values():
        limits.set(QuotaEntity("alice"), key, 2)
    quotas = ClientQuotas(limits, RateSettings(), SilentObserver())
    return counters_of(quotas.produce, quotas.fetch, quotas.request_time, None, further=quotas.further_rates)


def counter(counters: AllCounters, key: QuotaKey) -> RateTracker:
    found = counters[key].counter_of(ALICE, "alice", now_ms=NOW_MS)
    assert isinstance(found, RateTracker)
    return found


def test_every_rate_is_in_the_messages_of_a_fleet() -> None:
    share = Share(
        Member("a", "b"),
        1,
        use={key: [(ALICE, 3.0)] for key in KEYS},
        levels={key: [(ALICE, 5.0, 7.0)] for key in KEYS},
    )
    read = decode_share(encode_share(share))
    assert read.use == share.use
    assert read.levels == share.levels
    assert read.counters == share.counters


def test_rates_topics_and_groups_are_in_one_message_each_in_its_own_field() -> None:
    produced = [(ALICE, 1.0), (TopicKey(None, Family.TOPIC, "t", "", ""), 2.0), (GroupKey(None, "team"), 3.0)]
    use = {QuotaKey.PRODUCER_BYTE_RATE: produced, QuotaKey.PRODUCER_RECORD_RATE: [(ALICE, 4.0)]}
    data = encode_share(Share(Member("a", "b"), 1, use=use))
    assert {name: field for name, field in orjson.loads(data).items() if name.endswith("use")} == {
        "use": {"p": [[None, "alice", "", 1.0]]},
        "topic_use": {"p": [[None, "", "", "topic", "t", 2.0]]},
        "group_use": {"p": [[None, "team", 3.0]]},
        "rate_use": {"producer_record_rate": [[None, "alice", "", 4.0]]},
    }
    assert decode_share(data).use == use


def test_an_earlier_version_finds_only_what_it_knows_where_it_looks() -> None:
    use = {QuotaKey.PRODUCER_BYTE_RATE: [(ALICE, 1.0)], QuotaKey.METADATA_REQUEST_RATE: [(ALICE, 3.0)]}
    body = orjson.loads(encode_share(Share(Member("a", "b"), 1, use=use)))
    assert body["use"] == {"p": [[None, "alice", "", 1.0]]}
    assert body["rate_use"] == {"metadata_request_rate": [[None, "alice", "", 3.0]]}


def test_rates_of_a_later_version_are_passed_over() -> None:
    body = {"v": 1, "id": "a", "boot": "b", "seq": 1, "rate_use": {"new_rate": [["anything"]]}}
    assert decode_share(orjson.dumps(body)).use == {}


@pytest.mark.parametrize("key", KEYS)
def test_an_upgrade_hands_buckets_over_and_then_tells_what_is_used(key: QuotaKey) -> None:
    old, new = gateway(), gateway()
    use = OwnUse(old)
    counter(old, key).record(25, now_ms=NOW_MS)
    take_states(new, states(old, now_ms=NOW_MS), now_ms=NOW_MS)
    assert counter(new, key).tokens(now_ms=NOW_MS) == pytest.approx(-5)
    use.take()
    counter(old, key).record(4, now_ms=NOW_MS)
    take_use(new, use.take(), now_ms=NOW_MS)
    assert counter(new, key).tokens(now_ms=NOW_MS) == pytest.approx(-9)
