"""What every section of the file refuses."""

import pytest
from pydantic import ValidationError

from config.section import Milliseconds, Section


class _Example(Section, frozen=True):
    wait_ms: Milliseconds = 5


def test_a_section_takes_no_unknown_key_and_converts_nothing() -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        _Example.model_validate({"wait": 5})
    for value in ("5", 5.0, True, 0, 2**31):
        with pytest.raises(ValidationError):
            _Example.model_validate({"wait_ms": value})


def test_a_section_never_changes_after_reading() -> None:
    example = _Example(wait_ms=7)
    with pytest.raises(ValidationError, match="frozen"):
        example.wait_ms = 8  # type: ignore[misc]
