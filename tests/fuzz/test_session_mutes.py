"""Mutes and unmutes in any order lose nothing, change no order, and end unmuted once all reasons are gone."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.session.mute import MuteReason
from testkit.conversation import Conversation
from testkit.examples import A_THIRD
from testkit.frames import heartbeat, metadata, produce

REASONS = [MuteReason.CONNECTING, MuteReason.UPSTREAM_FULL, MuteReason.CLIENT_FULL]

EVENT = st.one_of(
    st.tuples(st.just("mute"), st.sampled_from(REASONS)),
    st.tuples(st.just("unmute"), st.sampled_from(REASONS)),
    st.tuples(st.just("throttle"), st.integers(0, 3_000)),
    st.tuples(st.just("time"), st.integers(0, 2_000)),
    st.tuples(st.just("send"), st.integers(1, 200)),
    st.tuples(st.just("push"), st.integers(1, 200)),
)


@A_THIRD
@given(events=st.lists(EVENT, max_size=60))
def test_mutes_in_any_order_end_unmuted_and_lose_nothing(events: list[tuple[str, int]]) -> None:
    makers = (heartbeat, lambda i: produce(i, acks=0, size=90), lambda i: metadata(i, "a"))
    stream = b"".join(makers[i % 3](i) for i in range(60))
    c = Conversation()
    for verb, argument in events:
        if verb == "mute":
            c.mute(MuteReason(argument))
        elif verb == "unmute":
            c.unmute(MuteReason(argument))
        elif verb == "throttle":
            c.throttle(argument)
        elif verb == "time":
            c.after(argument)
        elif verb == "send":
            piece, stream_left = stream[:argument], stream[argument:]
            c.client_sends(piece)
            stream = stream_left
        elif not c.has_unread:
            # A paused transport may still hand over what it had read: it comes although no one reads.
            piece, stream = stream[:argument], stream[argument:]
            c.push(piece)
    sent = b"".join(makers[i % 3](i) for i in range(60))
    sent = sent[: len(sent) - len(stream)]
    for reason in REASONS:
        c.unmute(reason)
    c.after(3_000).alive().reading()
    seen = c.take_upstream()
    assert sent.startswith(seen)
    # Only the start of a request whose end was not sent may be missing.
    missing = sent[len(seen) :]
    assert len(missing) < max(len(make(0)) for make in makers)
    assert not c.session._held
