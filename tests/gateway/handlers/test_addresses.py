"""FindCoordinator and DescribeCluster on a connection: our addresses, or none."""

from typing import Any

import pytest

from testkit import wire
from testkit.conversation import Conversation
from testkit.core import FIRST_PORT, GATEWAY_HOST, UPSTREAM_HOST
from testkit.golden import golden

UPSTREAM: dict[str, Any] = {"node_id": 2, "host": UPSTREAM_HOST, "port": 9_092}


def told(name: str, version: int, reply: bytes, **request: Any) -> tuple[Any, bytes]:
    """What the client is answered when the broker answers like this, decoded and raw."""
    asked = wire.request(name, version, **request)
    c = Conversation().client_sends(asked).upstream_sees(asked).upstream_answers(reply)
    raw = c.take_client()
    return wire.decode_response(name, version, raw), raw


@pytest.mark.parametrize("version", range(4, 7))
def test_e05_every_coordinator_of_a_list_is_told_with_our_address(version: int) -> None:
    listed = [{"key": "a", **UPSTREAM}, {"key": "b", **UPSTREAM, "node_id": 99}]
    answer, raw = told("FindCoordinator", version, wire.response("FindCoordinator", version, coordinators=listed))
    assert [(c.key, c.node_id, c.host, c.port, c.error_code) for c in answer.coordinators] == [
        ("a", 2, GATEWAY_HOST, FIRST_PORT + 1, 0),
        ("b", -1, "", -1, 15),
    ]
    assert UPSTREAM_HOST.encode() not in raw


@pytest.mark.parametrize("version", range(3))
def test_e04_describe_cluster_tells_our_addresses(version: int) -> None:
    brokers = [{"broker_id": i, "host": UPSTREAM_HOST, "port": 9_092, "rack": None} for i in (1, 2, 99)]
    reply = wire.response("DescribeCluster", version, endpoint_type=1, brokers=brokers, controller_id=99)
    answer, raw = told("DescribeCluster", version, reply)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [
        (1, GATEWAY_HOST, FIRST_PORT),
        (2, GATEWAY_HOST, FIRST_PORT + 1),
    ]
    assert answer.controller_id == -1
    assert UPSTREAM_HOST.encode() not in raw


@pytest.mark.parametrize("version", range(3))
def test_the_answer_of_a_real_cluster_of_three_brokers_has_three_of_our_ports(version: int) -> None:
    c = Conversation().client_sends(golden("describe_cluster", version, "request"))
    c.upstream_answers(golden("describe_cluster", version))
    answer = wire.decode_response("DescribeCluster", version, c.take_client())
    ports = {broker.broker_id: broker.port for broker in answer.brokers}
    assert ports == {1: FIRST_PORT, 2: FIRST_PORT + 1, 3: FIRST_PORT + 2}


@pytest.mark.parametrize("version", range(3))
def test_e06_describe_quorum_tells_no_listener_of_a_controller(version: int) -> None:
    fields = wire.populated("DescribeQuorum", version)
    answer, _ = told("DescribeQuorum", version, wire.response("DescribeQuorum", version, **fields))
    for node in fields.get("nodes", []):
        node["listeners"] = []
    expected = wire.response("DescribeQuorum", version, **fields)
    assert answer.to_dict() == wire.decode_response("DescribeQuorum", version, expected).to_dict()
