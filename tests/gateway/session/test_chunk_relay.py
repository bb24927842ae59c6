"""What the transports' chunks become without the channel, and what is left to it."""

from gateway.session.chunk_relay import NEVER_MS, NOT_TAKEN, RELAYED, TO_PUMP, ChunkRelay
from gateway.session.mute import MuteReason
from testkit.core import GatewayCore, session_settings
from testkit.frames import metadata, produce


def test_chunk_that_is_one_for_the_other_side_is_written_at_once_and_others_are_left_to_the_channel() -> None:
    core = GatewayCore()
    session = core.new_session()
    written: list[bytes] = []
    relay = ChunkRelay(session, lambda: core.clock.now_ms / 1000)
    relay.armed_ms = session.wake_at_ms
    assert relay.request(produce(1)) == NOT_TAKEN
    assert not session.to_upstream  # nothing was lost on a transport that is not there
    relay.to_upstream = written.append
    two = produce(1) + produce(2)
    assert relay.request(two) == RELAYED
    assert written == [two]
    assert not session.to_upstream
    relay.armed_ms -= 1  # an early timer looks again
    for frames in (produce(1), two):
        assert relay.request(frames) == RELAYED
        assert written.pop() == frames
    assert relay.request(produce(3) + metadata(4, "t")) == TO_PUMP  # with what is collected there are two
    assert b"".join(session.to_upstream).startswith(produce(3))
    session.to_upstream.clear()
    relay.armed_ms = NEVER_MS
    assert relay.request(produce(5)[:6]) == TO_PUMP  # a deadline to be armed
    session.mute(MuteReason.CLIENT_FULL)
    relay.armed_ms = session.wake_at_ms
    assert relay.request(produce(5)[6:]) == TO_PUMP
    assert written == [two]


def test_chunk_that_mutes_its_client_is_written_and_the_rest_left_to_the_channel() -> None:
    core = GatewayCore(settings=session_settings(max_in_flight_requests=2))
    session = core.new_session()
    written: list[bytes] = []
    relay = ChunkRelay(session, lambda: core.clock.now_ms / 1000)
    relay.to_upstream = written.append
    relay.armed_ms = session.wake_at_ms
    assert relay.request(produce(1) + produce(2)) == TO_PUMP
    assert (written, session.to_upstream) == ([produce(1) + produce(2)], [])
