"""Finds the line of a key in a TOML text. Pure.

`tomllib` reports no lines. So the text is cut into statements, each a table's head or a pair, and each is parsed
alone. A statement ends with the first line with which `tomllib` accepts it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, Final

from config.section_base import Key

_PART: Final = re.compile(r'\.?([A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*")')
_ENDS: Final = ("]", '"""', "'''")
"""The last line of each statement with several lines contains one of these."""
_SPARE_CHARS: Final = 65_536
"""The characters that may be parsed again, in addition to eight times the text."""

_MOST_LINES: Final = 1_000  # the most lines of such a statement: each line may need an attempt


class Places:
    """Finds the keys of one text."""

    def __init__(self, text: str, tables: dict[str, Any]) -> None:
        """Read the text.

        Args:
            text: valid TOML.
            tables: its content, with values as messages show them.
        """
        self._tables = tables
        self._lines: dict[Key, int] = {}
        table: Key = ()
        arrays: dict[Key, int] = {}
        for line, head, found in _statements(text):
            if head:
                table = self._opened(found, arrays)
                self._lines.setdefault(table, line)
                if len(table) == 2 and table[-1] == 0:
                    self._lines.setdefault(table[:-1], line)  # an array at the top level begins here
            else:
                self._add(found, table, line)

    def line_of(self, message: str) -> int | None:
        """The line of the key at the beginning of a message, or of the table that has or should have the key.

        Args:
            message: begins with a key in the form of `config.faults.path_text`.
        """
        key = self._key_of(message)
        while key and key not in self._lines:
            key = key[:-1]
        return self._lines.get(key)

    def _opened(self, head: Any, arrays: dict[Key, int]) -> Key:
        """The table that a head opens."""
        key: Key = ()
        while head:
            ((name, head),) = head.items()
            key = (*key, name)
            if isinstance(head, list):  # [[name]]
                arrays[key] = arrays.get(key, -1) + 1
                head = None
            if key in arrays:
                key = (*key, arrays[key])
        return key

    def _add(self, found: Any, key: Key, line: int) -> None:
        if key:
            self._lines.setdefault(key, line)
        if isinstance(found, dict):
            for name, value in found.items():
                self._add(value, (*key, name), line)

    def _key_of(self, message: str) -> Key:
        """The key as it is in the tables: messages show tables of an array by their name."""
        key: Key = ()
        of: Any = self._tables
        at = 0
        while part := _PART.match(message, at):
            at = part.end()
            name = json.loads(part[1]) if part[1].startswith('"') else part[1]
            if isinstance(of, list):
                names = [each.get("name") if isinstance(each, dict) else None for each in of]
                index = names.index(name) if name in names else int(name) if name.isdecimal() else len(of)
                key, of = (*key, index), of[index] if index < len(of) else None
            else:
                key, of = (*key, name), of.get(name) if isinstance(of, dict) else None
        return key


def _statements(text: str) -> Iterator[tuple[int, bool, dict[str, Any]]]:
    """Each statement: its first line, whether it is the head of a table, and the result of parsing it alone."""
    lines = text.replace("\r\n", "\n").split("\n")
    left_chars = 8 * len(text) + _SPARE_CHARS
    first = 0
    while first < len(lines):
        for last in range(first, min(first + _MOST_LINES, len(lines))):
            if last > first and not any(end in lines[last] for end in _ENDS):
                continue
            statement = "\n".join(lines[first : last + 1])
            left_chars -= len(statement)
            if left_chars < 0:
                return  # many lines look like the end of a statement: reading further would take minutes
            try:
                found = tomllib.loads(statement)
            except tomllib.TOMLDecodeError:
                continue
            yield first + 1, lines[first].lstrip().startswith("["), found
            first = last + 1
            break
        else:
            return  # the statement was not understood, so the rest has no places
