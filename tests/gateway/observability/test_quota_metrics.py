"""Series per client: bounded, and with totals that add up and never shrink."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.quota_metrics import (
    MAX_LABEL_CHARS,
    OTHER,
    MutationSeries,
    QuotaMetrics,
    RateSeries,
    label_value,
)
from protocol.steps import finish
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.groups import Group, Groups
from quotas.limits import Limits
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.rate_quotas import ByteRateQuotas, RateQuotas, RateSettings, RequestTimeQuotas

NOW_MS = 7_300_000
EVERY_CLIENT = QuotaEntity(client_id=DEFAULT)


class Produced:
    """A byte rate of 100 per second for every client id, and its series."""

    def __init__(self, *, max_rows: int = 250, per_broker: bool = False, max_trackers: int = 100) -> None:
        self.limits = Limits()
        self.limits.set(EVERY_CLIENT, QuotaKey.PRODUCER_BYTE_RATE, 100)
        settings = RateSettings(max_trackers=max_trackers, idle_expiry_ms=1)
        self.quotas = ByteRateQuotas(self.limits, QuotaKey.PRODUCER_BYTE_RATE, settings)
        self.series = RateSeries(
            "produce", "produce_byte_rate", "x", self.quotas, bursts=True, max_rows=max_rows, per_broker=per_broker
        )
        self.now_ms = NOW_MS

    def use(self, client_id: str, size: int, *, scope: int | None = None) -> None:
        tracker = self.quotas.tracker("u", client_id, scope=scope, now_ms=self.now_ms)
        assert tracker is not None
        tracker.throttles.record(tracker.record(size, now_ms=self.now_ms), now_ms=self.now_ms)

    def scrape(self) -> dict[str, dict[str, float]]:
        """Series name -> client id, or "other" -> value."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for family in self.series.collect(finish(self.series.look(now_ms=self.now_ms))):
            for sample in family.samples:
                labels = sample.labels
                name = OTHER if labels["rule"] == OTHER else labels["client_id"] + labels.get("broker", "")
                assert name not in found[sample.name]
                found[sample.name][name] = sample.value
        return found


def test_every_client_shows_its_rate_limit_utilisation_and_waits() -> None:
    produced = Produced()
    produced.use("a", 500)
    produced.use("b", 3_000)
    found = produced.scrape()
    assert found["gateway_produce_byte_rate"] == {"a": 50, "b": 300}
    assert found["gateway_produce_byte_rate_limit"] == {"a": 100, "b": 100}
    assert found["gateway_produce_utilisation_ratio"] == {"a": 0.5, "b": 3}
    assert found["gateway_produce_throttle_time_seconds"] == {"b": 20}
    assert found["gateway_produce_throttled_requests_total"] == {"a": 0, "b": 1}
    assert found["gateway_produce_would_throttle_total"] == {"a": 0, "b": 0}


def test_observed_clients_and_brokers_are_told_apart() -> None:
    produced = Produced()
    produced.limits.set_observed([EVERY_CLIENT])
    produced.use("a", 5_000)
    found = produced.scrape()
    assert found["gateway_produce_would_throttle_total"] == {"a": 1}
    assert found["gateway_produce_throttled_requests_total"] == {"a": 0}
    produced = Produced(per_broker=True)
    produced.use("a", 100, scope=1)
    produced.use("a", 200, scope=2)
    assert produced.scrape()["gateway_produce_byte_rate"] == {"a1": 10, "a2": 20}


def test_busiest_clients_are_shown_steadily_and_the_others_share_a_row() -> None:
    produced = Produced(max_rows=2)
    for at in range(6):
        produced.use(f"c{at}", 100 * at)
    found = produced.scrape()
    assert found["gateway_produce_byte_rate"] == {"c4": 40, "c5": 50, OTHER: 60}
    assert found["gateway_produce_byte_rate_limit"].keys() == {"c4", "c5"}
    produced = Produced(max_rows=2)
    for at in range(4):
        produced.use(f"c{at}", 100 * at)
    assert produced.scrape()["gateway_produce_byte_rate"].keys() == {"c2", "c3", OTHER}
    produced.use("c1", 150)
    assert produced.scrape()["gateway_produce_byte_rate"].keys() == {"c2", "c3", OTHER}
    for at in range(4, 8):
        produced.use(f"c{at}", 1_000)
    assert not produced.scrape()["gateway_produce_byte_rate"].keys() & {"c2", "c3"}


