"""Which quota applies to a client, and which counter it uses (KIP-55; Kafka's DefaultQuotaCallback).

A match has two parts. The *limit* comes from the first configured of eight levels. The *tracker key* decides which
clients share the counter. A level of user and client counts each pair alone. A user level counts all clients of that
user together. A client level counts that client id across all users. This holds for defaults too: each client that a
default matches has its own counter.

If prefixes are allowed (`Limits.prefixes`), ``team-a-*`` is between the exact name and the default, first for the
user and then for the client id. A longer prefix precedes a shorter one. All clients that match a prefix count as one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from quotas.entities import DEFAULT, EntityType, Family, Name, QuotaEntity, QuotaKey
from quotas.lending import Claim, Cut
from quotas.limits import Limits
from quotas.trackers import UNLIMITED, SharedBy


class Rule(StrEnum):
    """The eight levels, of which the first match wins; topics and groups, which all apply; CAPACITY; NONE.

    CAPACITY is the counter that new clients share. Closed: it is a metric label.
    """

    USER_CLIENT = "user_client"
    USER_DEFAULT_CLIENT = "user_default_client"
    USER = "user"
    DEFAULT_USER_CLIENT = "default_user_client"
    DEFAULT_USER_DEFAULT_CLIENT = "default_user_default_client"
    DEFAULT_USER = "default_user"
    CLIENT = "client"
    DEFAULT_CLIENT = "default_client"
    TOPIC = "topic"
    USER_TOPIC = "user_topic"
    CLIENT_TOPIC = "client_topic"
    GROUP = "group"
    CAPACITY = "capacity"
    NONE = "none"


class TrackerKey(NamedTuple):
    """The key of a counter. An empty field stands for all: ``("alice", "")`` is all clients of alice."""

    user: str
    client_id: str


@dataclass(frozen=True, slots=True)
class Match:
    """The quota of one client for one key."""

    limit: float | None  # in the key's unit per second; None is unlimited
    rule: Rule
    tracker_key: TrackerKey
    observe: bool = False  # computed and reported, without a wait
    beside: QuotaEntity | None = None  # the topic or group that a quota beside the eight levels is set for
    share: float = 1.0  # the limit's part of the configured one; see `Limits.set_share`
    burst_s: float | None = None  # the size of the counter's bucket in seconds; None: Kafka's window
    lent: Claim | None = None  # the limit is this claim's share of a capacity; None: the configured one
    cut: Cut | None = None  # why the limit is less than that share

    @property
    def whole_limit(self) -> float | None:
        """The configured limit."""
        limit = self.limit
        if self.lent is not None:
            limit = None if self.lent.ceiling == math.inf else self.lent.ceiling
        if limit is None or self.share == 1.0:
            return limit
        return round(limit / self.share, 6)

    @property
    def is_below_ceiling(self) -> bool:
        """Whether the limit is a share of a capacity that is less than the configured one."""
        return self.lent is not None and self.limit is not None and self.limit < self.lent.ceiling

    @property
    def shared_by(self) -> SharedBy:
        """The configured limit, by which clients share counters. Isolation from a fleet does not change it."""
        whole_limit = self.whole_limit
        if whole_limit is None:
            return UNLIMITED
        return whole_limit if self.burst_s is None else (whole_limit, self.burst_s)


@dataclass(frozen=True, slots=True)
class Step:
    """One level of the walk, for people: `sluice quotas` prints them."""

    rule: Rule
    entity: QuotaEntity
    limit: float | None  # the limit configured for exactly this entity
    applies: bool  # whether this level decides


_FAMILY_OF_RULE: Final = {
    Rule.USER_CLIENT: Family.USER_CLIENT,
    Rule.USER_DEFAULT_CLIENT: Family.USER_CLIENT,
    Rule.USER: Family.USER,
    Rule.DEFAULT_USER_CLIENT: Family.USER_CLIENT,
    Rule.DEFAULT_USER_DEFAULT_CLIENT: Family.USER_CLIENT,
    Rule.DEFAULT_USER: Family.USER,
    Rule.CLIENT: Family.CLIENT,
    Rule.DEFAULT_CLIENT: Family.CLIENT,
}
_EIGHT: Final = tuple(_FAMILY_OF_RULE)
_RULES_OF_FAMILY: Final = {
    family: tuple(rule for rule in _EIGHT if _FAMILY_OF_RULE[rule] is family) for family in Family
}
_DEFAULT_USER_RULES: Final = frozenset(
    {Rule.DEFAULT_USER_CLIENT, Rule.DEFAULT_USER_DEFAULT_CLIENT, Rule.DEFAULT_USER}
)
_DEFAULT_CLIENT_RULES: Final = frozenset(
    {Rule.USER_DEFAULT_CLIENT, Rule.DEFAULT_USER_DEFAULT_CLIENT, Rule.DEFAULT_CLIENT}
)


def resolve(limits: Limits, key: QuotaKey, user: str, client_id: str) -> Match:
    """The quota that applies to this client for one key.

    Args:
        limits: the configured quotas.
        key: any key. For connection_creation_rate the result is the users' quota; those of addresses are in
            `quotas.ip_limits`.
        user: the principal's name, ``ANONYMOUS`` without authentication.
        client_id: the client id of this request; "" when it has none.

    Returns:
        The match; `Rule.NONE` with no limit when nothing applies. Its tracker key is valid then too, because
        unlimited clients are counted as long as the key has any quota.
    """
    if limits.prefixes:
        user, client_id = _as_set(limits, key, user, client_id)
    family = limits.sole_family(key)
    if family is None:
        # With several families active, the level that matches decides which clients share the counter.
        rule, _ = _first(limits, key, user, client_id, _EIGHT)
        family = Family.CLIENT if rule is Rule.NONE else _FAMILY_OF_RULE[rule]
    return _match(limits, key, family, _tracker_key(family, user, client_id))


def match_of_tracker(limits: Limits, key: QuotaKey, tracker_key: TrackerKey) -> Match:
    """The quota of an existing counter after a change of the limits: the one that its own key alone can match."""
    user, client_id = tracker_key
    if user and (client_id or _shadowed_pair(limits, key, user)):
        family = Family.USER_CLIENT
    else:
        family = Family.USER if user else Family.CLIENT
    return _match(limits, key, family, tracker_key)


def match_of_group(limits: Limits, key: QuotaKey, group: str) -> Match | None:
    """The quota of a group; None without one, and without such a group."""
    entity = QuotaEntity(group=group)
    limit = limits.get(entity, key)
    if limit is None or group not in limits.groups:
        return None
    return Match(
        limit * limits.share,
        Rule.GROUP,
        TrackerKey("", ""),
        limits.observes(entity),
        entity,
        limits.share,
        limits.burst_s(entity, key),
    )


def matches_of_groups(
    limits: Limits, key: QuotaKey, user: str, client_id: str, address: str = ""
) -> list[Match]:
    """The quotas of a client's groups, which count its use beside its own.

    Args:
        limits: the configured quotas and groups.
        key: one that groups may have.
        user, client_id: see `resolve`.
        address: the client's address; "": it is not known, so groups by address are left out.
    """
    of_client = limits.groups.of(user, client_id, address)
    found = (match_of_group(limits, key, group) for group in of_client)
    return [match for match in found if match is not None]


def entity_of(match: Match) -> QuotaEntity | None:
    """The entity whose quota matched; None without a quota."""
    if match.beside is not None:
        return match.beside
    return _entity(match.rule, *match.tracker_key) if match.rule in _FAMILY_OF_RULE else None


def walk(limits: Limits, key: QuotaKey, user: str, client_id: str) -> list[Step]:
    """All eight levels in order, and which of them decides for this client.

    At most one step applies. None does when the client is unlimited.
    """
    match = resolve(limits, key, user, client_id)
    if limits.prefixes:
        user, client_id = _as_set(limits, key, user, client_id)
    return [
        Step(rule, entity, limits.get(entity, key), rule is match.rule)
        for rule in _EIGHT
        for entity in (_entity(rule, user, client_id),)
    ]


def _as_set(limits: Limits, key: QuotaKey, user: str, client_id: str) -> tuple[str, str]:
    """The client by the names that decide. A deciding prefix makes all clients that match it one client."""
    users = limits.prefixes_of(key, EntityType.USER, user)
    clients = limits.prefixes_of(key, EntityType.CLIENT_ID, client_id)
    if users or clients:
        for named_user in (user, *users, DEFAULT, None):
            for named_client in (client_id, *clients, DEFAULT, None):
                if limits.get(QuotaEntity(named_user, named_client), key) is not None:
                    return (
                        named_user if isinstance(named_user, str) else user,
                        named_client if isinstance(named_client, str) else client_id,
                    )
    return user, client_id


def _first(
    limits: Limits, key: QuotaKey, user: str, client_id: str, rules: tuple[Rule, ...]
) -> tuple[Rule, float | None]:
    for rule in rules:
        limit = limits.get(_entity(rule, user, client_id), key)
        if limit is not None:
            return rule, limit
    return Rule.NONE, None


def _entity(rule: Rule, user: str, client_id: str) -> QuotaEntity:
    users: Name = DEFAULT if rule in _DEFAULT_USER_RULES else user
    clients: Name = DEFAULT if rule in _DEFAULT_CLIENT_RULES else client_id
    family = _FAMILY_OF_RULE[rule]
    return QuotaEntity(
        user=None if family is Family.CLIENT else users,
        client_id=None if family is Family.USER else clients,
    )


def _tracker_key(family: Family, user: str, client_id: str) -> TrackerKey:
    return TrackerKey(
        "" if family is Family.CLIENT else user,
        "" if family is Family.USER else client_id,
    )


def _match(limits: Limits, key: QuotaKey, family: Family, tracker_key: TrackerKey) -> Match:
    """The match that gives a counter its limit.

    Kafka looks the limit up by the counter's tags, so it cannot distinguish an empty name from a missing one: the
    pair (user, "") is looked up as the user, and ("", "") as no client. ``as_named`` keeps the family that was
    matched instead.
    """
    user, client_id = tracker_key
    if limits.empty_client_id == "kafka":
        if not client_id:
            family = Family.USER
        if not user:
            family = Family.CLIENT
        if not user and not client_id:
            return Match(None, Rule.NONE, tracker_key)
    rule, limit = _first(limits, key, user, client_id, _RULES_OF_FAMILY[family])
    if limit is not None and limits.share != 1.0:
        limit *= limits.share
    if rule is Rule.NONE:
        return Match(limit, rule, tracker_key, share=limits.share)
    entity = _entity(rule, user, client_id)
    burst_s = limits.burst_s(entity, key)
    return Match(limit, rule, tracker_key, limits.observes(entity), share=limits.share, burst_s=burst_s)


def _shadowed_pair(limits: Limits, key: QuotaKey, user: str) -> bool:
    """Whether (user, "") counts the client without an id and not all of the user's clients.

    Both cannot be in use at once: a user with a default-client level never reaches the user level.
    """
    if limits.empty_client_id == "kafka":
        return False
    if limits.sole_family(key) is not None:
        return limits.sole_family(key) is Family.USER_CLIENT
    rule, _ = _first(limits, key, user, "", _EIGHT)
    return rule is not Rule.NONE and _FAMILY_OF_RULE[rule] is Family.USER_CLIENT
