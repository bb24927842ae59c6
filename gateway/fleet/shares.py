"""The message format of a fleet: the usage that a member has recorded since its last message. Pure.

One JSON object::

    {"v": 1, "id": "gw-1", "boot": "5f0c...", "seq": 17,
     "use": {"p": [[null, "alice", "", 52000]]},
     "hello": 1, "of": ["gw-2"], "again": [["gw-2", "7c1e...", [12, 14]]],
     "levels": {"p": [[null, "alice", "", 410000, 300000]]}, "to": [["gw-3", "91ab...", 4]], "last": true,
     "topic_use": {"p": [[null, "", "", "topic", "orders", 52000]]},
     "topic_levels": {"p": [[null, "alice", "", "user_topic", "orders", 410000, 300000]]},
     "bye": true, "repeated": true}

All but the first four fields are optional; a message without them is a sign of life. Counters are listed by quota:
``p`` (producer_byte_rate), ``f`` (consumer_byte_rate), ``r`` (request_percentage), ``m`` (controller_mutation_rate).
Each has the scope, user and client id by which it is counted, and an amount in units of the quota.

Further counters have fields of their own, which members of a version without them ignore:

* ``topic_use``, ``topic_levels``: counters of topics (``p``, ``f``), with the family of their quota and the topic.
* ``group_use``, ``group_levels``: counters of groups (``p``, ``f``, ``r``), with scope and group.
* ``group_mutation_use``, ``group_mutation_levels``: mutations of groups.
* ``rate_use``, ``rate_levels``: rates that Kafka does not have, by name of the quota; a member ignores unknown names.
* ``connection_use``, ``connection_levels``: rates of connections, by ``gateway``, ``listener`` or ``ip``, and
  by name.

Messages have no time, since clocks may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import orjson

from quotas.entities import FURTHER_RATE_KEYS, MAX_NAME_CHARS, TOPIC_FAMILIES, Family, QuotaKey
from quotas.group_quotas import CounterKey, GroupKey
from quotas.limits import GROUP_KEYS, group_name_fault
from quotas.rate_quotas import ScopedKey
from quotas.resolution import TrackerKey
from quotas.shared_rate import ConnectionKey
from quotas.topic_quotas import TopicKey

MOST_COUNTERS: Final = 2_000
"""The most counters in one message, which a receiver works on without a pause."""

MOST_BYTES: Final = 500_000
"""The most bytes of counters in one message. Kafka's clients refuse 1 MB, and each client's names may take 2 KB."""

_FORMAT: Final = 1
_CODES: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: "p",
    QuotaKey.CONSUMER_BYTE_RATE: "f",
    QuotaKey.REQUEST_PERCENTAGE: "r",
    QuotaKey.CONTROLLER_MUTATION_RATE: "m",
}
_KEYS: Final = {code: key for key, code in _CODES.items()}
_FURTHER_KEYS: Final = {key.value: key for key in (*FURTHER_RATE_KEYS, QuotaKey.CONNECTION_CREATION_RATE)}
_TOPIC_KEYS: Final = {code: _KEYS[code] for code in ("p", "f")}
_GROUP_KEYS: Final = {code: key for code, key in _KEYS.items() if key in GROUP_KEYS}
_MOST: Final = 1e18
_MOST_NAME_CHARS: Final = 255
_DIGITS: Final = 6
_COUNTER_BYTES: Final = 120
"""The most bytes of a counter without its names."""

_TOPIC: Final = "topic"
"""In place of a code, for all counters of topics."""

_GROUP: Final = "group:"
"""Before a code, for counters of groups."""

_CONNECTION_KINDS: Final = ("gateway", "listener", "ip")
_CONNECTION: Final = "connection:"
"""Before a kind, for rates of connections."""

T = TypeVar("T")


class MalformedShare(ValueError):
    """The bytes are no message of a member; they count for nothing."""


class Member(NamedTuple):
    """One run of a gateway or worker: its name, and a random text for each start."""

    id: str
    boot: str


Used: TypeAlias = tuple[CounterKey, float]
"""A counter and the amount recorded by it."""

Level: TypeAlias = tuple[CounterKey, float, float]
"""A counter, the total that its average comes from, and the fill of its bucket; see `RateTracker.level`."""

Told = TypeVar("Told", Used, Level)


class Answer(NamedTuple):
    """The question that levels answer: its sender, and the number of its message."""

    member: Member
    seq: int


class Again(NamedTuple):
    """The messages of a member that did not arrive."""

    member: Member
    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """One message.

    Attributes:
        member: the sender.
        seq: 1, 2, ... for each of its messages.
        use: usage recorded since its last message, by quota.
        hello: the sender asks for levels, for the first, second, ... time; 0: it does not.
        of: the members that are asked; empty: some of all.
        levels: the sender's levels, which include `use`.
        to: the questions that the levels answer.
        last: no more levels follow for these questions.
        again: requests to send messages again.
        repeated: the message was requested again.
        bye: the sender's last message.
    """

    member: Member
    seq: int
    use: Mapping[QuotaKey, Sequence[Used]] = field(default_factory=dict)
    hello: int = 0
    of: tuple[str, ...] = ()
    levels: Mapping[QuotaKey, Sequence[Level]] = field(default_factory=dict)
    to: tuple[Answer, ...] = ()
    last: bool = False
    bye: bool = False
    again: tuple[Again, ...] = ()
    repeated: bool = False

    @property
    def counters(self) -> int:
        """The number of counters in the message."""
        return sum(map(len, self.use.values())) + sum(map(len, self.levels.values()))


def told_amount(value: float) -> float:
    """A number as it is sent: whole if it nearly is, so that sender and receivers count the same."""
    rounded = round(value, _DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded


def in_messages(counters: Sequence[tuple[QuotaKey, Told]]) -> Iterator[Sequence[tuple[QuotaKey, Told]]]:
    """Counters, divided into parts for one message each; no parts for no counters."""
    begin = size = 0
    for at, (_, told) in enumerate(counters):
        key: CounterKey = told[0]
        names = _names(key)
        # In JSON, quotes take two bytes, characters beyond ASCII four, and control characters six.
        own_size = _COUNTER_BYTES + len(names) * (2 if names.isascii() and names.isprintable() else 6)
        if at - begin >= MOST_COUNTERS or (size + own_size > MOST_BYTES and at > begin):
            yield counters[begin:at]
            begin, size = at, 0
        size += own_size
    if begin < len(counters):
        yield counters[begin:]


def _names(key: CounterKey) -> str:
    if isinstance(key, ConnectionKey):
        return key.name
    if isinstance(key, GroupKey):
        return key.group
    names = "".join(key.tracker_key)
    return names + key.topic if isinstance(key, TopicKey) else names


def can_be_told(key: CounterKey) -> bool:
    """Whether the names of a counter can be sent as text: half of a surrogate pair cannot."""
    names = _names(key)
    return names.isascii() or not any("\ud800" <= each <= "\udfff" for each in names)


def encode_share(share: Share) -> bytes:
    """The message's bytes."""
    body: dict[str, Any] = {
        "v": _FORMAT,
        "id": share.member.id,
        "boot": share.member.boot,
        "seq": share.seq,
    }
    body |= _listed("use", share.use)
    if share.hello:
        body["hello"] = share.hello
    if share.of:
        body["of"] = share.of
    body |= _listed("levels", share.levels)
    if share.to:
        body["to"] = [(*answer.member, answer.seq) for answer in share.to]
    if share.last:
        body["last"] = True
    if share.bye:
        body["bye"] = True
    if share.again:
        body["again"] = [(*again.member, again.seqs) for again in share.again]
    if share.repeated:
        body["repeated"] = True
    return orjson.dumps(body)