def test_without_clients_or_places_there_is_at_most_the_common_row() -> None:
    assert Produced().scrape() == {}
    produced = Produced()
    produced.use("a", 5_000)
    produced.now_ms += 3_600_000
    assert produced.scrape()["gateway_produce_throttled_requests_total"] == {OTHER: 1}
    produced = Produced(max_rows=0)
    produced.use("a", 5_000)
    assert produced.scrape()["gateway_produce_throttled_requests_total"] == {OTHER: 1}


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from([0, 50, 5_000]), st.sampled_from([0, 0, 10, 20_000])),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 4),
    st.sampled_from([3, 6, 100]),
)
def test_i01_totals_add_up_and_no_counter_of_the_common_row_ever_shrinks(
    steps: list[tuple[int, int, int]], max_rows: int, max_trackers: int
) -> None:
    produced = Produced(max_rows=max_rows, max_trackers=max_trackers)
    throttled = 0
    before: dict[str, float] = {}
    for client, size, later_ms in steps:
        produced.now_ms += later_ms
        tracker = produced.quotas.tracker("u", f"c{client}", now_ms=produced.now_ms)
        assert tracker is not None
        wait_ms = tracker.record(size, now_ms=produced.now_ms)
        tracker.throttles.record(wait_ms, now_ms=produced.now_ms)
        throttled += wait_ms > 0
        found = produced.scrape()["gateway_produce_throttled_requests_total"]
        assert sum(found.values()) == throttled
        assert len(found) <= max_rows + 1
        assert found.get(OTHER, 0) >= before.get(OTHER, 0)
        assert all(value >= 0 for value in found.values())
        before = found


def test_i06_long_name_is_cut_and_two_of_them_stay_two() -> None:
    names = ["x" * 32_000 + end for end in "ab"]
    first, second = (label_value(name) for name in names)
    assert first != second
    assert len(first) == len(second) == MAX_LABEL_CHARS
    assert first.startswith("xxx")
    assert label_value("x" * MAX_LABEL_CHARS) == "x" * MAX_LABEL_CHARS


class Mutations:
    """A mutation rate of 1 per second for every client id, and its series."""

    def __init__(self, *, max_rows: int) -> None:
        limits = Limits()
        limits.set(EVERY_CLIENT, QuotaKey.CONTROLLER_MUTATION_RATE, 1)
        self.quotas = MutationQuotas(limits, MutationSettings(window_num=10))
        self.series = MutationSeries(self.quotas, max_rows=max_rows)

    def scrape(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for family in self.series.collect(finish(self.series.look(now_ms=NOW_MS))):
            for sample in family.samples:
                found[sample.name][sample.labels["client_id"] or sample.labels["rule"]] = sample.value
        return found


@pytest.mark.parametrize("max_rows", [5, 1])
def test_mutations_are_shown_with_their_tokens_and_refusals(max_rows: int) -> None:
    mutations = Mutations(max_rows=max_rows)
    sizes: dict[str, Any] = {"a": [3], "b": [30, 1, 1]}
    for client_id, permits in sizes.items():
        for each in permits:
            mutations.quotas.charge("u", client_id, each, strict=True, now_ms=NOW_MS)
    found = mutations.scrape()
    prefix = "gateway_controller_mutation"
    if max_rows == 5:
        assert found[f"{prefix}_tokens"] == {"a": 7, "b": -20}
        assert found[f"{prefix}_refused_topics_total"] == {"a": 0, "b": 2}
    else:
        assert found[f"{prefix}_tokens"] == {"b": -20}
        assert found[f"{prefix}_refused_topics_total"] == {"b": 2, OTHER: 0}
        assert found[f"{prefix}_rate"][OTHER] == pytest.approx(0.1)
    assert found[f"{prefix}_limit"]["b"] == 1


def test_groups_are_shown_with_what_their_members_mutate() -> None:
    limits = Limits()
    limits.set(QuotaEntity(group="team"), QuotaKey.CONTROLLER_MUTATION_RATE, 2)
    limits.set_groups(Groups([Group("team", users=("alice", "bob"))]))
    mutations = MutationQuotas(limits, MutationSettings())
    metrics = QuotaMetrics(
        limits,
        produce=RateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings()),
        fetch=RateQuotas(limits, QuotaKey.CONSUMER_BYTE_RATE, RateSettings()),
        request_time=RequestTimeQuotas(limits, RateSettings()),
        mutations=mutations,
        groups=(("controller_mutation", mutations.groups),),
        now_ms=lambda: NOW_MS,
    )
    for user in ("alice", "bob", "carol"):
        mutations.charge(user, "c", 30, strict=False, now_ms=NOW_MS)
    mutations.count_throttle("bob", "c", 19_000, group="team", now_ms=NOW_MS)
    found = {
        sample.name: (sample.labels, sample.value)
        for family in metrics.collect()
        for sample in family.samples
        if sample.name.startswith("gateway_group")
    }
    labels = {"group": "team", "quota": "controller_mutation"}
    assert found == {
        "gateway_group_use": (labels, 2.0),  # 60 in Kafka's metric windows
        "gateway_group_limit": (labels, 2.0),
        "gateway_group_throttles_total": (labels, 1),
    }
