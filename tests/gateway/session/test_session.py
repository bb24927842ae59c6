"""The session as a conversation: what is relayed, delayed, muted and closed, and when."""

import pytest

from gateway.observability.events import CloseCause
from gateway.runtime.lateness import LATE_MS
from gateway.session.announced import PASS_ON_BYTES
from gateway.session.mute import MuteReason
from protocol.steps import Steps
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import START_MS, session_settings
from testkit.frames import (
    create_topics,
    heartbeat,
    heartbeat_reply,
    metadata,
    produce,
    produce_reply,
    unknown_api_versions,
    unknown_api_versions_reply,
)

BACK_PRESSURE = [MuteReason.CONNECTING, MuteReason.UPSTREAM_FULL, MuteReason.CLIENT_FULL]
EVERY_REASON = list(MuteReason)
BEGUN = PASS_ON_BYTES
"""So much of a request is here before it is passed on."""
LARGE = 2 * BEGUN
MEGABYTE = produce(1, size=1 << 20)
MANY_NAMES = metadata(1, *(["t" * 200] * 5_000))


# -- relay or collect ----------------------------------------------------------------------------------------
def test_frames_pass_byte_for_byte_and_in_order_collected_ones_among_them() -> None:
    c = Conversation()
    c.client_sends(heartbeat(1), produce(2, size=500)).upstream_sees(heartbeat(1), produce(2, size=500))
    c.upstream_answers(heartbeat_reply(1), produce_reply(2)).client_sees(heartbeat_reply(1), produce_reply(2))
    c = Conversation()
    frames = [heartbeat(1), metadata(2, "a"), produce(3), metadata(4), heartbeat(5)]
    c.client_sends(*frames).upstream_sees(*frames)
    request = metadata(1, "a")
    c = Conversation()
    c.client_sends(heartbeat(0), request[:-1]).upstream_sees(heartbeat(0))
    c.client_sends(request[-1:], heartbeat(2)).upstream_sees(request, heartbeat(2))


def test_chunks_are_relayed_as_they_come_and_bytes_counted() -> None:
    session = Conversation().session
    requests = heartbeat(1) + produce(2, size=500) + heartbeat(3)
    session.receive_from_client(requests, now_ms=START_MS)
    assert [chunk is requests for chunk in session.to_upstream] == [True]
    replies = heartbeat_reply(1) + produce_reply(2) + heartbeat_reply(3)
    session.receive_from_upstream(replies, now_ms=START_MS)
    assert [chunk is replies for chunk in session.to_client] == [True]
    request, reply = produce(1, size=LARGE), heartbeat_reply(2)
    c = Conversation()
    c.client_sends(request[: BEGUN - 1]).upstream_sees()
    c.client_sends(request[BEGUN - 1 : BEGUN]).upstream_sees(request[:BEGUN])
    c.client_sends(request[BEGUN : BEGUN + 1]).upstream_sees(request[BEGUN : BEGUN + 1])
    c.client_sends(request[BEGUN + 1 :], heartbeat(2)).upstream_sees(request[BEGUN + 1 :], heartbeat(2))
    c.upstream_answers(produce_reply(1), reply[:9]).client_sees(produce_reply(1), reply[:9])
    c.upstream_answers(reply[9:]).client_sees(reply[9:])
    c = Conversation().client_sends(heartbeat(1) + request[: BEGUN - 1]).upstream_sees(heartbeat(1))
    c.client_sends(request[BEGUN - 1 :]).upstream_sees(request)
    c = Conversation()
    c.client_sends(heartbeat(1), piece_bytes=3)
    c.upstream_answers(heartbeat_reply(1), piece_bytes=3)
    assert c.session.bytes_from_client == len(heartbeat(1))
    assert c.session.bytes_from_upstream == len(heartbeat_reply(1))


