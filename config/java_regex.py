"""Java's regular expressions and replacement texts, translated to Python: for Kafka's mapping rules.

Most of both languages is the same. Constructs that are spelled differently are translated. Constructs that mean
something else in Python or do not exist are refused by name. So no rule matches other names here than on the brokers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# Java's line terminators; Python's dot and dollar know only the first.
_TERMINATORS: Final = "\\n\\r\\u0085\\u2028\\u2029"
_ANY: Final = f"[^{_TERMINATORS}]"
_END: Final = r"(?:\Z|(?=[\r\u0085\u2028\u2029]\Z)|(?=\r\n\Z)|(?<!\r)(?=\n\Z))"
_CONTROLS: Final = {"t": "\\t", "n": "\\n", "r": "\\r", "f": "\\f", "a": "\\x07", "e": "\\x1b"}
_CLASSES: Final = frozenset("dDsSwW")
# \\b is missing, because the letters that are part of a word depend on Java's version.
_ASSERTIONS: Final = {"A": "\\A", "z": "\\Z", "Z": _END}
_PROPERTIES: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "XDigit": "0-9a-fA-F",
    "Space": " \\t\\n\\x0b\\f\\r",
    "Blank": " \\t",
}
_QUANTIFIER: Final = re.compile(r"\{[0-9]{1,4}(,[0-9]{0,4})?\}")
_GROUP: Final = re.compile(r"\(\?(?:(?P<kind>:|=|!|>|<=|<!|i:)|<(?P<name>[A-Za-z][A-Za-z0-9]*)>)")
_HEX: Final = re.compile(r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}")
_PROPERTY: Final = re.compile(r"[pP]\{([A-Za-z]+)\}")
_NAMED_REFERENCE: Final = re.compile(r"k<([A-Za-z][A-Za-z0-9]*)>")


class JavaRegexError(ValueError):
    """A pattern or a replacement that Java refuses, or that has no equivalent here."""


def compile_java(pattern: str) -> re.Pattern[str]:
    """A Python pattern that matches what `java.util.regex.Pattern.compile(pattern)` matches.

    Raises:
        JavaRegexError: the pattern is broken, or uses something that cannot be translated.
    """
    flags = re.ASCII  # Java's \\d, \\w, \\s and (?i) apply to ASCII
    if pattern.startswith("(?i)"):
        flags |= re.IGNORECASE
        pattern = pattern[4:]
    try:
        return re.compile(_Translation(pattern).text(), flags)
    except (re.error, OverflowError, RecursionError) as exc:
        raise JavaRegexError(f'"{pattern}" is no regular expression: {exc}') from exc


@dataclass(frozen=True, slots=True)
class Replacement:
    """A replacement text of Java's `Matcher.replaceAll`.

    Attributes:
        parts: literal texts, and groups by number or name.
    """

    parts: tuple[str | tuple[int | str], ...]

    def of(self, match: re.Match[str]) -> str:
        """The text that replaces one match; a group that did not match is empty."""
        return "".join(part if isinstance(part, str) else match.group(part[0]) or "" for part in self.parts)


def replace_all(pattern: re.Pattern[str], replacement: Replacement, text: str) -> str:
    """Java's `Matcher.replaceAll`. After an empty match Java continues one character later; Python does not."""
    parts: list[str] = []
    copied = at = 0
    while at <= len(text) and (found := pattern.search(text, at)) is not None:
        parts += text[copied : found.start()], replacement.of(found)
        copied = found.end()
        at = copied if copied > found.start() else copied + 1
    return "".join([*parts, text[copied:]])


def parse_replacement(text: str, pattern: re.Pattern[str]) -> Replacement:
    """Read a replacement text.

    Args:
        text: ``$1`` and ``${name}`` are groups, ``\\`` makes the next character a literal one.
        pattern: the pattern with the groups.

    Raises:
        JavaRegexError: Java would refuse it as soon as the pattern matches.
    """
    parts: list[str | tuple[int | str]] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            if at + 1 == len(text):
                raise JavaRegexError(f'"{text}" ends in a backslash')
            parts.append(text[at + 1])
            at += 2
        elif char != "$":
            parts.append(char)
            at += 1
        else:
            group, at = _group_reference(text, at + 1, pattern)
            parts.append((group,))
    return Replacement(tuple(parts))


