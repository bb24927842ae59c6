"""The replay of a real gateway's records says what the gateway did; `make campaign-fidelity` is the long run."""

import signal

import pytest

from embedded_kafka.kafka import KafkaCluster
from quotas.usage_record import UsageApi
from testkit.pipeline.fidelity import Admin, Producer, Verdict, compacted_of, compare, drive, quota_tables
from testkit.usage_lines import usage_lines
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GatewayOptions

pytestmark = pytest.mark.integration

PRODUCERS = [
    Producer("fidelity-far-over", 40_000, 3.0, 2_000),
    Producer("fidelity-over", 100_000, 1.5, 4_000),
    Producer("fidelity-at", 60_000, 1.0, 1_000),
    Producer("fidelity-within", 200_000, 0.3, 4_000),
]
ADMINS = [Admin("fidelity-new", 1.0, 7, 1.5), Admin("fidelity-old", 1.0, 5, 1.5)]


@pytest.fixture(scope="module")
def verdict(start_gateway: StartGateway, kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    folder = tmp_path_factory.mktemp("usage")
    usage = f'[usage]\nkind = "files"\ndirectory = "{folder}"\ngateway_id = "fidelity"\nrotate_seconds = 5\n'
    gateway = start_gateway(kafka, GatewayOptions(tables=usage + quota_tables(PRODUCERS, ADMINS)))
    seen = drive(
        lambda client_id: WireClient(gateway.bootstrap, client_id=client_id, timeout_s=120),
        PRODUCERS,
        ADMINS,
        seconds=25,
        seed=1,
    )
    counted = {
        (name, client_id): gateway.metric(name, client_id=client_id) or 0.0
        for client_id in seen
        for name in ("gateway_produce_throttled_requests_total", "gateway_controller_mutation_refused_topics_total")
    }
    gateway.signal(signal.SIGTERM)
    assert gateway.wait(60) == 0
    compacted = compacted_of(usage_lines(folder))
    return compare(compacted, PRODUCERS, ADMINS, seen, lambda name, client_id: counted[name, client_id])


def test_mutations_are_refused_or_throttled_exactly_as_often_as_by_the_gateway(verdict: Verdict) -> None:
    rows = verdict.of(UsageApi.MUTATION)
    assert {row.client_id for row in rows} == {each.client_id for each in ADMINS}
    assert all(row.truth_share > 0 for row in rows), "nobody was over the quota: nothing is shown"
    assert verdict.mutations_exact, rows


def test_throttled_shares_of_bytes_are_within_a_few_points_even_of_a_short_run(verdict: Verdict) -> None:
    rows = verdict.of(UsageApi.PRODUCE)
    assert len(rows) == len(PRODUCERS)
    assert max(row.truth_share for row in rows) > 0.05 > min(row.truth_share for row in rows)
    # 25 s are two windows; what minutes come to is in benchmarks/results/fidelity.md.
    assert verdict.share_error <= 0.08, rows
