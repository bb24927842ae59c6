"""Amounts with units, such as ``10MB``, ``10MiB``, ``5/s`` and ``250%``: read and written exactly.

Nothing is rounded: ``1.1MB`` is 1,100,000 bytes. This module does not handle numbers without a unit. They count
bytes, bytes per second, percent of one core, or a number per second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from typing import Final

from quotas.entities import FURTHER_RATE_KEYS, QuotaKey

_DECIMAL: Final = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZES: Final[Mapping[str, int]] = {"B": 1, **_DECIMAL, **_BINARY, "KB": 10**3}
_SIZES_TEXT: Final = "kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB or TiB (powers of 1024)"

_AMOUNT: Final = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?) ?([A-Za-z%/]+)")
_MOST_CHARS: Final = 64
_WRITTEN: Final = (*_DECIMAL.items(), *_BINARY.items())
_SHORT: Final = 8
"""The most characters of an amount with a unit. No person chooses a longer one, so it is written as a number."""
_EXACT: Final = 2**53


class Kind(Enum):
    """The kind of a setting's amount: its units, the text that errors list, and whether it must be a whole number."""

    SIZE = (_SIZES, f"a number of bytes, alone or with B, {_SIZES_TEXT}", True)
    BYTE_RATE = (
        {**_SIZES, **{f"{unit}/s": factor for unit, factor in _SIZES.items()}},
        f"a number of bytes per second, alone or with B, {_SIZES_TEXT}, and with or without /s",
        True,
    )
    PERCENT = ({"%": 1}, "a number of percent of one core, alone or with %", False)
    RATE = ({"/s": 1}, "a number per second, alone or with /s", False)
    WHOLE_RATE = ({"/s": 1}, "a whole number per second, alone or with /s", True)
    SECONDS = ({"s": 1}, "a number of seconds, alone or with s", False)
    NUMBER = (dict[str, int](), "a number", False)

    def __init__(self, units: Mapping[str, int], allowed: str, whole: bool) -> None:
        self.units = units
        self.allowed = allowed
        self.whole = whole


KINDS: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: Kind.BYTE_RATE,
    QuotaKey.CONSUMER_BYTE_RATE: Kind.BYTE_RATE,
    QuotaKey.REQUEST_PERCENTAGE: Kind.PERCENT,
    QuotaKey.CONTROLLER_MUTATION_RATE: Kind.RATE,
    QuotaKey.CONNECTION_CREATION_RATE: Kind.WHOLE_RATE,
    QuotaKey.CONNECTION_COUNT: Kind.NUMBER,
    QuotaKey.PRODUCER_BYTE_BURST_SECONDS: Kind.SECONDS,
    QuotaKey.CONSUMER_BYTE_BURST_SECONDS: Kind.SECONDS,
    **dict.fromkeys(FURTHER_RATE_KEYS, Kind.RATE),
    QuotaKey.PRODUCER_BYTE_GUARANTEE: Kind.BYTE_RATE,
    QuotaKey.CONSUMER_BYTE_GUARANTEE: Kind.BYTE_RATE,
    QuotaKey.WEIGHT: Kind.NUMBER,
    QuotaKey.TIER: Kind.NUMBER,
}
"""The kind of each quota."""


class UnitError(ValueError):
    """A text is no amount of the kind. The message lists the allowed forms."""


def has_unit(text: str) -> bool:
    """Whether a text is a number with a unit, right or wrong."""
    return _parts(text) is not None


def amount_of(text: str, kind: Kind) -> int | float:
    """The number of an amount with a unit.

    Args:
        text: such as ``10MB``.
        kind: the kind of the amount.

    Raises:
        UnitError: the text is no number with a unit, the kind does not have this unit, or the amount must be a whole
            number and is not.
    """
    parts = _parts(text)
    if parts is None:
        raise UnitError(f"give {kind.allowed}")
    number, unit = parts
    factor = kind.units.get(unit)
    if factor is None:
        raise UnitError(f"has the unknown unit {unit}{_meant(number, unit, kind)}; give {kind.allowed}")
    amount = Fraction(number) * factor
    if amount.denominator == 1:
        return int(amount)
    if kind.whole:
        raise UnitError(f"is {float(amount):.15g}, which is no whole number; give {kind.allowed}")
    return float(amount)


def amount_text(key: QuotaKey, value: float) -> str:
    """A short text of exactly this value, with a unit unless a number alone is easier to read.

    Args:
        key: the quota's key.
        value: in the key's unit.
    """
    kind = KINDS[key]
    number = str(int(value)) if value.is_integer() and abs(value) < _EXACT else repr(value)
    if kind.whole and not value.is_integer():
        return number
    if kind is not Kind.BYTE_RATE:
        return number if "e" in number else number + next(iter(kind.units), "")
    whole = int(value)
    # Of two equally short texts the first wins, so 512kB and not 500KiB.
    texts = (f"{whole // factor}{unit}" for unit, factor in _WRITTEN if whole % factor == 0)
    short = [text for text in texts if len(text) <= _SHORT]
    return min(short, key=lambda text: len(text.rstrip("BKMGTik")), default=str(whole))


def _parts(text: str) -> tuple[str, str] | None:
    found = _AMOUNT.fullmatch(text.strip()) if len(text) <= _MOST_CHARS else None
    return None if found is None else (found[1], found[2])


def _meant(number: str, unit: str, kind: Kind) -> str:
    low = unit.lower().removesuffix("/s")
    close = [number + known for known in kind.units if known.lower() in (low, f"{low}b", f"{low}ib")]
    return f" (did you mean {' or '.join(close[:2])}?)" if low and close else ""