def _listed(name: str, counters: Mapping[QuotaKey, Sequence[tuple[Any, ...]]]) -> dict[str, Any]:
    """The field of this name, and the fields of further counters, without empty ones."""
    fields: dict[str, dict[str, list[Any]]] = {}
    for quota, some in counters.items():
        for key, *values in some:
            if isinstance(key, ConnectionKey):
                of_kind = fields.setdefault(f"connection_{name}", {}).setdefault(key.kind, [])
                of_kind.append([key.name, *values])
                continue
            row = [key.scope, key.group] if isinstance(key, GroupKey) else [key.scope, *key.tracker_key]
            field_name = name if quota in _CODES else f"rate_{name}"
            if isinstance(key, GroupKey):
                field_name = (
                    f"group_mutation_{name}"
                    if quota is QuotaKey.CONTROLLER_MUTATION_RATE
                    else f"group_{name}"
                )
            if isinstance(key, TopicKey):
                row += [key.family, key.topic]
                field_name = f"topic_{name}"
            fields.setdefault(field_name, {}).setdefault(_CODES.get(quota, quota.value), []).append(
                [*row, *values]
            )
    return fields


def decode_share(data: bytes) -> Share:
    """The message in these bytes.

    Raises:
        MalformedShare: they are no message, or have another format.
    """
    try:
        body = orjson.loads(data)
        if body["v"] != _FORMAT:
            raise MalformedShare(f"format {body['v']!r}")
        return Share(
            Member(_name(body["id"]), _name(body["boot"])),
            _count(body["seq"], least=1),
            _counters(body, "use", _used),
            _count(body.get("hello", 0)),
            tuple(_name(each) for each in body.get("of", ())),
            _counters(body, "levels", _level),
            tuple(
                Answer(Member(_name(id_), _name(boot)), _count(seq)) for id_, boot, seq in body.get("to", ())
            ),
            body.get("last") is True,
            body.get("bye") is True,
            tuple(
                Again(Member(_name(id_), _name(boot)), tuple(_count(seq, least=1) for seq in seqs))
                for id_, boot, seqs in body.get("again", ())
            ),
            body.get("repeated") is True,
        )
    except MalformedShare:
        raise
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError, AttributeError) as exc:
        raise MalformedShare(f"{type(exc).__name__}: {exc}") from exc


