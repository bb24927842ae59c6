"""Whatever bytes arrive from either side, the session relays or refuses them, and nothing else happens."""

from hypothesis import given
from hypothesis import strategies as st

from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation, frames_of
from testkit.core import GatewayCore
from testkit.examples import A_THIRD
from testkit.frames import create_topics, heartbeat, metadata, produce, unknown_api_versions

GOOD = [
    heartbeat(1),
    produce(2, size=30, transactional_id="t"),
    metadata(3, "a", "new", create=True),
    unknown_api_versions(4),
    create_topics(5, ("a", 1), ("b", 2)),
    create_topics(6, ("c", 1), version=4),
]

PIECES = st.integers(1, 100)


def scene() -> Conversation:
    """A conversation with every quota on."""
    core = GatewayCore(controller_mutation_rate=1, producer_byte_rate=10, consumer_byte_rate=10, request_percentage=1)
    return Conversation(core=core, cluster=ScriptedCluster({"a": 1}))


def mutated(stream: bytes, changes: list[tuple[int, int]]) -> bytes:
    """The stream with some bytes replaced."""
    out = bytearray(stream)
    for at, value in changes:
        out[at % len(out)] = value
    return bytes(out)


def end(c: Conversation) -> None:
    """Time continues, and the client leaves."""
    if c.closed_by is None:
        c.after(120_000)
    if c.closed_by is None:
        c.client_half_closes()


@A_THIRD
@given(junk=st.binary(min_size=1, max_size=400), piece_bytes=PIECES)
def test_junk_from_the_client(junk: bytes, piece_bytes: int) -> None:
    c = scene()
    for at in range(0, len(junk), piece_bytes):
        if c.closed_by is None:
            c.client_sends(junk[at : at + piece_bytes])
    end(c)


CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6)


@A_THIRD
@given(order=st.permutations(range(len(GOOD))), changes=CHANGES, piece_bytes=PIECES)
def test_requests_with_some_bytes_changed(order: list[int], changes: list[tuple[int, int]], piece_bytes: int) -> None:
    c = scene()
    stream = mutated(b"".join(GOOD[i] for i in order), changes)
    for at in range(0, len(stream), piece_bytes):
        if c.closed_by is None:
            c.client_sends(stream[at : at + piece_bytes])
    end(c)


@A_THIRD
@given(which=st.integers(0, len(GOOD) - 1), junk=st.binary(min_size=1, max_size=400), piece_bytes=PIECES)
def test_junk_from_the_broker(which: int, junk: bytes, piece_bytes: int) -> None:
    c = scene().client_sends(GOOD[which])
    c.upstream_answers(junk, piece_bytes=piece_bytes)
    end(c)


@A_THIRD
@given(which=st.sampled_from([0, 1, 2, 4, 5]), turn=st.integers(0, 2), changes=CHANGES, piece_bytes=PIECES)
def test_replies_with_some_bytes_changed(
    which: int, turn: int, changes: list[tuple[int, int]], piece_bytes: int
) -> None:
    c = scene().client_sends(GOOD[which])
    for number in range(3):
        asked = list(frames_of(c.take_upstream()))
        if not asked or c.closed_by is not None:
            break
        answer = c.cluster.answer(asked[0])
        c.upstream_answers(mutated(answer, changes) if number == turn else answer, piece_bytes=piece_bytes)
    end(c)