def _group_reference(text: str, at: int, pattern: re.Pattern[str]) -> tuple[int | str, int]:
    named = re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}").match(text, at)
    if named is not None:
        if named[1] not in pattern.groupindex:
            raise JavaRegexError(f'"{text}" names group {named[1]}, which the pattern does not have')
        return named[1], named.end()
    if at == len(text) or text[at] not in "0123456789":
        raise JavaRegexError(f'"{text}" has a $ that no group follows; write \\$ for the character')
    group = int(text[at])
    at += 1
    if group > pattern.groups:
        raise JavaRegexError(f'"{text}" names group {group}, the pattern has {pattern.groups}')
    # Java reads as many digits as still make the number of a group.
    while at < len(text) and text[at] in "0123456789" and group * 10 + int(text[at]) <= pattern.groups:
        group = group * 10 + int(text[at])
        at += 1
    return group, at


class _Translation:
    """One pass over a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def text(self) -> str:
        parts: list[str] = []
        while self._at < len(self._pattern):
            parts.append(self._next())
        return "".join(parts)

    def _next(self) -> str:
        char = self._take()
        if char == "\\":
            return self._escape(in_class=False)
        if char == "[":
            return self._class()
        if char == ".":
            return _ANY
        if char == "$":
            return _END
        if char == "(":
            return self._group()
        if char == "{":
            return self._quantifier()
        if char in "^)|*+?":
            return char
        return re.escape(char)

    def _take(self) -> str:
        if self._at == len(self._pattern):
            raise self._refusal("ends too early")
        char = self._pattern[self._at]
        self._at += 1
        return char

    def _take_match(self, wanted: re.Pattern[str]) -> re.Match[str] | None:
        found = wanted.match(self._pattern, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _refusal(self, why: str) -> JavaRegexError:
        return JavaRegexError(f'"{self._pattern}" {why}')

    def _quantifier(self) -> str:
        self._at -= 1
        found = self._take_match(_QUANTIFIER)
        if found is None:
            raise self._refusal("has a { that begins no repetition; write \\{ for the character")
        return found[0]

    def _group(self) -> str:
        if not self._pattern.startswith("?", self._at):
            return "("
        self._at -= 1
        found = self._take_match(_GROUP)
        if found is None:
            some = self._pattern[self._at : self._at + 4]
            raise self._refusal(f'uses the group "{some}", which is not supported here')
        return f"(?P<{found['name']}>" if found["name"] else found[0]

    def _escape(self, *, in_class: bool) -> str:
        char = self._take()
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _CLASSES:
            return f"\\{char}"
        if char == "Q":
            return self._quoted()
        if char in "pPxuk":
            self._at -= 1
            return self._braced(in_class=in_class)
        if char in _ASSERTIONS and not in_class:
            return _ASSERTIONS[char]
        if char in "123456789" and not in_class:
            if self._at < len(self._pattern) and self._pattern[self._at].isdigit():
                raise self._refusal("refers back to a group by two digits, which is not supported here")
            return f"(?:\\{char})"
        if char.isascii() and char.isalnum():
            raise self._refusal(f"uses \\{char}, which is not supported here")
        return re.escape(char)

    def _quoted(self) -> str:
        end = self._pattern.find("\\E", self._at)
        stop = len(self._pattern) if end < 0 else end
        quoted = self._pattern[self._at : stop]
        self._at = stop if end < 0 else end + 2
        return "".join(map(_escape_in_class, quoted))

    def _braced(self, *, in_class: bool) -> str:
        code = self._take_match(_HEX)
        if code is not None:
            return f"\\{code[0]}"
        reference = None if in_class else self._take_match(_NAMED_REFERENCE)
        if reference is not None:
            return f"(?P={reference[1]})"
        name = self._take_match(_PROPERTY)
        if name is None or name[1] not in _PROPERTIES:
            some = self._pattern[self._at - len(name[0]) if name else self._at :][:8]
            raise self._refusal(f"uses \\{some}, which is not supported here")
        if name[0].startswith("P"):
            if in_class:
                raise self._refusal(f"uses \\{name[0]} in a class, which is not supported here")
            return f"[^{_PROPERTIES[name[1]]}]"
        members = _PROPERTIES[name[1]]
        return members if in_class else f"[{members}]"

    def _class(self) -> str:
        parts = ["["]
        if self._pattern.startswith("^", self._at):
            self._at += 1
            parts.append("^")
        first = True
        while True:
            char = self._take()
            if char == "]" and not first:
                return "".join([*parts, "]"])
            if char in "[]" or self._pattern.startswith("&&", self._at - 1):
                raise self._refusal(f"has {char} in a class, which is not supported here; write \\{char}")
            if char == "\\":
                parts.append(self._escape(in_class=True))
            elif char == "-" and not first and not self._pattern.startswith("]", self._at):
                parts.append("-")
            else:
                parts.append(_escape_in_class(char))
            first = False


def _escape_in_class(char: str) -> str:
    # Python reserves some pairs of plain characters within classes for future use.
    return f"\\{char}" if char.isascii() and not char.isalnum() and char.isprintable() else char
