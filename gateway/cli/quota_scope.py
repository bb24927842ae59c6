"""Scopes: the entities that a file of quotas is about. Other entities are neither changed nor removed. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quotas.entities import Default, EntityType, Name, QuotaEntity, format_name, parse_names

ALL: Final = "all"
_STAR: Final = "*"
_ORDER: Final = (EntityType.USER, EntityType.CLIENT_ID, EntityType.IP, EntityType.TOPIC, EntityType.GROUP)


class ScopeError(ValueError):
    """A text is no scope; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a pattern for one entity type.

    Attributes:
        entity_type: the type.
        name: the name, with the star at its end if it has one.
        literal: this star was quoted, so it is part of the name.
    """

    entity_type: EntityType
    name: Name
    literal: bool

    def matches(self, name: Name | None) -> bool:
        if name is None:
            return False
        if self.name == _STAR and not self.literal:
            return True
        if isinstance(self.name, Default) or isinstance(name, Default):
            return name is self.name
        if self.name.endswith(_STAR) and not self.literal:
            return name.startswith(self.name.removesuffix(_STAR))
        return name == self.name

    def __str__(self) -> str:
        name = json.dumps(self.name) if self.literal else format_name(self.name)
        return f"{self.entity_type}={name}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Entities, by patterns.

    A pattern names entity types as an entity does: ``user=team-a-*``. A star at the end stands for all names with
        that
    beginning. A star alone stands for every name and the default. In a quoted name a star is an ordinary character.
    An entity may have more types than the pattern names, as in a filter of Kafka that is not strict: a pattern of a
        user
    also covers the user's pairs with client ids.

    Attributes:
        patterns: an entity is covered if one of them covers it; empty: every entity is covered.
    """

    patterns: tuple[tuple[_Part, ...], ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Scope:
        """The scope of these patterns; ``all`` is every entity.

        Raises:
            ScopeError: a pattern is not valid.
        """
        given = list(texts)
        if ALL in given:
            if len(given) > 1:
                raise ScopeError(f"give {ALL} alone, since it covers every entity")
            return cls(())
        patterns = []
        for text in given:
            try:
                names = parse_names(text, other_spellings=True)
            except ValueError as exc:
                raise ScopeError(f"{text!r}: {exc}") from None
            if not names:
                raise ScopeError(f"{text!r} names no entity; {ALL} stands for every entity")
            patterns.append(tuple(_part(each, *names[each]) for each in _ORDER if each in names))
        return cls(tuple(patterns))

    def covers(self, entity: QuotaEntity) -> bool:
        """Whether the scope covers an entity."""
        if not self.patterns:
            return True
        names = dict(entity.components())
        return any(
            all(part.matches(names.get(part.entity_type)) for part in pattern) for pattern in self.patterns
        )

    def __str__(self) -> str:
        """The scope as text, in the form of the option."""
        return " or ".join(",".join(map(str, pattern)) for pattern in self.patterns) or ALL


def _part(entity_type: EntityType, name: Name, quoted: bool) -> _Part:
    return _Part(entity_type, name, quoted and isinstance(name, str) and name.endswith(_STAR))
