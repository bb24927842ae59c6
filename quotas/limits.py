"""Every configured quota, validated by Kafka's rules, with a version number for caches.

A quota is per key: the same entity may have a producer_byte_rate and no request_percentage. For each key
the set also knows which entity families have at least one quota, because that decides the counter of a client
(see `quotas.resolution`). Removing the last quota of a family makes the family inactive again,
and a key without any quota is off: nothing is counted for it. That is what Kafka does.

NaN and infinity are refused, as in Kafka since 4.4: a NaN quota silently limits nothing.
Two rules differ from Kafka. An address entity may be a CIDR block. Host names are refused: the address of a name may
change, and each broker looks the name up when it starts and may find another address.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from quotas.addresses import is_host_name, one_spelling
from quotas.entities import (
    API_BURST_S,
    API_RATE_KEYS,
    BURST_KEYS,
    GUARANTEE_KEYS,
    TOPIC_FAMILIES,
    Default,
    EntityType,
    Family,
    QuotaEntity,
    QuotaKey,
)
from quotas.groups import Groups
from quotas.ip_table import IpTable
from quotas.lending import TIERS, Brake
from quotas.name_prefixes import NamePrefixes

EmptyClientId: TypeAlias = Literal["kafka", "as_named"]


class Enforcement(StrEnum):
    """The mode of all quotas. Closed: it is a metric label."""

    ENFORCE = "enforce"
    OBSERVE = "observe"  # computed and reported; no client waits, nothing is refused
    OFF = "off"  # not even computed: as if no quota were set, though they still can be listed


IP_KEYS: Final = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
CONNECTION_KEYS: Final = frozenset({QuotaKey.CONNECTION_CREATION_RATE, QuotaKey.CONNECTION_COUNT})
"""Quotas of connections are set for users alone, or addresses: a connection has no client id."""
CLIENT_KEYS: Final = frozenset(QuotaKey) - CONNECTION_KEYS
USER_KEYS: Final = CLIENT_KEYS | CONNECTION_KEYS
TOPIC_KEYS: Final = frozenset({QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE})
GROUP_KEYS: Final = TOPIC_KEYS | {
    QuotaKey.REQUEST_PERCENTAGE,
    QuotaKey.CONTROLLER_MUTATION_RATE,
    *BURST_KEYS.values(),
}

# Keys whose values Kafka stores as whole numbers, with the largest value and its Java type as Kafka names it.
_INTEGRAL: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: (float(2**63 - 1), "a LONG"),
    QuotaKey.CONSUMER_BYTE_RATE: (float(2**63 - 1), "a LONG"),
    QuotaKey.CONNECTION_CREATION_RATE: (float(2**31 - 1), "an INT"),
    QuotaKey.CONNECTION_COUNT: (float(2**31 - 1), "an INT"),
    QuotaKey.PRODUCER_BYTE_GUARANTEE: (float(2**63 - 1), "a LONG"),
    QuotaKey.CONSUMER_BYTE_GUARANTEE: (float(2**63 - 1), "a LONG"),
}
MOST_BURST_SECONDS: Final = 86_400.0
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_GROUP_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_FRACTION_TOLERANCE: Final = 1e-6


class Limits:
    """The configured quotas.

    Attributes:
        version: grows with every change; a cached `quotas.resolution.Match` is good for one version.
        address_version: grows with the changes among them that can matter to an address.
        empty_client_id: how to treat a client without a client id. ``kafka``: as in Kafka, it matches
            "(user, default client)" but is then looked up as the bare user, and as a client id alone it
            matches nothing. ``as_named``: it is a client like any other, called "". The default is
            ``kafka``, so that results can be compared with a broker's. ``as_named`` would not protect more: a
            client that wants a counter of its own can choose any name.
        prefixes: whether users and client ids that end in ``*`` stand for all names with that beginning.
        groups: the groups of clients, with their members.
        brakes: the brakes of tiers, also those that have ended. Without a divided capacity they do nothing.
        share: the factor of clients' limits in a gateway that is isolated from its fleet.
    """

    def __init__(self, *, empty_client_id: EmptyClientId = "kafka", prefixes: bool = False) -> None:
        """Starts with no quota, so every key is off."""
        self.prefixes: Final = prefixes
        self.version: int = 1
        self.share = 1.0
        self.groups = Groups()
        self.brakes: Mapping[int, Brake] = {}
        self.address_version: int = 1
        self.empty_client_id: EmptyClientId = empty_client_id
        self._values: dict[QuotaKey, dict[QuotaEntity, float]] = {key: {} for key in QuotaKey}
        self._families: dict[QuotaKey, dict[Family, int]] = {key: {} for key in QuotaKey}
        self._topic_families: dict[QuotaKey, dict[Family, int]] = {key: {} for key in QuotaKey}
        self._group_families: dict[QuotaKey, dict[Family, int]] = {key: {} for key in QuotaKey}
        self._clear_names()
        self._divided: frozenset[QuotaKey] = frozenset()
        self._mode = Enforcement.ENFORCE
        self._observed: frozenset[QuotaEntity] = frozenset()

    def set(self, entity: QuotaEntity, key: QuotaKey, value: float) -> None:
        """Sets a quota. The version stays the same if the quota has this value already.

        Raises:
            ValueError: `validate` finds a fault; the text is Kafka's.
        """
        fault = validate(entity, key, value)
        if fault is not None:
            raise ValueError(fault)
        self.put(entity, key, value)

    def put(self, entity: QuotaEntity, key: QuotaKey, value: float) -> None:
        """Sets a quota that `validate` has found no fault in."""
        if self._values[key].get(entity) != value:
            self._store(entity, key, value)
            self._changed(key)

    def remove(self, entity: QuotaEntity, key: QuotaKey) -> bool:
        """Removes a quota and says whether there was one."""
        if entity not in self._values[key]:
            return False
        del self._values[key][entity]
        self._of_topics[key].pop(entity, None)
        if entity.topic is None:
            self._users_by_prefix[key].discard(entity.user)
            self._clients_by_prefix[key].discard(entity.client_id)
        if key in IP_KEYS:
            self._addresses.discard(entity.ip)
        family = _family_of(entity)
        families = self._families_like(family)[key]
        families[family] -= 1
        if not families[family]:
            del families[family]
        self._changed(key)
        return True

    def get(self, entity: QuotaEntity, key: QuotaKey) -> float | None:
        """The quota set for exactly this entity, None when there is none. Resolves nothing."""
        return self._values[key].get(entity)

    def burst_s(self, entity: QuotaEntity, key: QuotaKey) -> float | None:
        """The size of the bucket of an entity's rate, in seconds; None: Kafka's window counts the rate.

        Args:
            entity: the entity whose rate decides. A burst of any other level does not matter.
            key: the rate.
        """
        burst_key = BURST_KEYS.get(key)
        if burst_key is None:
            bucket = key in API_RATE_KEYS or key is QuotaKey.CONNECTION_CREATION_RATE
            return API_BURST_S if bucket else None
        return self._values[burst_key].get(entity)

    def items(self) -> Iterator[tuple[QuotaEntity, QuotaKey, float]]:
        """Every configured quota, by key and then in the order it was set."""
        for key, values in self._values.items():
            for entity, value in values.items():
                yield entity, key, value

    def entities(self, key: QuotaKey) -> Iterator[tuple[QuotaEntity, float]]:
        """The quotas of one key."""
        yield from self._values[key].items()

    def topic_entities(self, key: QuotaKey) -> Iterator[QuotaEntity]:
        """The entities with a topic that have a quota of one key. The time does not depend on other entities."""
        yield from self._of_topics[key]

    @property
    def count(self) -> int:
        """How many quotas are set."""
        return sum(map(len, self._values.values()))

    def snapshot(self) -> dict[QuotaKey, dict[QuotaEntity, float]]:
        """A copy of all quotas, by key, which outlives the next change."""
        return {key: values.copy() for key, values in self._values.items()}

    def replace_all(self, items: Iterable[tuple[QuotaEntity, QuotaKey, float]]) -> bool:
        """Replaces all quotas, or changes nothing; for a configuration reload.

        Returns:
            Whether anything has changed; only then is there a new version.

        Raises:
            ValueError: an item is not valid; its entity and key are in the text. Nothing was changed.
        """
        wanted = list(items)
        for entity, key, value in wanted:
            fault = validate(entity, key, value)
            if fault is not None:
                raise ValueError(f"{entity}: {fault}")
        values: dict[QuotaKey, dict[QuotaEntity, float]] = {key: {} for key in QuotaKey}
        for entity, key, value in wanted:
            values[key][entity] = value
        if values == self._values:
            return False
        self._values = {key: {} for key in QuotaKey}
        self._families = {key: {} for key in QuotaKey}
        self._topic_families = {key: {} for key in QuotaKey}
        self._group_families = {key: {} for key in QuotaKey}
        self._clear_names()
        for key, of_key in values.items():
            for entity, value in of_key.items():
                self._store(entity, key, value)
        self._changed()
        return True

    def prefixes_of(self, key: QuotaKey, entity_type: EntityType, name: str) -> list[str]:
        """The prefixes with a quota for this key that match `name`, longest first."""
        if not self.prefixes:
            return []
        by_prefix = self._users_by_prefix if entity_type is EntityType.USER else self._clients_by_prefix
        return by_prefix[key].of(name)

    def find_address(self, address: str) -> str | None:
        """The address or block whose rate applies to an address; None: the default's. See `IpTable.find`."""
        return self._addresses.find(address)

    def enabled(self, key: QuotaKey) -> bool:
        """Whether this key has a quota or a divided capacity, and is not switched off. Otherwise nothing is counted.

        Quotas of topics and of groups are not included.
        """
        return (bool(self._families[key]) or key in self._divided) and self._mode is not Enforcement.OFF

    @property
    def limits_user_connections(self) -> bool:
        """Whether the connections of any user are limited, and quotas are not switched off."""
        return self._mode is not Enforcement.OFF and any(
            Family.USER in self._families[key] for key in CONNECTION_KEYS
        )

    def topics_enabled(self, key: QuotaKey) -> bool:
        """Whether this key has a quota of a topic, and is not switched off."""
        return bool(self._topic_families[key]) and self._mode is not Enforcement.OFF

    def groups_enabled(self, key: QuotaKey) -> bool:
        """Whether this key has a quota of a group, and is not switched off. The group may have no members."""
        return bool(self._group_families[key]) and self._mode is not Enforcement.OFF

    def topic_families(self, key: QuotaKey) -> frozenset[Family]:
        """The families with a topic that have at least one quota for this key."""
        return frozenset(self._topic_families[key])

    def families(self, key: QuotaKey) -> frozenset[Family]:
        """The entity families without a topic or a group that have at least one quota for this key."""
        return frozenset(self._families[key])

    def sole_family(self, key: QuotaKey) -> Family | None:
        """The one active family of this key, None when there is none or more than one."""
        active = self._families[key]
        return next(iter(active)) if len(active) == 1 else None

    @property
    def mode(self) -> Enforcement:
        """The mode of all quotas."""
        return self._mode

    def set_mode(self, mode: Enforcement) -> None:
        """Enforces all quotas, only observes them, or switches them off: the kill switch of a running gateway."""
        if mode is not self._mode:
            self._mode = mode
            self._changed()

    def set_observed(self, entities: Iterable[QuotaEntity] = ()) -> None:
        """Sets the entities whose quotas are only observed: computed and reported as usual, without a wait.

        Args:
            entities: exactly these entities. They replace those set before.
        """
        observed = frozenset(entities)
        if observed != self._observed:
            self._observed = observed
            self._changed()

    def set_divided(self, keys: Iterable[QuotaKey]) -> None:
        """Sets the keys that have a divided capacity; see `quotas.lent_rates`. Their clients are looked up again."""
        self._divided = frozenset(keys)
        self._changed()

    def set_groups(self, groups: Groups) -> None:
        """Sets the groups and their members. They replace those set before."""
        if groups != self.groups:
            self.groups = groups
            self._changed()

    def set_share(self, share: float) -> None:
        """Sets the factor of clients' limits. The configured numbers do not change."""
        if share != self.share:
            self.share = share
            self._changed()

    def observes(self, entity: QuotaEntity | None) -> bool:
        """Whether the quotas of this entity are only observed; None: whether all quotas are."""
        return self._mode is Enforcement.OBSERVE or entity in self._observed

    def _families_like(self, family: Family) -> dict[QuotaKey, dict[Family, int]]:
        if family is Family.GROUP:
            return self._group_families
        return self._topic_families if family in TOPIC_FAMILIES else self._families

    def _changed(self, key: QuotaKey | None = None) -> None:
        """Raises the versions after a change of a quota of this key; None: of any key."""
        self.version += 1
        if key is None or key in IP_KEYS:
            self.address_version += 1

    def _clear_names(self) -> None:
        self._users_by_prefix = {key: NamePrefixes() for key in QuotaKey}
        self._clients_by_prefix = {key: NamePrefixes() for key in QuotaKey}
        self._addresses = IpTable()
        self._of_topics: dict[QuotaKey, dict[QuotaEntity, None]] = {key: {} for key in QuotaKey}

    def _store(self, entity: QuotaEntity, key: QuotaKey, value: float) -> None:
        if entity not in self._values[key]:
            family = _family_of(entity)
            families = self._families_like(family)[key]
            families[family] = families.get(family, 0) + 1
            if entity.topic is None:
                self._users_by_prefix[key].add(entity.user)
                self._clients_by_prefix[key].add(entity.client_id)
            else:
                self._of_topics[key][entity] = None
            if key in IP_KEYS:
                self._addresses.add(entity.ip)
        self._values[key][entity] = value


