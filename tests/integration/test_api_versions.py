"""ApiVersions of the real broker beside the gateway's: the intersection, in every version of the question."""

from __future__ import annotations

from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from protocol.api_keys import ApiKey
from testkit import wire
from testkit.wire_client import WireClient
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

UNSUPPORTED_VERSION: Final = 35
SOFTWARE: Final = {"client_software_name": "tests", "client_software_version": "1"}

# Only between brokers, or about the set of nodes.
NOT_OFFERED: Final = {
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.UNREGISTER_CONTROLLER,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
}
# Later versions are spoken between brokers.
CAPPED: Final = {ApiKey.ADD_PARTITIONS_TO_TXN: 3}


@pytest.mark.parametrize("version", range(6))
def test_answer_is_the_brokers_without_what_must_not_pass(
    gateway3: GatewayProcess, kafka3: KafkaCluster, version: int
) -> None:
    with WireClient(kafka3.brokers[1]) as broker, WireClient(gateway3.broker(1)) as client:
        direct = broker.ask("ApiVersions", version, **(SOFTWARE if version >= 3 else {})).body.to_dict()
        through = client.ask("ApiVersions", version, **(SOFTWARE if version >= 3 else {})).body.to_dict()

    brokers = ranges(direct)
    expected = {
        key: (lowest, min(highest, CAPPED.get(ApiKey(key), highest)))
        for key, (lowest, highest) in brokers.items()
        if key not in NOT_OFFERED
    }
    assert ranges(through) == expected
    assert brokers.keys() - expected.keys() == NOT_OFFERED
    # Produce keeps its minimum: old librdkafka decides by it whether it may compress (KAFKA-18659).
    assert expected[ApiKey.PRODUCE][0] == 0
    del direct["api_keys"], through["api_keys"]
    # It is an offset of the metadata, which grows by itself between the two questions.
    assert through.pop("finalized_features_epoch", 0) >= direct.pop("finalized_features_epoch", 0)
    assert through == direct


@pytest.mark.parametrize("version", [6, 99, 32767])
def test_unknown_version_of_the_question_is_answered_in_version_0_with_the_range(
    gateway3: GatewayProcess, version: int
) -> None:
    frame = wire.framed(wire.head(ApiKey.API_VERSIONS, version, flexible=True, correlation_id=7) + b"\x00")
    with WireClient(gateway3.bootstrap) as client:
        client.send_bytes(frame)
        answer = wire.decode_response("ApiVersions", 0, client.receive_frame())
        assert answer.error_code == UNSUPPORTED_VERSION
        assert ranges(answer.to_dict()) == {ApiKey.API_VERSIONS: (0, 5)}
        assert client.ask("ApiVersions", 4, **SOFTWARE).body.error_code == 0, "the connection stays"


def ranges(answer: dict[str, Any]) -> dict[int, tuple[int, int]]:
    return {entry["api_key"]: (entry["min_version"], entry["max_version"]) for entry in answer["api_keys"]}
