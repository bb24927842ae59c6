"""SASL on a connection: what passes when, who the client is afterwards, and how a failure ends."""

import pytest

from gateway.auth.authentication import SaslRules
from gateway.observability.events import AuthenticationResult, CloseCause
from protocol.api_keys import ApiKey
from protocol.sasl import Mechanism
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, cut_name
from testkit import wire
from testkit.frames import heartbeat, heartbeat_reply
from testkit.sasl import EXCHANGES, PLAIN_ALICE, SCRAM_FIRST, SaslConversation, handshake, oauth, token, token_reply

PRODUCE = wire.request("Produce", 3, correlation_id=9, acks=1, timeout_ms=1, topic_data=[])
API_VERSIONS = wire.request("ApiVersions", 0, correlation_id=5)
FAILED = 58


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("mechanism", EXCHANGES)
def test_h01_user_is_known_with_the_brokers_last_word_and_not_before(mechanism: str, version: int) -> None:
    c = SaslConversation().shakes_hands(mechanism)
    for message, answer in EXCHANGES[mechanism]:
        assert c.user == "ANONYMOUS"
        c.round(message, answer, version=version)
    assert c.user == "alice"
    assert c.core.authentications == [(Mechanism(mechanism), AuthenticationResult.SUCCESS)]
    c.client_sends(PRODUCE).upstream_sees(PRODUCE)


@pytest.mark.parametrize("mechanism", EXCHANGES)
def test_h02_failure_leaves_the_client_anonymous_and_ends_after_the_delay(mechanism: str) -> None:
    c = SaslConversation().shakes_hands(mechanism)
    *rounds, last = EXCHANGES[mechanism]
    for message, answer in rounds:
        c.round(message, answer)
    c.round(last[0], error_code=FAILED).still_muted()
    assert c.user == "ANONYMOUS"
    c.client_sees().at(99).client_sees().alive()
    c.at(100).client_sees(token_reply(1000 + 1 + len(rounds) + 1, error_code=FAILED))
    c.closed(CloseCause.AUTHENTICATION_FAILED)
    assert c.core.authentications == [(Mechanism(mechanism), AuthenticationResult.FAILED)]


def test_k07_a_long_user_is_cut_before_it_is_counted_by() -> None:
    name = "n" * 1_000
    c = SaslConversation().shakes_hands("PLAIN")
    c.round(f"\0{name}\0secret".encode(), b"")
    assert c.user == cut_name(name)
    # A quota for such a user is found as well.
    assert QuotaEntity(user=name) == QuotaEntity(user=c.user)


def test_h02_brokers_delay_is_not_added_to_and_a_half_closed_client_waits_for_its_refusal() -> None:
    c = SaslConversation().shakes_hands("PLAIN")
    c.sends_token(PLAIN_ALICE)
    reply = token_reply(1002, error_code=FAILED)
    c.at(70).upstream_answers(reply).client_sees().at(99).client_sees().at(100).client_sees(reply)

    slow = SaslConversation().shakes_hands("PLAIN")
    slow.sends_token(PLAIN_ALICE)
    slow.at(300).upstream_answers(reply).client_sees(reply).closed(CloseCause.AUTHENTICATION_FAILED)
    c = SaslConversation().shakes_hands("PLAIN")
    c.sends_token(PLAIN_ALICE)
    reply = token_reply(1002, error_code=FAILED)
    c.client_half_closes().upstream_answers(reply).client_sees().at(99).client_sees().alive()
    c.at(100).client_sees(reply).closed(CloseCause.AUTHENTICATION_FAILED)
    c = SaslConversation().shakes_hands("CRAM-MD5", error_code=33).client_sees().at(100)
    c.client_sees(handshake("CRAM-MD5", 1001, error_code=33)[1]).closed(CloseCause.AUTHENTICATION_FAILED)
    c = SaslConversation().shakes_hands("PLAIN")
    c.sends_token(PLAIN_ALICE)
    c.client_half_closes()
    assert c.user == "ANONYMOUS"
    assert c.core.authentications == []


@pytest.mark.parametrize("name", ["Produce", "Metadata", "CreateTopics", "FindCoordinator", "DescribeConfigs"])
@pytest.mark.parametrize("after_handshake", [False, True])
def test_h10_nothing_else_passes_before_authentication(name: str, after_handshake: bool) -> None:
    c = SaslConversation()
    if after_handshake:
        c.shakes_hands("PLAIN")
    version = wire.versions(name)[-1]
    body_that_is_none = wire.framed(wire.request(name, version)[4:22] + b"\xff" * 500)
    c.client_sends(body_that_is_none).refused(CloseCause.UNAUTHENTICATED)


