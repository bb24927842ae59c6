"""The quotas that a DescribeClientQuotas filter selects, and the filters that Kafka refuses (KIP-546).

A filter names entity types, each with a name, with its default or with any name. Unless the filter is strict, an
entity may have more types than it names. Nothing is resolved: a response lists the quotas that are set, not those
that apply to a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from quotas.addresses import one_spelling
from quotas.entities import DEFAULT, EntityType, Name, QuotaEntity, QuotaKey, cut_name, entity_of_names
from quotas.limits import Limits


class MatchType(IntEnum):
    """How a component selects, as on the wire."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2  # any name, and the default


class FilterError(ValueError):
    """A filter that Kafka refuses with INVALID_REQUEST; the text is Kafka's."""


class UnsupportedEntityType(FilterError):
    """A filter that Kafka refuses with UNSUPPORTED_VERSION, because a newer broker might know the type."""


Grouped: TypeAlias = dict[QuotaEntity, dict[QuotaKey, float]]
"""Entities with all their values."""

_CLIENT_TYPES: Final = frozenset({EntityType.USER, EntityType.CLIENT_ID})


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """A valid filter.

    Attributes:
        named: types that the entity must have with exactly this name or default.
        specified: types that the entity must have, with any name.
        strict: the entity may have no other types.
    """

    named: Mapping[EntityType, Name]
    specified: frozenset[EntityType]
    strict: bool

    @property
    def entity(self) -> QuotaEntity | None:
        """The only entity that can match; None when several can."""
        return None if self.specified or not self.strict else entity_of_names(self.named)

    def select(self, limits: Limits) -> Iterator[tuple[QuotaEntity, dict[QuotaKey, float]]]:
        """The entities that match, each with all its values.

        One entity that is named in full is looked up; every other filter walks all quotas.
        """
        entity = self.entity
        if entity is not None:
            values = {
                key: value for key in QuotaKey for value in (limits.get(entity, key),) if value is not None
            }
            if values:
                yield entity, values
            return
        found: Grouped = {}
        for key in QuotaKey:
            self.group(key, limits.entities(key), found)
        yield from found.items()

    def group(self, key: QuotaKey, quotas: Iterable[tuple[QuotaEntity, float]], found: Grouped) -> None:
        """Add the matching ones of these quotas to `found`; for a part of them if all would take too long."""
        user_test, client_test = self._test(EntityType.USER), self._test(EntityType.CLIENT_ID)
        ip_test, topic_test = self._test(EntityType.IP), self._test(EntityType.TOPIC)
        group_test = self._test(EntityType.GROUP)
        for entity, value in quotas:
            if (
                user_test(entity.user)
                and client_test(entity.client_id)
                and ip_test(entity.ip)
                and topic_test(entity.topic)
                and group_test(entity.group)
            ):
                found.setdefault(entity, {})[key] = value

    def _test(self, entity_type: EntityType) -> Callable[[Name | None], bool]:
        """A test for a component of this type."""
        if entity_type in self.named:
            wanted = self.named[entity_type]
            return lambda name: name == wanted
        if entity_type in self.specified:
            return lambda name: name is not None
        if self.strict:
            return lambda name: name is None
        return lambda _name: True


def make_filter(components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> QuotaFilter:
    """The filter of a request.

    Args:
        components: (entity type, match type, name) as on the wire.
        strict: see `QuotaFilter`.

    Raises:
        FilterError: Kafka would refuse it; the first fault in Kafka's order.
    """
    named: dict[EntityType, Name] = {}
    specified: set[EntityType] = set()
    for type_text, match_type, name in components:
        if not type_text:
            raise FilterError("Invalid empty entity type.")
        if type_text in named or type_text in specified:
            raise FilterError(f"Entity type {type_text} cannot appear more than once in the filter.")
        try:
            entity_type = EntityType(type_text)
        except ValueError:
            raise UnsupportedEntityType(f"Unsupported entity type {type_text}") from None
        if match_type == MatchType.EXACT:
            if name is None:
                raise FilterError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            named[entity_type] = _spelled(name) if entity_type is EntityType.IP else cut_name(name)
        elif match_type == MatchType.DEFAULT:
            if name is not None:
                raise FilterError("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            named[entity_type] = DEFAULT
        elif match_type == MatchType.SPECIFIED:
            if name is not None:
                raise FilterError(
                    "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."
                )
            specified.add(entity_type)
        else:
            raise FilterError(f"Unknown match type {match_type}")
    types = named.keys() | specified
    if EntityType.IP in types and types & _CLIENT_TYPES:
        raise FilterError(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
    return QuotaFilter(named, frozenset(specified), strict)


def _spelled(address: str) -> str:
    with suppress(ValueError):  # as in Kafka, a name that no entity can have selects nothing
        return one_spelling(address)
    return address
