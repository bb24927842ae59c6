"""Quota entities: users, client ids, addresses, topics, groups; by name or as the default (KIP-55, KIP-612).

A topic is an entity too, alone or with a user or a client id. So is a group of clients, alone and by name
(`quotas.groups`). Kafka lacks both. Each address has one spelling: see `quotas.addresses`.

The default entity has no name on the wire (null). This project's text forms write it as ``<default>``. A user that is
really called ``<default>`` is another entity and is written in double quotes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from typing import Any, Final, TypeAlias

from quotas.addresses import one_spelling


class Default(Enum):
    """The type of `DEFAULT`, so that a type checker can distinguish it from a name."""

    DEFAULT = "<default>"


DEFAULT: Final = Default.DEFAULT

Name: TypeAlias = str | Default

MAX_NAME_CHARS: Final = 256
"""Longer client ids and users are cut: they are keys of counters, and a client may invent thousands (hazard K07)."""

_DIGEST_CHARS: Final = 16


def cut_name(name: str) -> str:
    """The name, or for a long one its beginning and a digest of the whole, so that two long names stay distinct."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]}~{digest}"


class QuotaKey(StrEnum):
    """The quota names that AlterClientQuotas carries; Kafka knows the first five."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    CONNECTION_COUNT = "connection_count"
    PRODUCER_BYTE_BURST_SECONDS = "producer_byte_burst_seconds"
    CONSUMER_BYTE_BURST_SECONDS = "consumer_byte_burst_seconds"
    METADATA_REQUEST_RATE = "metadata_request_rate"
    OFFSET_COMMIT_REQUEST_RATE = "offset_commit_request_rate"
    GROUP_MEMBERSHIP_REQUEST_RATE = "group_membership_request_rate"
    FIND_COORDINATOR_REQUEST_RATE = "find_coordinator_request_rate"
    INIT_PRODUCER_ID_REQUEST_RATE = "init_producer_id_request_rate"
    LIST_OFFSETS_REQUEST_RATE = "list_offsets_request_rate"
    DESCRIBE_CONFIGS_REQUEST_RATE = "describe_configs_request_rate"
    ALTER_CONFIGS_REQUEST_RATE = "alter_configs_request_rate"
    PRODUCER_RECORD_RATE = "producer_record_rate"
    CONSUMER_RECORD_RATE = "consumer_record_rate"
    PRODUCER_BYTE_GUARANTEE = "producer_byte_guarantee"
    CONSUMER_BYTE_GUARANTEE = "consumer_byte_guarantee"
    WEIGHT = "weight"
    TIER = "tier"


BURST_KEYS: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: QuotaKey.PRODUCER_BYTE_BURST_SECONDS,
    QuotaKey.CONSUMER_BYTE_RATE: QuotaKey.CONSUMER_BYTE_BURST_SECONDS,
}
"""By rate: the key that makes a bucket count an entity's rate. Its value is the bucket's size in seconds."""

GUARANTEE_KEYS: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: QuotaKey.PRODUCER_BYTE_GUARANTEE,
    QuotaKey.CONSUMER_BYTE_RATE: QuotaKey.CONSUMER_BYTE_GUARANTEE,
}
"""By rate: the key of the guarantee, the least that an entity can use. The rate is then the entity's ceiling."""

ATTRIBUTE_KEYS: Final = frozenset(
    {*BURST_KEYS.values(), *GUARANTEE_KEYS.values(), QuotaKey.WEIGHT, QuotaKey.TIER}
)
"""Keys that modify the quotas of their entity, and limit nothing alone."""


API_RATE_KEYS: Final = tuple(key for key in QuotaKey if key.endswith("_request_rate"))
"""Requests per second of a family of APIs; the gateway's table of routes lists the APIs."""

FURTHER_RATE_KEYS: Final = (*API_RATE_KEYS, QuotaKey.PRODUCER_RECORD_RATE, QuotaKey.CONSUMER_RECORD_RATE)
"""All rates of users and client ids that Kafka does not know."""

API_BURST_S: Final = 2.0
"""The size of the buckets of `API_RATE_KEYS` and of users' connections, in seconds of the rate."""


class EntityType(StrEnum):
    """The entity types, spelled as on the wire; listed in the order a broker answers them."""

    CLIENT_ID = "client-id"
    USER = "user"
    IP = "ip"
    TOPIC = "topic"
    GROUP = "group"


class Family(StrEnum):
    """The shapes an entity can have: the types it names, default or not."""

    USER_CLIENT = "user_client"
    USER = "user"
    CLIENT = "client"
    IP = "ip"
    TOPIC = "topic"
    USER_TOPIC = "user_topic"
    CLIENT_TOPIC = "client_topic"
    GROUP = "group"