def test_h10_a_head_alone_is_enough_to_refuse_and_api_versions_pass() -> None:
    head = b"\x05\x00\x00\x00" + wire.request("Produce", 3, acks=1, timeout_ms=1, topic_data=[])[4:18]
    SaslConversation().client_sends(head).refused(CloseCause.UNAUTHENTICATED)
    frame = wire.framed(wire.head(4, 0, flexible=False))
    SaslConversation().client_sends(frame).refused(CloseCause.UNSUPPORTED_REQUEST)
    SaslConversation().client_sends(API_VERSIONS).upstream_sees(API_VERSIONS)


def test_what_is_sent_ahead_waits_for_the_brokers_word_and_goes_nowhere_after_a_refusal() -> None:
    c = SaslConversation().shakes_hands("PLAIN")
    frame = token(PLAIN_ALICE, 1)
    c.client_sends(frame, PRODUCE).upstream_sees(frame).still_muted()
    c.upstream_answers(token_reply(1)).client_sees(token_reply(1)).upstream_sees(PRODUCE)
    c = SaslConversation().shakes_hands("PLAIN")
    frame = token(PLAIN_ALICE, 1)
    c.client_sends(frame, PRODUCE).upstream_sees(frame)
    c.upstream_answers(token_reply(1, error_code=FAILED)).upstream_sees().at(100).upstream_sees()


def test_requests_count_for_the_user_once_there_is_one_and_for_no_other() -> None:
    c = SaslConversation(producer_byte_rate=10).authenticates()
    produce = wire.request("Produce", 3, acks=1, timeout_ms=1, topic_data=[], client_id="x" * 200)
    c.client_sends(produce).upstream_sees(produce).still_muted()
    c = SaslConversation(producer_byte_rate=10, user="bob").authenticates()
    produce = wire.request("Produce", 3, acks=1, timeout_ms=1, topic_data=[], client_id="x" * 200)
    c.client_sends(produce).upstream_sees(produce).reading()


def test_request_time_counts_from_the_first_request_of_the_user_on() -> None:
    c = SaslConversation(request_percentage=1).authenticates()
    assert c.session.meter is not None
    c.session.meter.busy_ns += 1_000_000_000
    c.client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    c.client_sees(wire.response("Heartbeat", 4, throttle_time_ms=1_000)).muted_until(1_000)
    c = SaslConversation(request_percentage=0.0001).authenticates("SCRAM-SHA-256")
    assert c.core.client_quotas.request_time.exempt_ns == 0
    assert not [by for *_, by in c.core.observer.throttles if by is ThrottledBy.REQUEST]
    c.reading()


def test_client_that_never_authenticates_is_closed_sooner_than_an_idle_one() -> None:
    silent = SaslConversation().shakes_hands("PLAIN")
    silent.at(29_999).alive().at(30_000).closed(CloseCause.IDLE_TIMEOUT)
    known = SaslConversation().authenticates()
    known.at(599_999).alive().at(600_000).closed(CloseCause.IDLE_TIMEOUT)


def test_frames_that_can_not_be_read_end_the_connection_and_make_nobody() -> None:
    c = SaslConversation().shakes_hands("PLAIN")
    c.sends_token(PLAIN_ALICE)
    c.upstream_answers(wire.framed(token_reply(1002)[4:11]))
    c.closed(CloseCause.UPSTREAM_MALFORMED)
    assert c.user == "ANONYMOUS"
    c = SaslConversation().shakes_hands("PLAIN")
    c.client_sends(wire.framed(wire.head(36, 1, flexible=False) + b"\0\0\0\x09short"))
    c.refused(CloseCause.MALFORMED_FRAME)


# -- state -----------------------------------------------------------------------------------------------------------
def test_h14_tokens_and_handshakes_out_of_an_exchange_change_nobody() -> None:
    SaslConversation().client_sends(token(PLAIN_ALICE, 1)).refused(CloseCause.ILLEGAL_SASL_STATE)
    c = SaslConversation().shakes_hands("PLAIN")
    c.client_sends(handshake("PLAIN", 7)[0]).refused(CloseCause.ILLEGAL_SASL_STATE)
    c = SaslConversation().authenticates().round(b"\0bob\0secret", error_code=34)
    c.client_sees(token_reply(1003, error_code=34)).alive()
    assert c.user == "alice"
    assert SaslConversation().authenticates().round(b"\0bob\0secret").user == "alice"


