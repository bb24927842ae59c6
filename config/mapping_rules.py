"""Kafka's ssl.principal.mapping.rules: from a certificate's subject to the name that quotas use.

    RULE:pattern/replacement/   RULE:pattern/replacement/L   RULE:pattern/replacement/U   DEFAULT

separated by commas. The first rule whose pattern matches the whole name decides. This module follows Kafka's
SslPrincipalMapper exactly, including its oddities. Faults that Kafka would find only when a client connects are
refused when the rules are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from config.java_regex import JavaRegexError, Replacement, compile_java, parse_replacement, replace_all

_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)", re.ASCII)
_PARSER: Final = re.compile(_RULE)
_REFERENCE: Final = re.compile(r"\$([0-9]+)")
_TRIMMED: Final = "".join(map(chr, range(0x21)))  # the characters that Java's String.trim removes

MAX_RULES: Final = 100  # each takes a search per handshake
MAX_NAME_CHARS: Final = 8_192  # the time of a search may grow faster than the name, and clients choose names


class NoRuleMatches(Exception):
    """A name that no rule matches; Kafka refuses such a client."""


_NOTHING: Final = Replacement(())


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: Replacement = _NOTHING
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        # The whole name must match, but each match that a search finds is replaced, as in Kafka.
        result = replace_all(self.pattern, self.replacement, name)
        if self.case == "L":
            return result.lower()
        return result.upper() if self.case == "U" else result


@dataclass(frozen=True, slots=True)
class MappingRules:
    """Rules in the order of the text; `DEFAULT_RULES` keeps names as they are."""

    rules: tuple[_Rule, ...]

    @classmethod
    def parse(cls, text: str) -> MappingRules:
        """Read the value of Kafka's ssl.principal.mapping.rules.

        Raises:
            ValueError: the text is no list of rules, or a pattern or replacement can't be used; the message names it.
        """
        found = [split[1] for split in _SPLITTER.finditer(text.strip(_TRIMMED))]
        rules = [_parse_rule(each) for each in found if each]
        if not rules:
            raise ValueError("has no rule, so no client could connect; DEFAULT keeps names as they are")
        if len(rules) > MAX_RULES:
            raise ValueError(f"has {len(rules)} rules; at most {MAX_RULES}")
        return cls(tuple(rules))

    def name(self, distinguished_name: str) -> str:
        """The principal's name for a certificate's subject, as `gateway.auth.principals` writes it.

        Raises:
            NoRuleMatches: no rule matches it, or it is longer than `MAX_NAME_CHARS`.
        """
        if len(distinguished_name) <= MAX_NAME_CHARS:
            for rule in self.rules:
                name = rule.apply(distinguished_name)
                if name is not None:
                    return name
        raise NoRuleMatches(f"none of {len(self.rules)} rules is for this name")


DEFAULT_RULES: Final = MappingRules((_Rule(),))


def _parse_rule(text: str) -> _Rule:
    found = _PARSER.match(text)
    if found is None or found.end() != len(text):
        raise ValueError(f'has "{text}", which is neither DEFAULT nor RULE:pattern/replacement/[L|U]')
    if found[1] is not None:
        return _Rule()
    try:
        pattern = compile_java(found[2])
        replacement = parse_replacement(_literal_where_no_group(found[4], pattern.groups), pattern)
    except JavaRegexError as exc:
        raise ValueError(f'has the rule "{text}": {exc}') from exc
    return _Rule(pattern, replacement, found[6])


def _literal_where_no_group(replacement: str, groups: int) -> str:
    """References to groups that the pattern does not have become text, but only if it has any group at all."""
    if groups == 0:
        return replacement
    value = replacement
    for found in _REFERENCE.finditer(replacement):
        digits = found[1]
        if digits.startswith("0"):
            continue
        index = int(digits)
        while index > groups and index >= 10:
            index //= 10
        if index > groups:
            # Kafka uses positions in the original text, so a second reference is escaped at the wrong position. The
            # result is no valid replacement and is refused with the other faults.
            dollar = found.start(1) - 1
            value = f"{value[:dollar]}\\{value[dollar:]}"
    return value
