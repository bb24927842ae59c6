"""Scopes: the entities that a file of quotas is about. What is outside of it is neither changed nor removed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quotas.entities import Default, Name, QuotaEntity, parse_entity

ALL: Final = "all"
_STAR: Final = "*"


class ScopeError(ValueError):
    """A text is no scope; says why."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Entities, by patterns.

    A pattern names entity types as an entity does: ``user=team-a-*``. A star at the end stands for all names that
    begin so, alone for every name and the default. An entity may have more types than the pattern names, as in a
    filter of Kafka that is not strict: that of a user covers its pairs with client ids, too.

    Attributes:
        patterns: an entity is covered that one of them covers; empty: every entity is.
    """

    patterns: tuple[QuotaEntity, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Scope:
        """The scope that these patterns make; ``all`` is every entity.

        Raises:
            ScopeError: one of them is not valid.
        """
        given = list(texts)
        if ALL in given:
            if len(given) > 1:
                raise ScopeError(f"give {ALL} alone, since it covers every entity")
            return cls(())
        patterns = []
        for text in given:
            try:
                pattern = parse_entity(text, other_spellings=True)
            except ValueError as exc:
                raise ScopeError(f"{text!r}: {exc}") from None
            if not any(pattern.components()):
                raise ScopeError(f"{text!r} names no entity; {ALL} stands for every entity")
            patterns.append(pattern)
        return cls(tuple(patterns))

    def covers(self, entity: QuotaEntity) -> bool:
        """Whether the entity is one of them."""
        if not self.patterns:
            return True
        names = dict(entity.components())
        return any(
            all(_matches(names.get(entity_type), wanted) for entity_type, wanted in pattern.components())
            for pattern in self.patterns
        )

    def __str__(self) -> str:
        """As it may be given."""
        return " or ".join(map(str, self.patterns)) or ALL


def _matches(name: Name | None, wanted: Name) -> bool:
    if name is None:
        return False
    if wanted == _STAR:
        return True
    if isinstance(wanted, Default) or isinstance(name, Default):
        return name is wanted
    return name.startswith(wanted.removesuffix(_STAR)) if wanted.endswith(_STAR) else name == wanted
