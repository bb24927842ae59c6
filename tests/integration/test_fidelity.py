"""The replay of a real gateway's records says what the gateway did; longer in the campaign `fidelity`."""

import signal

import pytest

from embedded_kafka.kafka import KafkaCluster
from quotas.usage_record import UsageApi
from testkit.pipeline.fidelity import (
    BYTES,
    Admin,
    Client,
    Verdict,
    compacted_of,
    compare,
    drive,
    fill_topic,
    interval,
    quota_tables,
    source_of,
)
from testkit.usage_lines import usage_lines
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GatewayOptions

pytestmark = pytest.mark.integration

CLIENTS = [
    Client("fidelity-far-over", 40_000, 3.0, 2_000),
    Client("fidelity-over", 100_000, 1.5, 4_000),
    Client("fidelity-at", 60_000, 1.0, 1_000),
    Client("fidelity-within", 200_000, 0.3, 4_000),
    Client("fidelity-of-three", 100_000, 1.5, 4_000, connections=3),
    Client("fidelity-consumer", 100_000, 1.5, 8_000, UsageApi.FETCH),
    Client("fidelity-consumer-far-over", 40_000, 3.0, 4_000, UsageApi.FETCH),
    Client("fidelity-requests", 0.5, 3.0, api=UsageApi.REQUEST),
    Client("127.0.1.9", 2, 2.0, api=UsageApi.CONNECT),
]
ADMINS = [Admin("fidelity-new", 1.0, 7, 1.5), Admin("fidelity-old", 1.0, 5, 1.5)]


@pytest.fixture(scope="module")
def verdict(start_gateway: StartGateway, kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    folder = tmp_path_factory.mktemp("usage")
    usage = f'[usage]\nkind = "files"\ndirectory = "{folder}"\ngateway_id = "fidelity"\nrotate_seconds = 5\n'
    gateway = start_gateway(kafka, GatewayOptions(tables=usage + quota_tables(CLIENTS, ADMINS)))

    def connect(client_id: str) -> WireClient:
        # The tap has one address for all.
        source = source_of(client_id)
        address = gateway.behind_tap(1) if source else gateway.bootstrap
        return WireClient(address, client_id=client_id, timeout_s=120, source=source)

    fill_topic("{}:{}".format(*gateway.bootstrap), connect)
    seen = drive(connect, CLIENTS, ADMINS, seconds=25, seed=1)
    counted = {
        (name, client_id): gateway.metric(name, client_id=client_id) or 0.0
        for client_id in seen
        for name in ("gateway_produce_throttled_requests_total", "gateway_controller_mutation_refused_topics_total")
    }
    gateway.signal(signal.SIGTERM)
    assert gateway.wait(60) == 0
    compacted = compacted_of(usage_lines(folder))
    return compare(compacted, CLIENTS, ADMINS, seen, lambda name, client_id: counted[name, client_id])


def test_mutations_are_refused_or_throttled_exactly_as_often_as_by_the_gateway(verdict: Verdict) -> None:
    rows = verdict.of(UsageApi.MUTATION)
    assert {row.client_id for row in rows} == {each.client_id for each in ADMINS}
    assert all(row.truth_share > 0 for row in rows), "nobody was over the quota: nothing is shown"
    assert verdict.mutations_exact, rows


def test_throttled_shares_of_bytes_are_within_a_few_points_even_of_a_short_run(verdict: Verdict) -> None:
    rows = [row for api in BYTES for row in verdict.of(api)]
    assert len(rows) == len([each for each in CLIENTS if each.api in BYTES])
    assert max(row.truth_share for row in rows) > 0.05 > min(row.truth_share for row in rows)
    # 25 s are two windows; what minutes come to is in benchmarks/results/fidelity.md.
    assert verdict.share_error <= 0.08, rows
    low, high = interval(verdict.share_errors(*BYTES))
    assert low <= verdict.share_error <= high


def test_request_time_and_connections_are_replayed_as_the_gateway_counted_them(verdict: Verdict) -> None:
    rows = verdict.of(UsageApi.REQUEST) + verdict.of(UsageApi.CONNECT)
    assert [row.client_id for row in rows] == ["fidelity-requests", "127.0.1.9"]
    assert all(row.truth_share > 0 for row in rows), "none was over the quota: nothing is shown"
    # Seconds with a handful of requests each: what minutes come to is in benchmarks/results/fidelity.md.
    assert max(verdict.share_errors(UsageApi.REQUEST, UsageApi.CONNECT)) <= 0.25, rows