TOPIC_FAMILIES: Final = frozenset({Family.TOPIC, Family.USER_TOPIC, Family.CLIENT_TOPIC})


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """A quota entity. A component that is not part of it is None.

    A long name is cut, as clients' names are. An address gets its one spelling; a text that is no address stays as
    it is.
    """

    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None
    topic: Name | None = None
    group: Name | None = None

    def __post_init__(self) -> None:
        """Cut user and client id, and normalize the address."""
        if isinstance(self.user, str) and len(self.user) > MAX_NAME_CHARS:
            object.__setattr__(self, "user", cut_name(self.user))
        if isinstance(self.client_id, str) and len(self.client_id) > MAX_NAME_CHARS:
            object.__setattr__(self, "client_id", cut_name(self.client_id))
        if isinstance(self.ip, str):
            with suppress(ValueError):
                object.__setattr__(self, "ip", one_spelling(self.ip))

    @property
    def family(self) -> Family | None:
        """The entity's shape, None when it names nothing, or types that do not go together.

        An address and a group stand alone; a topic may stand with a user or a client id, not with both.
        """
        if self.group is not None:
            others = (self.user, self.client_id, self.ip, self.topic)
            return Family.GROUP if others == (None, None, None, None) else None
        if self.ip is not None:
            alone = self.user is None and self.client_id is None and self.topic is None
            return Family.IP if alone else None
        if self.topic is not None:
            if self.user is not None:
                return Family.USER_TOPIC if self.client_id is None else None
            return Family.TOPIC if self.client_id is None else Family.CLIENT_TOPIC
        if self.user is not None:
            return Family.USER if self.client_id is None else Family.USER_CLIENT
        return None if self.client_id is None else Family.CLIENT

    def components(self) -> Iterator[tuple[EntityType, Name]]:
        """The named components, in the order a person reads them: user, client id, address, topic, group."""
        for entity_type, name in (
            (EntityType.USER, self.user),
            (EntityType.CLIENT_ID, self.client_id),
            (EntityType.IP, self.ip),
            (EntityType.TOPIC, self.topic),
            (EntityType.GROUP, self.group),
        ):
            if name is not None:
                yield entity_type, name

    def __str__(self) -> str:
        """The text form that `parse_entity` reads, such as ``user=alice,client-id=<default>``."""
        return ",".join(f"{entity_type}={format_name(name)}" for entity_type, name in self.components())


def entity_of_names(names: Mapping[Any, Name | None]) -> QuotaEntity:
    """The entity with these names, by type or its text, not yet checked; other types are ignored."""
    return QuotaEntity(
        user=names.get(EntityType.USER),
        client_id=names.get(EntityType.CLIENT_ID),
        ip=names.get(EntityType.IP),
        topic=names.get(EntityType.TOPIC),
        group=names.get(EntityType.GROUP),
    )


def format_name(name: Name) -> str:
    """One component as text; quoted when the bare name would read as something else."""
    if isinstance(name, Default):
        return name.value
    bare = name.isprintable() and name == name.strip() and name != DEFAULT.value
    return name if bare and name and not any(c in name for c in ',"') else json.dumps(name)


ALL_CLIENTS: Final = "all clients"
OTHER_CLIENTS: Final = "other clients"
"""These texts cannot be confused with a client, whose text contains ``=``."""


def client_name(user: str | None = None, client_id: str | None = None, *, ip: str | None = None) -> str:
    """A client's name on pages and in commands: the text form of an entity, ``user=alice,client-id=app``.

    Args:
        user, client_id, ip: None stands for all. An empty client id is the name of clients that send none.
    """
    return str(QuotaEntity(user, client_id, ip)) or ALL_CLIENTS


def counter_name(user: str, client_id: str) -> str:
    """The name of the clients that are counted together; an empty name stands for all."""
    return client_name(user or None, client_id or None)


def counted(number: int, noun: str) -> str:
    """A number of things as text: ``1 client``, ``2 clients``."""
    if number != 1:
        noun += "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}"


_OTHER_SPELLINGS: Final = {"client_id": EntityType.CLIENT_ID}


def parse_entity(text: str, *, other_spellings: bool = False) -> QuotaEntity:
    """The entity that a text such as ``user=alice,client-id=<default>`` names.

    Args:
        text: ``type=name`` pairs joined by commas. A name may be a JSON string, for example if it contains a comma,
            or if a user is really called ``<default>``.
        other_spellings: also accept ``client_id``, which people write.

    Returns:
        The entity, not yet checked: `quotas.limits.validate` does that.

    Raises:
        ValueError: a type is unknown or given twice, or the text has another form.
    """
    names = {each: name for each, (name, _) in parse_names(text, other_spellings=other_spellings).items()}
    return entity_of_names(names)


def parse_names(text: str, *, other_spellings: bool = False) -> dict[EntityType, tuple[Name, bool]]:
    """The parts of `parse_entity`: each name, and whether it was quoted."""
    names: dict[EntityType, tuple[Name, bool]] = {}
    rest = text.strip()
    while rest:
        type_text, equals, rest = rest.partition("=")
        if not equals:
            raise ValueError(f"expected type=name, such as client-id=app, found {type_text!r}")
        type_text = type_text.strip()
        if other_spellings:
            type_text = _OTHER_SPELLINGS.get(type_text, type_text)
        try:
            entity_type = EntityType(type_text)
        except ValueError:
            raise ValueError(f"unknown entity type {type_text!r}; {_types_text(type_text)}") from None
        if entity_type in names:
            raise ValueError(f"{entity_type} is given twice")
        rest = rest.lstrip()
        quoted = rest.startswith('"')
        name, rest = _parse_name(rest)
        names[entity_type] = name, quoted
    return names


def _types_text(wrong: str) -> str:
    close = get_close_matches(wrong.lower(), list(EntityType), n=1)
    known = f"types are {', '.join(EntityType)}"
    return f"did you mean {close[0]}? {known}" if close else known


def _parse_name(text: str) -> tuple[Name, str]:
    if not text.startswith('"'):
        bare, _, rest = text.partition(",")
        bare = bare.strip()
        return (DEFAULT if bare == DEFAULT.value else bare), rest.lstrip()
    try:
        name, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as exc:
        raise ValueError(f"a quoted name does not end: {text}") from exc
    rest = text[end:].lstrip()
    if rest and not rest.startswith(","):
        raise ValueError(f"expected a comma, found {rest!r}")
    return str(name), rest[1:].lstrip()
