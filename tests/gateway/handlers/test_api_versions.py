"""ApiVersions on a connection: what the broker offers, cut to what may pass, and who is at the wrong place."""

from struct import pack

import pytest

from config.sections.quota_admin import Authorize
from gateway.observability.events import CloseCause
from testkit import wire
from testkit.conversation import Conversation
from testkit.frames import heartbeat, heartbeat_reply, unknown_api_versions, unknown_api_versions_reply
from testkit.golden import golden
from testkit.sasl import PLAIN_ALICE, SaslConversation

RECORDED = wire.decode_request("ApiVersions", 5, golden("api_versions", 5, "request"))
CLUSTER: str = RECORDED.cluster_id
OFFER = golden("api_versions", 5)
MISROUTED = golden("api_versions_misrouted", 5)
BEFORE_V5 = wire.framed(pack(">ihihhh", 1, 35, 1, 18, 0, 4))
"""What a broker of Kafka 4.3 answers to version 5."""


def asking(cluster_id: str | None, node_id: int) -> bytes:
    software = {"client_software_name": "tests", "client_software_version": "1"}
    return wire.request("ApiVersions", 5, **software, cluster_id=cluster_id, node_id=node_id)


def at_port_of(broker_id: int | None, *, cluster_id: str | None = CLUSTER) -> Conversation:
    """A client at the port of a broker, or at the bootstrap port, of a gateway that has found this cluster."""
    c = Conversation()
    c.session.broker_id = broker_id
    c.core.context.topology.cluster.answered_cluster_id = cluster_id
    return c


@pytest.mark.parametrize("version", range(6))
def test_a_real_brokers_offer_is_cut_to_what_may_pass(version: int) -> None:
    request = golden("api_versions", version, "request")
    c = at_port_of(1).client_sends(request).upstream_sees(request)
    c.upstream_answers(golden("api_versions", version))
    ours = {a.api_key: a for a in wire.decode_response("ApiVersions", version, c.take_client()).api_keys}
    kafkas = {
        a.api_key: a for a in wire.decode_response("ApiVersions", version, golden("api_versions", version)).api_keys
    }
    assert (ours[1].min_version, ours[1].max_version) == (kafkas[1].min_version, 18)
    assert (ours[0].min_version, ours[0].max_version) == (0, kafkas[0].max_version)
    assert not {83, 84, 85, 86, 87} & set(ours)
    assert all(a.max_version <= kafkas[key].max_version for key, a in ours.items())


def test_a_broker_older_than_the_version_asked_answers_in_v0_and_is_understood() -> None:
    c = Conversation().client_sends(wire.request("ApiVersions", 4, client_software_name="a"))
    c.upstream_answers(wire.framed(pack(">ihihhhhhh", 1, 35, 2, 18, 0, 3, 84, 0, 0)))
    c.client_sees(wire.framed(pack(">ihihhh", 1, 35, 1, 18, 0, 3)))


@pytest.mark.parametrize(("authorize", "offered"), [(Authorize.DENY, {18, 48, 49}), (Authorize.ASK_CLUSTER, {18})])
def test_the_quota_api_is_offered_unless_the_broker_is_needed_for_it(authorize: Authorize, offered: set[int]) -> None:
    c = Conversation(authorize=authorize).client_sends(wire.request("ApiVersions", 2))
    keys = [{"api_key": 18, "min_version": 0, "max_version": 3}]
    c.upstream_answers(wire.response("ApiVersions", 2, api_keys=keys))
    assert {a.api_key for a in wire.decode_response("ApiVersions", 2, c.take_client()).api_keys} == offered


def test_a_version_that_nobody_knows_never_reaches_the_broker() -> None:
    c = Conversation().client_sends(unknown_api_versions(3)).upstream_sees()
    c.client_sees(unknown_api_versions_reply(3))


@pytest.mark.parametrize(
    ("port_of", "node_id"), [(2, 1), (2, 3), (2, 0), (2, -2), (2, 2**31 - 1), (None, 2), (None, 0)]
)
@pytest.mark.parametrize("cluster_id", [CLUSTER, "another", "", "x" * 32_767])
def test_a_client_at_the_port_of_another_node_reaches_no_broker_and_is_told(
    port_of: int | None, node_id: int, cluster_id: str
) -> None:
    c = at_port_of(port_of).client_sends(asking(cluster_id, node_id), heartbeat(2))
    c.upstream_sees().client_sees(MISROUTED).closed(CloseCause.MISROUTED)


def test_a_misrouted_client_is_told_behind_the_replies_to_what_it_asked_before() -> None:
    c = at_port_of(2).client_sends(heartbeat(8), asking(CLUSTER, 1)).upstream_sees(heartbeat(8)).client_sees().alive()
    c.upstream_answers(heartbeat_reply(8)).client_sees(heartbeat_reply(8), MISROUTED).closed(CloseCause.MISROUTED)


def test_a_client_at_the_right_place_is_served_once_the_broker_has_agreed() -> None:
    c = at_port_of(2).client_sends(asking(CLUSTER, 2), heartbeat(2)).upstream_sees(asking(CLUSTER, 2))
    c.upstream_answers(OFFER).upstream_sees(heartbeat(2))
    assert wire.decode_response("ApiVersions", 5, c.take_client()).error_code == 0
    c.upstream_answers(heartbeat_reply(2)).client_sees(heartbeat_reply(2)).alive()