def test_replies_of_the_gateway_and_to_its_questions_do_not_disturb_the_clients() -> None:
    c = Conversation(controller_mutation_rate=10)
    c.client_sends(create_topics(1, ("a", 1)))
    c.serve()
    assert [name for name, _, _ in c.cluster.received] == ["Metadata", "CreateTopics"]
    reply = c.take_client()
    assert wire.correlation_id_of(reply) == 1
    assert wire.decode_response("CreateTopics", 7, reply).topics[0].error_code == 0
    reply = heartbeat_reply(1)
    c = Conversation().client_sends(unknown_api_versions(0)).client_sees(unknown_api_versions_reply(0))
    c.client_sends(heartbeat(1)).upstream_answers(reply[:-1])
    c.client_sends(unknown_api_versions(2)).client_sees(reply[:-1])
    c.upstream_answers(reply[-1:]).client_sees(reply[-1:], unknown_api_versions_reply(2))


# -- mutes ---------------------------------------------------------------------------------------------------
def test_a_throttle_holds_the_next_request_also_of_the_same_segment() -> None:
    c = Conversation(controller_mutation_rate=2)
    c.client_sends(create_topics(1, ("a", 60), version=5), heartbeat(2))
    served = c.serve()
    assert [frame == heartbeat(2) for frame in served] == [False, False]
    c.muted_until(20_000)
    c.upstream_sees(heartbeat(2))
    request = produce(1, size=LARGE)
    c = Conversation()
    c.client_sends(request[:BEGUN]).throttle(1_000).reading()
    c.client_sends(request[BEGUN:], heartbeat(2)).upstream_sees(request)
    c.muted_until(1_000)
    c.upstream_sees(heartbeat(2))
    c = Conversation().client_sends(request[:100]).throttle(1_000)
    c.client_sends(request[100:]).upstream_sees().muted_until(1_000).upstream_sees(request)


@pytest.mark.parametrize("reason", BACK_PRESSURE)
def test_back_pressure_stops_reading_in_the_middle_of_a_request(reason: MuteReason) -> None:
    request = produce(1, size=LARGE)
    c = Conversation()
    c.client_sends(request[:BEGUN]).mute(reason).still_muted()
    c.client_sends(request[BEGUN:]).upstream_sees(request[:BEGUN])
    c.unmute(reason).reading().upstream_sees(request[BEGUN:])


@pytest.mark.parametrize("other", [r for r in EVERY_REASON if r is not MuteReason.THROTTLED])
def test_the_end_of_a_throttle_does_not_wake_a_client_that_is_muted_for_another_reason(other: MuteReason) -> None:
    c = Conversation()
    c.client_sends(heartbeat(1)).throttle(1_000).mute(other)
    c.at(1_000).still_muted()
    c.client_sends(heartbeat(2)).upstream_sees(heartbeat(1))
    c.unmute(other).reading().upstream_sees(heartbeat(2))


def test_reading_resumes_only_when_the_last_reason_has_gone_and_a_throttle_is_one() -> None:
    c = Conversation()
    c.throttle(1_000).mute(MuteReason.UPSTREAM_FULL).unmute(MuteReason.UPSTREAM_FULL)
    c.muted_until(1_000)
    c = Conversation()
    for reason in MuteReason:
        c.mute(reason).mute(reason)
    for reason in MuteReason:
        c.still_muted().unmute(reason)
    c.reading()


@pytest.mark.parametrize("waits_ms", [(1_000, 10), (10, 1_000)])
def test_the_longer_of_two_throttles_counts(waits_ms: tuple[int, int]) -> None:
    Conversation().throttle(waits_ms[0]).throttle(waits_ms[1]).muted_until(1_000)


@pytest.mark.parametrize("nothing", [0, -1])
def test_no_throttle_time_mutes_nobody(nothing: int) -> None:
    Conversation().throttle(nothing).reading()


def test_c07_a_mute_ends_at_its_ceiling_and_held_bytes_go_on_in_order() -> None:
    Conversation(settings=session_settings(max_mute_ms=3_000)).throttle(2**31 - 1).muted_until(3_000)
    c = Conversation(controller_mutation_rate=1)
    c.throttle(1_000)
    # Not through the socket: a paused transport may still hand over what it has read already.
    for frame in (heartbeat(1), create_topics(2, ("a", 1)), heartbeat(3)):
        c.session.receive_from_client(frame, now_ms=c.clock.now_ms)
    c.at(1_000).still_muted()
    first, question = c.take_upstream()[: len(heartbeat(1))], MuteReason(c.session.muted)
    assert (first, question) == (heartbeat(1), MuteReason.AWAITING_REPLY)