def test_h09_handshake_v0_is_told_that_it_is_too_old_and_a_bare_token_is_no_request() -> None:
    c = SaslConversation().client_sends(handshake("PLAIN", 3, version=0)[0]).upstream_sees()
    assert wire.decode_response("SaslHandshake", 0, c.take_client()).error_code == 35
    raw = wire.framed(PLAIN_ALICE)
    c.client_sends(raw).upstream_sees()
    assert c.closed_by is not None
    assert c.user == "ANONYMOUS"
    raw = wire.framed(bytes.fromhex("6082023e06092a864886f71201020201006e82022d"))
    c = SaslConversation().client_sends(raw).upstream_sees()
    assert c.closed_by is not None
    old = handshake("PLAIN", 3, version=0)[0]
    c = SaslConversation().client_sends(old)
    assert c.take_client()
    assert c.authenticates().client_sends(old).alive().user == "alice"
    c = SaslConversation().client_sends(old)
    assert c.take_client()
    c.client_sends(old).closed(CloseCause.ILLEGAL_SASL_STATE)
    c = SaslConversation().shakes_hands("PLAIN").client_sends(old).upstream_sees()
    c.closed(CloseCause.ILLEGAL_SASL_STATE)


@pytest.mark.parametrize("size", [524_288, 524_289])
def test_h04_tokens_are_let_in_up_to_the_brokers_own_limit(size: int) -> None:
    c = SaslConversation().shakes_hands("PLAIN")
    frame = token(b"\0alice\0" + b"x" * (size - len(token(b"\0alice\0", 1)) + 4), 1)
    assert len(frame) == size + 4
    if size == 524_288:
        c.client_sends(frame, piece_bytes=100_000).upstream_sees(frame)
    else:
        c.client_sends(frame[:100]).refused(CloseCause.FRAME_TOO_LARGE)


# -- again, on an open connection ------------------------------------------------------------------------------------
@pytest.mark.parametrize("mechanism", EXCHANGES)
def test_h11_reauthentication_goes_on_as_the_same_user(mechanism: str) -> None:
    c = SaslConversation(producer_byte_rate=1_000_000).authenticates(mechanism).authenticates(mechanism)
    assert c.user == "alice"
    assert [result for _, result in c.core.authentications] == [
        AuthenticationResult.SUCCESS,
        AuthenticationResult.REAUTHENTICATED,
    ]
    c.client_sends(PRODUCE).upstream_sees(PRODUCE)


def test_h11_what_is_in_flight_is_answered_before_the_reauthentication_and_the_lifetime_passes() -> None:
    c = SaslConversation().authenticates().client_sends(PRODUCE).upstream_sees(PRODUCE)
    asked, answered = handshake("PLAIN", 20)
    produced = wire.response("Produce", 3, correlation_id=9, responses=[])
    c.client_sends(asked).upstream_sees(asked)
    c.upstream_answers(produced).client_sees(produced).upstream_answers(answered).client_sees(answered)
    c.round(PLAIN_ALICE).client_sends(PRODUCE).upstream_sees(PRODUCE)
    c = SaslConversation().shakes_hands("PLAIN")
    c.sends_token(PLAIN_ALICE)
    reply = token_reply(1002, session_lifetime_ms=3_000)
    c.upstream_answers(reply).client_sees(reply)


def test_h11_counters_are_kept_over_a_reauthentication() -> None:
    c = SaslConversation(producer_byte_rate=10).authenticates()
    produce = wire.request("Produce", 3, acks=1, timeout_ms=1, topic_data=[], client_id="x" * 30)
    c.client_sends(produce).take_upstream()
    first = c.session.throttling.produce_sensor
    c.upstream_answers(wire.response("Produce", 3, correlation_id=1, responses=[])).take_client()
    c.after(60_000).authenticates().client_sends(produce)
    assert first is not None
    second = c.session.throttling.produce_sensor
    assert second is not None
    assert second.user == first.user == "alice"
    assert second.tracker is first.tracker is not None


def test_h12_another_user_counts_once_the_broker_accepts_it() -> None:
    c = SaslConversation().authenticates().shakes_hands("PLAIN")
    c.sends_token(b"\0bob\0canary-secret")
    assert c.user == "alice"
    c.upstream_answers(token_reply(1004, error_code=FAILED))
    assert c.user == "alice"
    c.at(100).closed(CloseCause.AUTHENTICATION_FAILED)
    c = SaslConversation(producer_byte_rate=10, user="bob").authenticates()
    produce = wire.request("Produce", 3, acks=1, timeout_ms=1, topic_data=[], client_id="x" * 200)
    c.client_sends(produce).upstream_sees(produce).reading()
    c.upstream_answers(wire.response("Produce", 3, correlation_id=1, responses=[])).take_client()
    c.shakes_hands("PLAIN").round(b"\0bob\0canary-secret")
    assert c.user == "bob"
    c.client_sends(produce).upstream_sees(produce).still_muted()
    c = SaslConversation().authenticates().shakes_hands("GSSAPI", error_code=34)
    c.client_sees(handshake("GSSAPI", 1003, error_code=34)[1]).alive()
    assert c.user == "alice"
    c.client_sends(PRODUCE).upstream_sees(PRODUCE)


# -- names that are not in the exchange ------------------------------------------------------------------------------
RULES = SaslRules(unknown_principal="somebody", delegation_token_principal="by-token")


