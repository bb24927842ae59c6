"""The queue of requests without a reply, on its own."""

from struct import pack

import pytest

from gateway.session.response_queue import CollectedAnswer, HeadAnswer, Pending, ResponseQueue, TimedRequest
from protocol.errors import UpstreamDesync
from protocol.steps import Steps

NOW_MS = 5


class NoTimekeeper:
    """For replies that are not timed."""

    def request_answered(self, timed: TimedRequest, *, now_ms: int) -> None:
        """See `Timekeeper`."""
        raise AssertionError

    def seal_reply(self, timed: TimedRequest, reply: bytes, *, now_ms: int) -> bytes:
        """See `Timekeeper`."""
        raise AssertionError

    def answered_in_steps(self, timed: TimedRequest, *, now_ms: int) -> None:
        """See `Timekeeper`."""
        raise AssertionError

    def begins_now(self, frame_bytes: int) -> bool:
        """See `Timekeeper`."""
        raise AssertionError

    def go_on_later(self, steps: Steps[bytes | None], *, put_off_bytes: int = 0) -> None:
        """See `Timekeeper`."""
        raise AssertionError


def reply(correlation_id: int, size: int = 20) -> bytes:
    """A reply frame with so many bytes of body."""
    return pack(">ii", 4 + size, correlation_id) + b"b" * size


def queue(*pending: Pending) -> ResponseQueue:
    """A queue that waits for these."""
    responses = ResponseQueue([], max_response_bytes=1_000)
    responses.pending.extend(pending)
    return responses


def receive(responses: ResponseQueue, *pieces: bytes) -> list[bytes]:
    """The chunks for the client after these bytes."""
    for piece in pieces:
        responses.receive(piece, NOW_MS, NoTimekeeper())
    return responses.to_client


def test_relayed_replies_pass_as_the_chunks_that_came_with_their_neighbours() -> None:
    data = reply(1) + reply(2)
    (chunk,) = receive(queue(Pending(1), Pending(2)), data)
    assert chunk is data
    responses = queue(Pending(1), Pending(2, HeadAnswer(lambda _head, _size, _now_ms: None)), Pending(3))
    stream = reply(1) + reply(2, 500) + reply(3)
    assert receive(responses, stream) == [stream]


def test_a_collected_reply_is_handed_over_whole_and_replaced() -> None:
    seen: list[tuple[bytes, int]] = []

    def on_reply(frame: bytes, now_ms: int) -> bytes:
        seen.append((frame, now_ms))
        return b"ours"

    responses = queue(Pending(1), Pending(2, CollectedAnswer(on_reply)), Pending(3))
    stream = reply(1) + reply(2) + reply(3)
    chunks = receive(responses, stream[:40], stream[40:50], stream[50:])
    assert seen == [(reply(2), NOW_MS)]
    assert b"".join(chunks) == reply(1) + b"ours" + reply(3)


def test_the_head_of_a_reply_may_be_changed_and_the_rest_is_relayed() -> None:
    sizes: list[int] = []

    def on_head(head: bytes, size: int, _now_ms: int) -> bytes:
        sizes.append(size)
        return head[:8] + b"!!" + head[10:]

    for pieces in ([reply(1, 500)], [reply(1, 500)[:70], reply(1, 500)[70:]], [bytes([b]) for b in reply(1, 500)]):
        chunks = receive(queue(Pending(1, HeadAnswer(on_head))), *pieces)
        assert b"".join(chunks) == reply(1, 500)[:8] + b"!!" + reply(1, 500)[10:]
    assert sizes == [504] * 3


def test_local_replies_wait_for_those_before_them() -> None:
    responses = queue()
    responses.reply(b"local 0")
    assert (responses.to_client, responses.idle) == ([b"local 0"], True)
    responses.to_client.clear()
    responses.pending.append(Pending(1))
    responses.reply(b"local 2")
    responses.reply(b"local 3")
    responses.pending.append(Pending(4))
    responses.reply(b"local 5")
    assert responses.to_client == []
    assert b"".join(receive(responses, reply(1))) == reply(1) + b"local 2" + b"local 3"
    assert not responses.idle
    receive(responses, reply(4))
    assert responses.to_client[-1] == b"local 5"
    assert responses.idle


def test_a_local_reply_does_not_cut_into_one_that_is_still_coming() -> None:
    responses = queue(Pending(1))
    responses.reply(b"local")
    assert b"".join(receive(responses, reply(1)[:-1])) == reply(1)[:-1]
    assert (len(responses), responses.idle) == (1, False)
    assert b"".join(receive(responses, reply(1)[-1:])) == reply(1) + b"local"


@pytest.mark.parametrize(
    "data",
    [reply(2), pack(">ii", 3, 1), pack(">ii", -1, 1), pack(">ii", 1_001, 1), pack(">i", 1_001), pack(">i", -1)],
)
def test_replies_that_do_not_fit_are_a_desync(data: bytes) -> None:
    with pytest.raises(UpstreamDesync):
        receive(queue(Pending(1)), data)


@pytest.mark.parametrize("data", [reply(1), b"\x00"])
def test_bytes_that_answer_no_request_are_a_desync(data: bytes) -> None:
    with pytest.raises(UpstreamDesync):
        receive(queue(), data)
    with pytest.raises(UpstreamDesync):
        receive(queue(Pending(1)), reply(1), data)


def test_the_largest_reply_passes_and_a_question_of_our_own_is_not_the_clients() -> None:
    largest = reply(1, 996)
    assert receive(queue(Pending(1)), largest) == [largest]
    collected = queue(Pending(1, CollectedAnswer(lambda frame, _now_ms: frame)))
    assert receive(collected, *(largest[at : at + 9] for at in range(0, 1_000, 9))) == [largest]
    responses = queue(Pending(1, CollectedAnswer(lambda _frame, _now_ms: None)), Pending(2))
    assert receive(responses, reply(1) + reply(2)) == [reply(2)]
    responses = queue(Pending(1))
    receive(responses, reply(1)[:-1])
    assert (len(responses), responses.idle) == (0, False)
    receive(responses, reply(1)[-1:])
    assert responses.idle


def test_replies_made_here_keep_their_places_whenever_they_are_made() -> None:
    responses = queue(Pending(1))
    place = responses.defer()
    responses.reply(b"later")
    assert receive(responses, reply(1)) == [reply(1)]
    assert not responses.idle
    responses.fill(place, b"made")
    assert responses.to_client == [reply(1), b"made", b"later"]
    assert responses.idle
    responses = queue(Pending(1), Pending(2))
    place = responses.defer()
    receive(responses, reply(1), reply(2)[:-1])
    responses.fill(place, b"made")
    assert responses.to_client == [reply(1), reply(2)[:-1]]
    assert b"".join(receive(responses, reply(2)[-1:])) == reply(1) + reply(2) + b"made"


@pytest.mark.parametrize("correlation_id", [0, 7, -1])
def test_a_broker_cannot_answer_in_a_place_that_is_kept(correlation_id: int) -> None:
    responses = queue()
    responses.defer()
    with pytest.raises(UpstreamDesync):
        receive(responses, reply(correlation_id))