def test_small_requests_that_wait_together_go_on_together() -> None:
    session = Conversation().session
    session.mute(MuteReason.UPSTREAM_FULL)
    requests = [heartbeat(at) for at in range(10)]
    for each in requests:
        session.receive_from_client(each, now_ms=START_MS)
    session.unmute(MuteReason.UPSTREAM_FULL, now_ms=START_MS)
    assert session.to_upstream == [b"".join(requests)]


def test_long_works_of_a_session_take_turns() -> None:
    done: list[str] = []

    def work(name: str) -> Steps[None]:
        for _ in range(3):
            done.append(name)
            yield

    session = Conversation().session
    for name in "ab":
        steps = work(name)
        next(steps)
        session.go_on_later(steps)
    while session.steps:
        session.take_step(now_ms=START_MS)
    assert "".join(done) == "ababab"


# -- how many requests may wait for replies ------------------------------------------------------------------
def test_what_is_in_flight_is_bounded_own_replies_too() -> None:
    c = Conversation(settings=session_settings(max_in_flight_requests=4))
    c.client_sends(*(heartbeat(i) for i in range(6))).still_muted()
    c.upstream_sees(*(heartbeat(i) for i in range(4)))
    c.upstream_answers(heartbeat_reply(0)).still_muted().upstream_sees()
    c.upstream_answers(heartbeat_reply(1)).upstream_sees(heartbeat(4), heartbeat(5)).still_muted()
    c.upstream_answers(heartbeat_reply(2), heartbeat_reply(3)).reading()
    c = Conversation(settings=session_settings(max_in_flight_requests=3))
    c.client_sends(heartbeat(0), *(unknown_api_versions(i) for i in range(1, 9))).still_muted()
    assert len(c.session.responses) == 3
    c.upstream_answers(heartbeat_reply(0)).reading()
    c.client_sees(heartbeat_reply(0), *(unknown_api_versions_reply(i) for i in range(1, 9)))


@pytest.mark.parametrize("piece_bytes", [None, 5])
def test_collected_requests_count_as_in_flight_too(piece_bytes: int | None) -> None:
    c = Conversation(settings=session_settings(max_in_flight_requests=2))
    frames = [metadata(i) for i in range(4)]
    c.client_sends(*frames, piece_bytes=piece_bytes).still_muted().upstream_sees(*frames[:2])


# -- half-close and drain ------------------------------------------------------------------------------------
def test_b07_a_half_close_lets_every_request_before_it_have_its_reply() -> None:
    c = Conversation()
    c.client_sends(heartbeat(1), metadata(2, "a"), heartbeat(3)).client_half_closes().alive()
    c.upstream_answers(heartbeat_reply(1)).alive().client_sees(heartbeat_reply(1))
    c.upstream_answers(wire.response("Metadata", 12, correlation_id=2, **wire.populated("Metadata", 12)))
    c.alive().upstream_answers(heartbeat_reply(3)).closed(CloseCause.CLIENT_CLOSED)
    assert c.take_client().endswith(heartbeat_reply(3))
    c = Conversation(controller_mutation_rate=2)
    c.client_sends(create_topics(1, ("a", 30))).client_half_closes().alive()
    c.serve()
    assert wire.decode_response("CreateTopics", 7, c.take_client()).topics[0].error_code == 0
    c.closed(CloseCause.CLIENT_CLOSED)
    c = Conversation()
    c.client_sends(heartbeat(1)).mute(MuteReason.UPSTREAM_FULL)
    c.session.receive_from_client(heartbeat(2), now_ms=c.clock.now_ms)
    c.client_half_closes().alive().unmute(MuteReason.UPSTREAM_FULL)
    c.upstream_sees(heartbeat(1), heartbeat(2))
    c.upstream_answers(heartbeat_reply(1)).alive()
    c.upstream_answers(heartbeat_reply(2)).closed(CloseCause.CLIENT_CLOSED)
    c = Conversation().client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    c.client_half_closes().closed(CloseCause.CLIENT_CLOSED)