def test_h06_h07_principals_that_are_not_in_the_exchange() -> None:
    c = SaslConversation(rules=RULES).shakes_hands("SCRAM-SHA-256")
    c.round(b"n,,n=alice,r=cnonce,tokenauth=true", EXCHANGES["SCRAM-SHA-256"][0][1])
    c.round(*EXCHANGES["SCRAM-SHA-256"][1])
    assert c.user == "by-token"
    c = SaslConversation().shakes_hands("OAUTHBEARER").round(oauth("alice"), b'{"status":"invalid_token"}')
    assert c.user == "ANONYMOUS"
    c.round(b"\x01", error_code=FAILED)
    assert c.user == "ANONYMOUS"
    c.at(100).closed(CloseCause.AUTHENTICATION_FAILED)
    c = SaslConversation(rules=SaslRules(oauth_claim="client_id")).shakes_hands("OAUTHBEARER")
    assert c.round(oauth("alice", "client_id")).user == "alice"
    c = SaslConversation(rules=RULES).shakes_hands("OAUTHBEARER")
    assert c.round(b"n,,\x01auth=Bearer opaque\x01\x01").user == "somebody"


def test_scram_challenges_and_requests_in_an_unknown_exchange_are_no_success() -> None:
    c = SaslConversation().shakes_hands("SCRAM-SHA-256").round(SCRAM_FIRST, b"v=c2ln")
    assert c.user == "ANONYMOUS"
    c.round(b"c=biws", b"r=again")
    assert c.user == "ANONYMOUS"
    c = SaslConversation(rules=RULES).shakes_hands("GSSAPI").round(b"token", b"challenge").client_sends(PRODUCE)
    question = c.take_upstream()
    answer = wire.response("ApiVersions", 0, correlation_id=0, error_code=34, api_keys=[])
    c.upstream_answers(answer[:4] + question[8:12] + answer[8:]).client_sees()
    c.refused(CloseCause.UNAUTHENTICATED)
    assert c.user == "ANONYMOUS"
    assert c.core.authentications == []


def test_h08_unknown_mechanism_has_the_broker_confirm_the_first_request_and_can_be_used_again() -> None:
    c = SaslConversation(rules=RULES).shakes_hands("GSSAPI").round(b"token", b"challenge").round(b"more", b"")
    assert c.user == "ANONYMOUS"
    c.client_sends(PRODUCE)
    question = c.take_upstream()
    assert wire.api_key_of("ApiVersions") == int.from_bytes(question[4:6], "big") == ApiKey.API_VERSIONS
    answer = wire.response("ApiVersions", 0, correlation_id=0, error_code=0, api_keys=[])
    c.upstream_answers(answer[:4] + question[8:12] + answer[8:]).client_sees().upstream_sees(PRODUCE)
    assert c.user == "somebody"
    assert c.core.authentications == [(Mechanism.OTHER, AuthenticationResult.SUCCESS)]
    c = SaslConversation(rules=RULES).shakes_hands("GSSAPI").round(b"token").client_sends(PRODUCE)
    question = c.take_upstream()
    answer = wire.response("ApiVersions", 0, correlation_id=0, error_code=0, api_keys=[])
    c.upstream_answers(answer[:4] + question[8:12] + answer[8:]).upstream_sees(PRODUCE)
    c.upstream_answers(wire.response("Produce", 3, correlation_id=9, responses=[])).take_client()
    c.shakes_hands("GSSAPI").round(b"token").client_sends(PRODUCE).upstream_sees(PRODUCE)
    c.upstream_answers(wire.response("Produce", 3, correlation_id=9, responses=[])).take_client()
    c.shakes_hands("GSSAPI").round(b"token", error_code=FAILED).at(100)
    c.closed(CloseCause.AUTHENTICATION_FAILED)


# -- names and secrets -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["ANONYMOUS", "a:b,c", "<default>", "User:alice", "ünï", "a=b"])
def test_h28_odd_names_are_names(name: str) -> None:
    c = SaslConversation(producer_byte_rate=10, user=name).shakes_hands("PLAIN")
    c.round(b"\0" + name.encode() + b"\0secret")
    assert c.user == name
    produce = wire.request("Produce", 3, acks=1, timeout_ms=1, topic_data=[], client_id="x" * 200)
    c.client_sends(produce).upstream_sees(produce).still_muted()


@pytest.mark.parametrize("mechanism", EXCHANGES)
def test_h15_no_secret_is_left_with_the_session(mechanism: str) -> None:
    c = SaslConversation().authenticates(mechanism)
    exchange = c.session.authentication
    assert exchange is not None
    kept = [getattr(exchange, name) for name in exchange.__slots__]
    for value in [*kept, c.session._held, bytes(c.session._parser._kept), c.session.to_upstream]:
        assert "canary-secret" not in repr(value)
        assert "cHJvb2Y" not in repr(value)