def validate(entity: QuotaEntity, key: str, value: float) -> str | None:
    """The first fault of a quota, None when it may be set.

    Args:
        entity: the entity of the quota.
        key: as the client wrote it, so it may be unknown.
        value: in the key's unit.

    Returns:
        Kafka's own error text if the rule is Kafka's. The order of checks is Kafka's: entity, key, value.
    """
    fault = validate_entity(entity)
    if fault is not None:
        return fault
    if key not in allowed_keys(entity):
        return f"Invalid configuration key {key}"
    return _validate_value(QuotaKey(key), value)


def guarantee_faults(values: Mapping[QuotaKey, float]) -> Iterator[tuple[QuotaKey, str]]:
    """The guarantees of an entity that contradict its rates, and why.

    Args:
        values: all quotas of the entity.
    """
    for rate, guarantee in GUARANTEE_KEYS.items():
        if guarantee in values and rate not in values:
            yield guarantee, f"needs {rate}, the most that this entity gets"
        elif guarantee in values and values[guarantee] > values[rate]:
            yield guarantee, f"is more than {rate}, the most that this entity gets"


def allowed_keys(entity: QuotaEntity) -> frozenset[QuotaKey]:
    """The quotas that an entity can have."""
    if entity.family is Family.IP:
        return IP_KEYS
    if entity.family is Family.GROUP:
        return GROUP_KEYS
    if entity.family is Family.USER:
        return USER_KEYS
    return CLIENT_KEYS if entity.topic is None else TOPIC_KEYS


