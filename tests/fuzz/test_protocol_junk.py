"""Whatever a peer sends, every parser of `protocol` gives a value or a `ProtocolError`, never anything else.

Hazard A39. The junk is valid frames, recorded and made, with a few bytes changed, removed, repeated or inserted:
plain noise would not get past the first field. `HYPOTHESIS_PROFILE=thorough` looks twenty times as long.
"""

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.api_keys import Api
from protocol.errors import ProtocolError
from testkit import wire
from tests.fuzz.parsers import TARGETS, corpus

lengths = st.sampled_from(
    [0, 1, 2, 127, 128, 2**14, 2**15 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2]
)
pieces = st.one_of(
    st.binary(max_size=6),
    lengths.map(wire.uvarint),
    lengths.map(lambda value: pack(">I", value & 0xFFFFFFFF)),
    lengths.map(lambda value: pack(">H", value & 0xFFFF)),
    st.just(b"\x80" * 6),
)
edits = st.lists(
    st.tuples(st.sampled_from(["overwrite", "insert", "remove", "repeat", "cut"]), st.integers(0, 2**16), pieces),
    min_size=1,
    max_size=3,
)


def edited(frame: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    """The frame after all changes, with a size that fits again, as a relay would have received it."""
    payload = frame[4:]
    for change, where, piece in changes:
        at = where % (len(payload) + 1)
        before, after = payload[:at], payload[at:]
        payload = {
            "overwrite": before + piece + after[len(piece) :],
            "insert": before + piece + after,
            "remove": before + after[len(piece) + 1 :],
            "repeat": before + before[-8:] * 4 + after,
            "cut": before,
        }[change]
    return wire.framed(payload)


def survives(target: str, frame: bytes, api: Api) -> None:
    with suppress(ProtocolError):
        TARGETS[target].parse(frame, api)


@pytest.mark.parametrize("target", TARGETS)
def test_a39_every_valid_frame_gives_a_value(target: str) -> None:
    """Otherwise the corpus would not reach far."""
    assert corpus(target)
    for api, frame in corpus(target):
        TARGETS[target].parse(frame, api)


@pytest.mark.parametrize("target", TARGETS)
@given(changes=edits, first=st.integers(0, 2**16))
@settings(max_examples=settings().max_examples // 4)
def test_a39_a_damaged_frame_gives_a_value_or_a_protocol_error(
    target: str, changes: list[tuple[str, int, bytes]], first: int
) -> None:
    """Each damage is done to several frames, because to draw it takes longer than to read them."""
    frames = corpus(target)
    for at in range(min(5, len(frames))):
        api, frame = frames[(first + at * 7) % len(frames)]
        survives(target, edited(frame, changes), api)


@pytest.mark.parametrize("target", TARGETS)
def test_a39_a_frame_cut_at_any_byte_gives_a_value_or_a_protocol_error(target: str) -> None:
    frames = corpus(target)
    for api, frame in frames[:: 1 + len(frames) // 20]:
        for end in range(min(len(frame), 300)):
            survives(target, frame[:end], api)


@pytest.mark.parametrize("target", TARGETS)
def test_a39_a_frame_of_another_api_or_version_gives_a_value_or_a_protocol_error(target: str) -> None:
    apis = {api for api, _ in corpus(target)}
    frames = [corpus(other)[len(corpus(other)) // 2][1] for other in TARGETS]
    for api in apis:
        for frame in frames:
            survives(target, frame, api)