def test_what_the_broker_finds_wrong_is_passed_on_and_nothing_else_of_the_client_reaches_it() -> None:
    """The port is right, but another node or cluster has taken the address behind it."""
    c = at_port_of(2).client_sends(asking(CLUSTER, 2), heartbeat(2)).upstream_sees(asking(CLUSTER, 2))
    c.upstream_answers(MISROUTED).upstream_sees().client_sees(MISROUTED).closed(CloseCause.MISROUTED)


def test_a_broker_that_compares_has_the_last_word_about_the_cluster() -> None:
    """The gateway may not have noticed yet that the upstream leads elsewhere."""
    c = at_port_of(2, cluster_id="the last one").client_sends(asking(CLUSTER, 2)).upstream_answers(OFFER)
    assert wire.decode_response("ApiVersions", 5, c.take_client()).error_code == 0
    c.alive()


@pytest.mark.parametrize(("known", "passes"), [(CLUSTER, True), (None, True), ("another", False)])
def test_for_a_broker_before_v5_the_gateway_compares_the_cluster(known: str | None, passes: bool) -> None:
    c = at_port_of(2, cluster_id=known).client_sends(asking(CLUSTER, 2), heartbeat(2))
    c.upstream_sees(asking(CLUSTER, 2)).upstream_answers(BEFORE_V5)
    if passes:
        c.client_sees(BEFORE_V5).upstream_sees(heartbeat(2)).alive()
    else:
        c.client_sees(MISROUTED).upstream_sees().closed(CloseCause.MISROUTED)


@pytest.mark.parametrize(("cluster_id", "passes"), [(CLUSTER, True), ("another", False)])
def test_no_secret_goes_to_another_cluster_although_brokers_compare_only_after_the_login(
    cluster_id: str, passes: bool
) -> None:
    c = SaslConversation()
    c.session.broker_id = 2
    c.core.context.topology.cluster.answered_cluster_id = CLUSTER
    c.client_sends(asking(cluster_id, 2)).upstream_answers(OFFER)
    if not passes:
        c.client_sees(MISROUTED).closed(CloseCause.MISROUTED)
        return
    assert wire.decode_response("ApiVersions", 5, c.take_client()).error_code == 0
    c.take_upstream()
    c.shakes_hands("PLAIN").round(PLAIN_ALICE)
    # Now the broker compares, and the gateway need not know.
    c.core.context.topology.cluster.answered_cluster_id = "another"
    c.client_sends(asking(CLUSTER, 2)).upstream_answers(OFFER).alive()


@pytest.mark.parametrize(("cluster_id", "node_id"), [(None, -1), (None, 1), (CLUSTER, -1), ("another", -1)])
@pytest.mark.parametrize("port_of", [2, None])
def test_half_a_name_and_none_are_the_brokers_to_judge(
    cluster_id: str | None, node_id: int, port_of: int | None
) -> None:
    asked = asking(cluster_id, node_id)
    c = at_port_of(port_of).client_sends(asked).upstream_sees(asked)
    c.upstream_answers(golden("api_versions_invalid", 5)).client_sees(golden("api_versions_invalid", 5)).alive()


@pytest.mark.parametrize("version", range(5))
def test_a_client_before_v5_names_nothing_and_is_served(version: int) -> None:
    request = golden("api_versions", version, "request")
    at_port_of(2, cluster_id="another").client_sends(request, heartbeat(2)).upstream_sees(request, heartbeat(2))


def body(*parts: bytes) -> bytes:
    return wire.framed(wire.head(18, 5, flexible=True) + b"".join(parts))


NAMES = b"\x06tests\x021"
TWO = pack(">i", 2)


@pytest.mark.parametrize("malformed", [
    body(), body(NAMES), body(b"\x00", b"\x021", b"\x00", TWO, b"\x00"), body(NAMES, b"\x05abc"),
    body(NAMES, b"\x00", TWO[:3]), body(NAMES, b"\x00", TWO), body(NAMES, b"\xff\xff\xff\xff\x0f", TWO, b"\x00"),
    body(NAMES, b"\x81\x80\x80\x80\x80\x01a", TWO, b"\x00"),
    body(NAMES, wire.uvarint(32_769) + b"x" * 32_768, TWO, b"\x00"),
    body(NAMES, b"\x02a", TWO, b"\x7f"), body(NAMES, b"\x02a", TWO, b"\x01\x00\x7f"),
])  # fmt: skip
def test_a_name_that_cannot_be_read_ends_the_connection_as_with_kafka(malformed: bytes) -> None:
    at_port_of(2).client_sends(malformed).upstream_sees().client_sees().closed(CloseCause.MALFORMED_FRAME)


@pytest.mark.parametrize("called", [b"\xff\xfe", b"\x00" * 20, CLUSTER.encode()[:-1] + b"\xff"])
def test_a_cluster_id_that_is_no_text_is_another_cluster(called: bytes) -> None:
    tags = wire.tag_section([(0, b"unknown"), (9, b"")])
    asked = body(NAMES, wire.uvarint(len(called) + 1), called, TWO, tags)
    c = at_port_of(2).client_sends(asked).upstream_sees(asked).upstream_answers(BEFORE_V5)
    c.client_sees(MISROUTED).closed(CloseCause.MISROUTED)