def validate_entity(entity: QuotaEntity) -> str | None:
    """The first fault of an entity, None when quotas of it may be set and removed."""
    components = list(entity.components())
    if not components:
        return "Invalid empty client quota entity"
    for entity_type, name in components:
        if name == "":
            return f"Empty {entity_type} not supported"
        if (
            isinstance(name, str)
            and not name.isascii()
            and any(0xD800 <= ord(each) <= 0xDFFF for each in name)
        ):
            # A lone surrogate: JSON can contain it, but a response on the wire cannot.
            return f"The {entity_type} is no valid text"
    if entity.group is not None:
        return _group_fault(entity)
    if entity.family is None and entity.topic is not None:
        return "Invalid quota entity combination, a topic can be combined with a user or a client id alone"
    if isinstance(entity.topic, str) and not _TOPIC_NAME.fullmatch(entity.topic):
        return f"{entity.topic[:250]} is not a valid name of a topic"
    if entity.family is None:
        # Kafka's text, with its missing space: clients and tests compare it.
        return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
    return None if entity.ip is None or isinstance(entity.ip, Default) else _address_fault(entity.ip)


def _group_fault(entity: QuotaEntity) -> str | None:
    if entity.family is None:
        return "Invalid quota entity combination, a group cannot be combined with anything"
    if isinstance(entity.group, Default):
        return "There is no default group"
    return group_name_fault(entity.group or "")


