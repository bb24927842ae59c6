"""How names are written: readable, bounded, or hashed (hazard I11)."""

import json

import pytest

from gateway.usage.names import HASHED, Names
from quotas.entities import MAX_NAME_CHARS


def test_a_name_is_written_as_it_is() -> None:
    assert Names().written("Zoë, team <7>") == "Zoë, team <7>"


def test_i11_hashed_names_are_equal_for_equal_names_and_tell_nothing() -> None:
    names = Names(b"s" * 32)
    hashed = names.written("alice")
    assert hashed == names.written("alice")
    assert hashed != names.written("bob")
    assert hashed.startswith(HASHED)
    assert "alice" not in hashed


def test_i11_another_salt_gives_another_hash() -> None:
    assert Names(b"a" * 32).written("alice") != Names(b"b" * 32).written("alice")


@pytest.mark.parametrize("salt", [None, b"s" * 32])
def test_nothing_stays_nothing(salt: bytes | None) -> None:
    assert Names(salt).written("") == ""


def test_long_names_are_cut_and_stay_two() -> None:
    one, two = Names().written("x" * 40_000 + "1"), Names().written("x" * 40_000 + "2")
    assert len(one) == len(two) == MAX_NAME_CHARS
    assert one != two


def test_i14_half_a_surrogate_pair_becomes_text_that_every_reader_takes() -> None:
    written = Names().written("a\ud800b")
    assert json.loads(json.dumps(written).encode()) == "a?b"
