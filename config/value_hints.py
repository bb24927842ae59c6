"""Hints for values that are written in another way than the file's format wants: units, quotes, True."""

from __future__ import annotations

import re
from typing import Final

_AMOUNT: Final = re.compile(r"(\d+(?:[.,]\d+)?)\s*([A-Za-zµ%]+(?:/[A-Za-z]+)?)")
_BYTES: Final = re.compile(r"([kmgt])(i?)(?:b|bytes?)?(?:/s|ps)?", re.IGNORECASE)
_PLACE: Final = re.compile(r"\(at line (\d+), column \d+\)")
_PAIR: Final = re.compile(r"""\s*(?:[\w-]+|"[^"]*")(?:\.[\w-]+)*\s*=\s*([^\s"'\[{#][^"'#]*?)\s*(?:#.*)?""")


def number_hint(text: str) -> str:
    """How to write a number that was given as this text; "" if it is none.

    Units are not supported, so that a value is the same number in every file, tool and metric.
    """
    amount = _AMOUNT.fullmatch(text.strip())
    if amount is None:
        return f"; write {text.strip()}, without quotes" if _is_number(text) else ""
    unit = _BYTES.fullmatch(amount[2])
    if unit is None:
        return "; give a number without a unit"
    count, power = float(amount[1].replace(",", ".")), "kmgt".index(unit[1].lower()) + 1
    decimal, binary = f"{count * 1000**power:.0f}", f"{count * 1024**power:.0f}"
    number = binary if unit[2] else f"{decimal}, or {binary} in powers of 1024"
    return f"; give a number without a unit: {number}"


def toml_hint(text: str, error: str) -> str:
    """What may be meant at the place of a syntax error; "" if it is not clear.

    Args:
        text: the whole file.
        error: what `tomllib` says of it.
    """
    place = _PLACE.search(error)
    if place is None:
        return ""
    pair = _PAIR.fullmatch(text.replace("\r\n", "\n").split("\n")[int(place[1]) - 1])
    if pair is None:
        return ""
    value = pair[1]
    if value.lower() in ("true", "false"):
        return f"; write {value.lower()}"
    if _AMOUNT.fullmatch(value):
        return number_hint(value)
    return "; put a text in quotes" if len(value.split()) == 1 and not _is_number(value) else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip().isascii()