def group_name_fault(name: str) -> str | None:
    """The fault of a group's name, None if it is valid."""
    if _GROUP_NAME.fullmatch(name):
        return None
    return f"{name[:100]} is not a valid name of a group: letters, digits, dot, _ and -, at most 100"


def _validate_value(key: QuotaKey, value: float) -> str | None:
    if not math.isfinite(value):
        return f"Quota {key} must be a finite number"
    if key is QuotaKey.TIER:
        return None if value in range(TIERS) else f"Quota {key} must be 0, 1, 2 or 3"
    if value <= 0:
        return f"Quota {key} must be greater than 0"
    if key in BURST_KEYS.values() and value > MOST_BURST_SECONDS:
        return f"Quota {key} must be at most {MOST_BURST_SECONDS:.0f}"
    if key in _INTEGRAL:
        largest, java_type = _INTEGRAL[key]
        if value > largest:
            return f"Proposed value for {key} is too large for {java_type}."
        if value % 1 > _FRACTION_TOLERANCE:
            return f"{key} cannot be a fractional value."
    return None


def _address_fault(name: str) -> str | None:
    try:
        one_spelling(name)
    except ValueError:
        if is_host_name(name):
            return f"{name} is a host name, which is not looked up here; give its address."
        return f"{name} is not a valid IP or resolvable host."
    return None


def _family_of(entity: QuotaEntity) -> Family:
    family = entity.family
    if family is None:
        raise ValueError(validate_entity(entity))
    return family
