"""Durations that an operator types: 90s, 10m, 2h."""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = re.compile(r"(\d{1,6})([smh])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}


def seconds_of(text: str) -> int | None:
    """The seconds of a duration; None: the text is no duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else int(found[1]) * _SECONDS[found[2]]
