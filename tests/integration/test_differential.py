"""A random series of mutations through Kafka's own quota and through the gateway's: the same codes and waits."""

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GatewayOptions
from tests.integration.mutation_series import GAP_S, MARGIN_MS, RATE, Series, Step
from tests.integration.two_sides import Side, both_sides, brokers_quota, results_of

pytestmark = pytest.mark.integration

STEPS: Final = 30
ATTEMPTS: Final = 3
SEED: Final = int(os.environ.get("SLUICE_DIFFERENTIAL_SEED", "599"))
WORKERS: Final = (1, 3)
CLIENTS: Final = {workers: [f"series-{workers}-{number}" for number in range(ATTEMPTS)] for workers in WORKERS}
# Both sides round to whole milliseconds.
ROUNDING_MS: Final = 3


@pytest.fixture(scope="module", autouse=True)
def quota_of_the_broker(kafka: KafkaCluster) -> Iterator[None]:
    with brokers_quota(kafka.brokers[1], chain(*CLIENTS.values()), RATE):
        yield


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one step came to on both sides, the broker's first.

    Attributes:
        results: (topic, error code) in the order of the answer.
        throttle_times_ms: of the answers.
        span_ms: between the first request sent and the last answer received.
    """

    step: Step
    results: tuple[list[tuple[str, int]], ...]
    throttle_times_ms: tuple[int, ...]
    span_ms: float


@dataclass(slots=True)
class Race:
    """Both sides through one series, at the same moments."""

    sides: tuple[Side, Side]
    series: Series
    done: list[Comparison] = field(default_factory=list)

    def run(self, steps: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            start = time.monotonic()
            self._step(pool, self.series.opening())
            for number in range(steps):
                time.sleep(max(0.0, start + (number + 0.5) * GAP_S - time.monotonic()))
                self._step(pool, self.series.next())

    def _step(self, pool: ThreadPoolExecutor, step: Step) -> None:
        replies = list(
            pool.map(lambda side: side.ask(step.name, step.version, **step.fields(side.prefix)), self.sides)
        )
        results = tuple(results_of(reply, side) for reply, side in zip(replies, self.sides, strict=True))
        throttle_times_ms = tuple(reply.body.throttle_time_ms for reply in replies)
        span_ms = max(reply.received_ms for reply in replies) - min(reply.sent_ms for reply in replies)
        self.done.append(Comparison(step, results, throttle_times_ms, span_ms))
        print(f"{span_ms:4.0f} ms", step, *results, throttle_times_ms)  # shown when the test fails
        self.series.note(step, results[0])

    @property
    def disturbed(self) -> bool:
        """Whether the machine was too slow for the outcome to mean something."""
        return any(comparison.span_ms > MARGIN_MS * 0.8 for comparison in self.done)


# Each step has a connection of its own, which the least loaded worker gets.
@pytest.mark.campaign
@pytest.mark.parametrize("workers", WORKERS)
def test_random_mutations_get_the_same_codes_and_throttle_times_from_kafka_and_from_the_gateway(
    workers: int, kafka: KafkaCluster, start_gateway: StartGateway
) -> None:
    # Requests that only validate are charged, as KRaft does.
    tables = f'[mutation_quota]\nvalidate_only = "kraft"\n[server]\nworkers = {workers}\n'
    gateway = start_gateway(kafka, GatewayOptions(dict.fromkeys(CLIENTS[workers], RATE), tables=tables))
    for attempt, client_id in enumerate(CLIENTS[workers]):
        race = Race(both_sides(kafka.brokers[1], gateway.bootstrap, client_id), Series(random.Random(SEED + attempt)))
        race.run(STEPS)
        if not race.disturbed:
            break
    opening = race.done[0]
    assert opening.results == ([("0001", 0)], [("0001", 0)])
    for comparison in race.done:
        kafkas, ours = comparison.results
        assert ours == kafkas, f"{comparison.step} (seed {SEED + attempt})"
        kafkas_ms, ours_ms = comparison.throttle_times_ms
        # The debt of each side began during the opening and was looked at during this step.
        tolerance_ms = opening.span_ms + comparison.span_ms + ROUNDING_MS
        assert abs(ours_ms - kafkas_ms) <= tolerance_ms, f"{comparison.step} (seed {SEED + attempt})"

    # The series must have met what it is there for.
    codes = {code for comparison in race.done for _, code in comparison.results[0]}
    assert {0, 89} < codes
    assert len(codes) >= 5
    assert sum(comparison.throttle_times_ms[0] > 0 for comparison in race.done) >= 5
