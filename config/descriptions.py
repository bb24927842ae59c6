"""Descriptions of sections and keys, from their models' docstrings: for the reference page and the JSON Schema."""

from __future__ import annotations

import inspect
import re
from typing import Final

from pydantic import BaseModel

from config.section_base import Section

_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_VALUE_FIRST: Final = re.compile(r"\w+: ")


def summary(model: type[BaseModel]) -> str:
    """The description of a section: its paragraphs, each in one line."""
    text = (inspect.getdoc(model) or "").partition("\n\nAttributes:")[0]
    return "\n\n".join(" ".join(_plain(each).split()) for each in text.split("\n\n"))


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """The meaning of each key of a section, including keys of the section that it extends."""
    docs = [inspect.getdoc(each) or "" for each in reversed(model.__mro__) if issubclass(each, Section)]
    found = [pair for text in docs for pair in _ATTRIBUTE.findall(text)]
    texts = {key: _plain(" ".join(text.split())) for key, text in found}
    return {
        key: text if _VALUE_FIRST.match(text) else text[:1].upper() + text[1:] for key, text in texts.items()
    }


def _plain(text: str) -> str:
    return text.replace("``", "`")