@pytest.mark.parametrize(
    "cut_off", [produce(3, size=500), metadata(3, "a"), produce(3, size=500, acks=0), produce(3, size=LARGE)]
)
@pytest.mark.parametrize("reason", [None, MuteReason.UPSTREAM_FULL])
def test_k15_a_fin_in_the_middle_of_a_request_lets_earlier_ones_have_their_replies(
    cut_off: bytes, reason: MuteReason | None
) -> None:
    c = Conversation().client_sends(heartbeat(1))
    if reason is not None:
        c.mute(reason)
    c.push(heartbeat(2) + cut_off[:-1]).client_half_closes().alive().after(120_000).alive()
    if reason is not None:
        c.unmute(reason)
    c.upstream_answers(heartbeat_reply(1)).alive().upstream_answers(heartbeat_reply(2))
    c.client_sees(heartbeat_reply(1), heartbeat_reply(2)).closed(CloseCause.CLIENT_CLOSED)


@pytest.mark.parametrize("at_once", [True, False])
def test_k15_a_fin_in_the_middle_of_a_produce_without_acks_takes_no_reply_from_another_of_its_number(
    at_once: bool,
) -> None:
    begun = produce(1, acks=0, size=2 * PASS_ON_BYTES)[: PASS_ON_BYTES + 100]
    c = Conversation()
    if at_once:
        c.push(heartbeat(1) + begun)
    else:
        c.client_sends(heartbeat(1), begun)
    assert c.session.mid_request
    c.client_half_closes().alive().upstream_answers(heartbeat_reply(1))
    c.client_sees(heartbeat_reply(1)).closed(CloseCause.CLIENT_CLOSED)


@pytest.mark.parametrize("cut", [3, 20, -1])
@pytest.mark.parametrize("request_frame", [produce(1, size=500), metadata(1, "a")])
def test_a08_a_request_cut_off_by_the_clients_end_closes(request_frame: bytes, cut: int) -> None:
    c = Conversation().client_sends(request_frame[:cut]).client_half_closes()
    c.closed(CloseCause.CLIENT_CLOSED)
    # What was relayed of it already must never be followed by anything: the shell aborts that leg.
    assert c.session.mid_request is (c.take_upstream() != b"")


def test_c16_what_a_mute_holds_is_dropped_with_its_client_and_served_in_a_drain() -> None:
    c = Conversation().throttle(1_000)
    c.session.receive_from_client(heartbeat(1), now_ms=c.clock.now_ms)
    c.client_half_closes().at(2_000).upstream_sees().closed(CloseCause.CLIENT_CLOSED)
    c = Conversation().throttle(1_000).push(heartbeat(1) + metadata(2, "a") + heartbeat(3)[:10])
    c.session.drain()
    assert not c.session.drained
    c.at(999).upstream_sees().at(1_000).upstream_sees(heartbeat(1), metadata(2, "a"))
    c.upstream_answers(heartbeat_reply(1)).still_muted()
    assert not c.session.drained
    c.upstream_answers(wire.response("Metadata", 12, correlation_id=2, **wire.populated("Metadata", 12)))
    assert c.session.drained


def test_l09_drain_waits_for_no_reply_that_waits_for_other_clients() -> None:
    member = {"group_id": "g", "session_timeout_ms": 1, "rebalance_timeout_ms": 1, "member_id": ""}
    joining = wire.request("JoinGroup", 3, correlation_id=2, **member, protocol_type="consumer", protocols=[])
    joined = wire.response("JoinGroup", 3, correlation_id=2, **wire.populated("JoinGroup", 3))
    c = Conversation().client_sends(heartbeat(1), joining).upstream_sees(heartbeat(1), joining)
    c.session.drain()
    assert not c.session.drained
    c.upstream_answers(heartbeat_reply(1)).client_sees(heartbeat_reply(1))
    assert c.session.drained
    c.upstream_answers(joined[:9])
    assert not c.session.drained
    c.upstream_answers(joined[9:]).client_sees(joined)
    assert c.session.drained