def _counters(body: Any, name: str, read: Callable[[Any, str], T]) -> dict[QuotaKey, list[T]]:
    """The counters of all fields: of clients, topics, groups, further rates and connections."""
    found = {_KEYS[code]: [read(each, code) for each in some] for code, some in body.get(name, {}).items()}
    for code, some in body.get(f"topic_{name}", {}).items():
        found.setdefault(_TOPIC_KEYS[code], []).extend(read(each, _TOPIC) for each in some)
    for code, some in (
        *body.get(f"group_{name}", {}).items(),
        *body.get(f"group_mutation_{name}", {}).items(),
    ):
        found.setdefault(_GROUP_KEYS[code], []).extend(read(each, _GROUP + code) for each in some)
    for code, some in body.get(f"rate_{name}", {}).items():
        if code in _FURTHER_KEYS:
            found[_FURTHER_KEYS[code]] = [read(each, code) for each in some]
    for kind, some in body.get(f"connection_{name}", {}).items():
        if kind in _CONNECTION_KINDS:
            rates = found.setdefault(QuotaKey.CONNECTION_CREATION_RATE, [])
            rates.extend(read(each, _CONNECTION + kind) for each in some)
    return found


def _used(item: Any, code: str) -> Used:
    *names, value = item
    return _named(names, code), _amount(value, -_MOST if code.removeprefix(_GROUP) == "m" else 0.0)


def _level(item: Any, code: str) -> Level:
    *names, total, fill = item
    return _named(names, code), _amount(total, 0.0), _amount(fill, 0.0)


def _named(names: list[Any], code: str) -> CounterKey:
    if code.startswith(_GROUP):
        scope, group = names
        if type(group) is not str or group_name_fault(group) or not (scope is None or type(scope) is int):
            raise MalformedShare("no counter of a group")
        return GroupKey(scope, group)
    if code.startswith(_CONNECTION):
        (name,) = names
        if type(name) is not str or len(name) > _MOST_NAME_CHARS:
            raise MalformedShare("no rate of connections")
        return ConnectionKey(code.removeprefix(_CONNECTION), name)
    if code != _TOPIC:
        scope, user, client_id = names
        return _key(scope, user, client_id)
    scope, user, client_id, family, topic = names
    key = _key(scope, user, client_id)
    # The counting member has cut longer names already.
    if (
        type(topic) is not str
        or max(map(len, (*key.tracker_key, topic))) > MAX_NAME_CHARS
        or family not in TOPIC_FAMILIES
    ):
        raise MalformedShare("no counter of a topic")
    return TopicKey(scope, Family(family), topic, user, client_id)


def _key(scope: Any, user: Any, client_id: Any) -> ScopedKey:
    if type(user) is str and type(client_id) is str and (scope is None or type(scope) is int):
        return ScopedKey(scope, TrackerKey(user, client_id))
    raise MalformedShare("no counter")


def _amount(value: Any, least: float) -> float:
    if type(value) in (int, float) and least <= value <= _MOST and math.isfinite(value):
        return float(value)
    raise MalformedShare(f"no amount: {value!r:.40}")


def _count(value: Any, *, least: int = 0) -> int:
    if type(value) is int and least <= value < 2**63:
        return value
    raise MalformedShare(f"no count: {value!r:.40}")


def _name(value: Any) -> str:
    if type(value) is str and 0 < len(value) <= _MOST_NAME_CHARS:
        return value
    raise MalformedShare(f"no name: {value!r:.40}")
