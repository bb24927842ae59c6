"""Hints for values that are not written in the file's format: units, quotes, True."""

from __future__ import annotations

import re
from typing import Final

from config.section_base import kind_of
from quotas.units import UnitError, amount_of

_AMOUNT: Final = re.compile(r"(\d+(?:[.,]\d+)?)\s*([A-Za-zµ%]+(?:/[A-Za-z]+)?)")
_PLACE: Final = re.compile(r"\(at line (\d+), column \d+\)")
_PAIR: Final = re.compile(
    r"""\s*(?:[\w-]+\.|"[^"]*"\.)*([\w-]+|"[^"]*")\s*=\s*([^\s"'\[{#][^"'#]*?)\s*(?:#.*)?"""
)


def number_hint(text: str) -> str:
    """How to write a number that was given as this text; "" if the text is no number.

    This is for keys whose unit is in their name. Keys that accept units are in `config.section_base.kind_of`.
    """
    if _AMOUNT.fullmatch(text.strip()):
        return "; give a number without a unit"
    return f"; write {text.strip()}, without quotes" if _is_number(text) else ""


def toml_hint(text: str, error: str) -> str:
    """What the author may have meant at the place of a syntax error; "" if it is not clear.

    Args:
        text: the whole file.
        error: the message of `tomllib`.
    """
    place = _PLACE.search(error)
    if place is None:
        return ""
    pair = _PAIR.fullmatch(text.replace("\r\n", "\n").split("\n")[int(place[1]) - 1])
    if pair is None:
        return ""
    key, value = pair[1].strip('"'), pair[2]
    if value.lower() in ("true", "false"):
        return f"; write {value.lower()}"
    if _AMOUNT.fullmatch(value):
        return _unit_hint(key, value)
    return "; put a text in quotes" if len(value.split()) == 1 and not _is_number(value) else ""


def _unit_hint(key: str, value: str) -> str:
    kind = kind_of(key)
    if kind is None:
        return number_hint(value)
    try:
        amount_of(value, kind)
    except UnitError as exc:
        return f"; it {exc}"
    return f'; put it in quotes: "{value}"'


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip().isascii()