def test_a_drain_takes_no_further_request_and_waits_for_those_under_way() -> None:
    c = Conversation().client_sends(heartbeat(1))
    c.session.drain()
    assert not c.session.drained
    c.client_sends(heartbeat(2)).upstream_sees(heartbeat(1))
    c.upstream_answers(heartbeat_reply(1)).client_sees(heartbeat_reply(1))
    assert c.session.drained
    request = produce(1, size=LARGE)
    c = Conversation().client_sends(request[:BEGUN])
    c.session.drain()
    assert not c.session.drained
    c.reading().client_sends(request[BEGUN:]).upstream_sees(request).still_muted()
    c = Conversation().client_sends(request[:BEGUN])
    c.session.drain()
    c.client_sends(request[BEGUN:] + heartbeat(2)).upstream_sees(request)
    c.upstream_answers(produce_reply(1)).client_sees(produce_reply(1)).upstream_sees()
    assert c.session.drained


@pytest.mark.parametrize("cut", [20, 50_000])
@pytest.mark.parametrize("whole_first", [False, True])
def test_a_drain_waits_for_a_request_that_has_begun_and_was_not_passed_on(cut: int, whole_first: bool) -> None:
    """It may be kept since too little of it is here, or since no more may be announced."""
    first = Conversation(settings=session_settings(announced_max_request_bytes=1 if whole_first else 2**30))
    first.client_sends(produce(1, size=LARGE)[:BEGUN])
    c, request = first.another(), produce(2, size=60_000 + whole_first * LARGE)
    c.client_sends(request[: cut + whole_first * LARGE]).upstream_sees()
    c.session.drain()
    assert not c.session.drained
    c.reading().client_sends(request[cut + whole_first * LARGE :] + heartbeat(3)).upstream_sees(request)
    c.upstream_answers(produce_reply(2)).client_sees(produce_reply(2)).still_muted()
    assert c.session.drained


def test_a_drain_keeps_what_came_of_a_request_behind_a_mute() -> None:
    request = produce(1, size=60_000)
    c = Conversation().client_sends(request[:50_000])
    c.session.drain()
    c.mute(MuteReason.CLIENT_FULL).push(request[50_000:55_000]).unmute(MuteReason.CLIENT_FULL)
    c.client_sends(request[55_000:]).upstream_sees(request)


def test_a_drain_waits_for_no_head_that_is_not_here_and_for_no_client_that_stalls() -> None:
    c = Conversation().client_sends(produce(1, size=60_000)[:10])
    c.session.drain()
    assert c.session.drained
    c = Conversation().client_sends(heartbeat(1), produce(2, size=60_000)[:50_000])
    c.session.drain()
    c.after(session_settings().frame_timeout_ms + 60_000).closed(CloseCause.FRAME_TIMEOUT)


# -- bounds -----------------------------------------------------------------------------------------------
def test_b03_an_honest_client_at_50_kb_per_second_has_time_for_a_mebibyte() -> None:
    settings = session_settings()
    needed_ms = (1 << 20) * 1_000 // 50_000
    assert settings.frame_timeout_ms + (1 << 20) * 1_000 // settings.min_frame_bytes_per_s > needed_ms


def test_b01_b02_a_client_that_is_silent_or_dribbles_is_closed_at_an_absolute_deadline() -> None:
    Conversation().at(9_999).alive().at(10_000).closed(CloseCause.FIRST_FRAME_TIMEOUT)
    request = heartbeat(1)
    c = Conversation().client_sends(request[:1]).at(5_000).client_sends(request[1:2])
    c.at(9_999).client_sends(request[2:3]).alive().at(10_000).closed(CloseCause.FIRST_FRAME_TIMEOUT)
    c = Conversation().client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    c.at(60_000).client_sends(heartbeat(2)[:1]).at(80_000).client_sends(heartbeat(2)[1:5])
    c.at(89_999).alive().at(90_000).closed(CloseCause.FRAME_TIMEOUT)


@pytest.mark.parametrize(
    ("request_frame", "awaited_bytes", "begun_bytes"),
    [(MEGABYTE, len(MEGABYTE) - BEGUN, BEGUN), (MEGABYTE, BEGUN, 100), (MANY_NAMES, len(MANY_NAMES) - 4, 100)],
)
def test_b03_the_deadline_of_a_frame_leaves_time_for_its_size(
    request_frame: bytes, awaited_bytes: int, begun_bytes: int
) -> None:
    settings = session_settings(frame_timeout_ms=1_000, min_frame_bytes_per_s=10_000)
    allowed_ms = 1_000 + awaited_bytes * 1000 // 10_000
    c = Conversation(settings=settings).client_sends(heartbeat(0), request_frame[:begun_bytes])
    c.at(allowed_ms - 10).alive()
    c.client_sends(request_frame[begun_bytes:]).alive().at(allowed_ms + 10).alive()
    late = Conversation(settings=settings).client_sends(heartbeat(0), request_frame[:begun_bytes])
    late.at(allowed_ms + 10).closed(CloseCause.FRAME_TIMEOUT)


def test_a_request_that_a_mute_interrupts_gets_its_time_again() -> None:
    request = produce(1, size=500)
    c = Conversation().client_sends(request[:100]).mute(MuteReason.UPSTREAM_FULL)
    c.at(100_000).unmute(MuteReason.UPSTREAM_FULL).alive()
    c.after(1_000).client_sends(request[100:]).upstream_sees(request)
    c = Conversation(controller_mutation_rate=2)
    c.client_sends(create_topics(1, ("a", 40), version=5), heartbeat(2)[:3])
    c.serve()
    c.muted_until(10_000)
    c.at(39_000).alive().client_sends(heartbeat(2)[3:]).upstream_sees(heartbeat(2))
    first, second = produce(1, size=500), heartbeat(2)
    c = Conversation().client_sends(first[:100]).at(29_000).client_sends(first[100:], second[:3])
    c.at(58_000).alive().client_sends(second[3:]).upstream_sees(first, second)


def test_b21_idleness_closes_a_reply_owed_does_not_and_the_first_cause_counts() -> None:
    c = Conversation(settings=session_settings(idle_timeout_ms=60_000))
    c.client_sends(heartbeat(1)).at(500_000).alive()
    c.upstream_answers(heartbeat_reply(1)).at(559_999).alive().at(560_000).closed(CloseCause.IDLE_TIMEOUT)
    # A gateway that stood still reads first what came meanwhile.
    c = Conversation(settings=session_settings(idle_timeout_ms=60_000))
    c.client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    c.clock.advance(60_000 + LATE_MS)
    c.step(lambda now_ms: c.session.on_timer(now_ms=now_ms)).after(LATE_MS - 1).alive()
    c.after(1).closed(CloseCause.IDLE_TIMEOUT)
    session = Conversation().session
    session.close(CloseCause.IDLE_TIMEOUT)
    session.close(CloseCause.CLIENT_CLOSED)
    assert session.close_cause is CloseCause.IDLE_TIMEOUT
    c = Conversation()
    place = c.session.defer()
    c.client_sends(heartbeat(1)).still_muted().client_half_closes().alive().upstream_sees()
    c.step(lambda now_ms: c.session.fulfil(place, b"made", now_ms=now_ms))
    c.client_sees(b"made").closed(CloseCause.CLIENT_CLOSED)


# -- failed authentication (KIP-306) -------------------------------------------------------------------------
def test_a_failed_authentication_is_answered_and_closed_after_its_delay() -> None:
    c = Conversation().client_sends(heartbeat(1))
    c.session.fail_later(b"no", CloseCause.AUTHENTICATION_FAILED, 100, now_ms=c.clock.now_ms)
    c.still_muted().client_sends(heartbeat(2)).at(99).alive().client_sees().upstream_sees(heartbeat(1))
    c.at(100).closed(CloseCause.AUTHENTICATION_FAILED).client_sees(b"no")
    c = Conversation()
    c.session.fail_later(None, CloseCause.AUTHENTICATION_FAILED, 0, now_ms=c.clock.now_ms)
    assert c.session.close_cause is CloseCause.AUTHENTICATION_FAILED
    assert c.session.to_client == []
