"""A plan: which quotas to set, and why. `recommend` writes it, `plan show|diff|apply|revert` read it.

As JSON, one object. Every key is always present, with null where shown:

    {"format": "sluice-plan", "version": 1, "made_at": "2026-11-21T21:00:00Z",
     "basis": {"first_day": "2026-11-14", "last_day": "2026-11-20", "days": 7, "completeness": 0.9998,
               "target": 0.01, "margin": 1.15, "model": "deferral", "scope": "gateway", "window_num": 11,
               "window_ms": 1000, "open_days": ""},
     "capacity": [{"key": "producer_byte_rate", "limit": 2e8 | null, "allocated": 9e8, "peak": 1.6e8,
                   "over_allocation": 5.6, "fits": true, "note": "..."}],
     "entries": [{"entity": {"user": "alice", "client-id": null}, "key": "producer_byte_rate",
                  "action": "set" | "keep", "value": 1048576.0, "old": 524288.0 | null,
                  "lower": 911805.0, "upper": 1378000.0, "expected_throttled": 0.004 | null,
                  "days": 7, "censored": 0.0, "reason": "..."}],
     "left_out": [{"gateway": "gw-3", "date": "2026-11-16", "reason": "is 50.0% complete", "clients": 38}],
     "too_little": [{"client": "produce of user=bob", "reason": "..."}]}

An entity names its components as in AlterClientQuotas: an absent type is not part of the entity, and null is the
default entity. `keep` means that the quota in force lies within [lower, upper]: `value` repeats it, and nothing
changes. Shares are fractions of 1; values are in the key's unit (bytes, percent, partitions or connections per
second).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final

from quotas.entities import DEFAULT, Default, EntityType, Name, QuotaEntity, QuotaKey, entity_of_names
from quotas.limits import validate

FORMAT: Final = "sluice-plan"
VERSION: Final = 1
MAX_ENTRIES: Final = 1_000_000
_NAMED: Final = 20


class PlanError(ValueError):
    """A text is not a plan; the message says where and what was found."""


class Action(StrEnum):
    """What a plan does with a quota."""

    SET = "set"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One quota.

    Attributes:
        value: the quota that should be in force.
        old: the quota in force when the records were made; None: none or not known.
        lower, upper: a quota in force between them is left alone.
        expected_throttled: share of units that would have waited over the history with `value`; None: not computed
            (for a default, which covers unknown clients).
        days: the number of days of history that were used.
        censored: share of active seconds in which the client was muted, so that its real demand is not known.
        reason: text for the operator.
    """

    entity: QuotaEntity
    key: QuotaKey
    action: Action
    value: float
    old: float | None
    lower: float
    upper: float
    expected_throttled: float | None
    days: int
    censored: float
    reason: str


@dataclass(frozen=True, slots=True)
class CapacityCheck:
    """The sum of all quotas of one key, compared with the capacity.

    Attributes:
        limit: what the cluster can take, as the operator says; None: not given.
        allocated: sum of the quotas in the plan.
        peak: the most that all clients together used in ten seconds, per second.
        over_allocation: `allocated` divided by `peak`; 0 if nothing was used.
        fits: whether the peak is within the limit; True without a limit.
        note: text for the operator.
    """

    key: QuotaKey
    limit: float | None
    allocated: float
    peak: float
    over_allocation: float
    fits: bool
    note: str


@dataclass(frozen=True, slots=True)
class Basis:
    """The data behind a plan: days (ISO), completeness of their records, the rule, and what one counter covers.

    Attributes:
        scope: `fleet` if all gateways of a fleet count together, `gateway` if the brokers of each gateway do,
        `broker`
            if each broker counts by itself.
        window_num, window_ms: number and length of a rate's samples.
        open_days: days that were not closed when they were compacted, separated by commas.
    """

    first_day: str
    last_day: str
    days: int
    completeness: float
    target: float
    margin: float
    model: str
    scope: str = "gateway"
    window_num: int = 11
    window_ms: int = 1_000
    open_days: str = ""

    def notes(self) -> list[str]:
        """Warnings for the operator before the plan is applied."""
        if not self.open_days:
            return []
        return [f"not over when compacted, so quotas may be too low: {self.open_days}"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Days of clients that a plan does not use, because a gateway's records of the day are not trusted.

    Attributes:
        gateway: its name; empty for all gateways.
        date: the day; empty in a plan of an older release, for all days.
        reason: the fault of its records, beginning with a verb.
        clients: the number of clients whose day is left out.
    """

    gateway: str
    date: str
    reason: str
    clients: int

    def text(self) -> str:
        """Text for the operator."""
        what = "this day" if self.date else "all days"
        when = f"{self.date}: " if self.date else ""
        return (
            f"{when}{self.gateway or 'every gateway'} {self.reason}; {what} of {self.clients} "
            f"client{'s' * (self.clients != 1)} {'is' if self.date else 'are'} left out"
        )


@dataclass(frozen=True, slots=True)
class TooLittle:
    """A client without a quota in the plan, because all of its days were left out, or it was seen too briefly.

    Attributes:
        client: API and name.
        reason: the days that were left out, and because of which gateways; or how long it was seen.
    """

    client: str
    reason: str


def too_little_text(clients: Sequence[TooLittle]) -> str:
    """Text for the operator; empty without such clients."""
    if not clients:
        return ""
    named = ", ".join(f"{each.client} ({each.reason})" for each in clients[:_NAMED])
    more = " ..." if len(clients) > _NAMED else ""
    return (
        f"no quota for {len(clients)} of the clients and APIs, as too little is known of them: {named}{more}"
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan; the module's docstring describes its fields."""

    made_at: str
    basis: Basis
    capacity: tuple[CapacityCheck, ...]
    entries: tuple[PlanEntry, ...]
    left_out: tuple[LeftOut, ...] = ()
    too_little: tuple[TooLittle, ...] = ()

    def to_json(self) -> str:
        """The plan as text, one entry per line so that two plans can be compared line by line."""
        capacity = _list_of([asdict(each) for each in self.capacity])
        entries = _list_of([_entry_to_json(each) for each in self.entries])
        parts = [
            f'"format": "{FORMAT}", "version": {VERSION}, "made_at": {_dump(self.made_at)}',
            f'"basis": {_dump(asdict(self.basis))}',
            f'"capacity": {capacity}',
            f'"entries": {entries}',
            f'"left_out": {_list_of([asdict(each) for each in self.left_out])}',
            f'"too_little": {_list_of([asdict(each) for each in self.too_little])}',
        ]
        return "{" + ",\n ".join(parts) + "}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """The plan that `to_json` wrote.

        Raises:
            PlanError: the text is not JSON, not a plan, of another version, or has a quota that Kafka would refuse.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise PlanError(f"a plan is a JSON object, this is none: {exc}") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise PlanError(f'a plan is a JSON object with "format": "{FORMAT}"')
        if data.get("version") != VERSION:
            raise PlanError(f"version: this program reads {VERSION}, not {data.get('version')!r}")
        check_keys(data, ("format", "version", *names_of(cls)), "plan")
        entries = _field(data, "entries", list, "plan")
        # Plans of older releases lack both keys, or name clients in the first one.
        left_out, too_little = data.get("left_out") or (), data.get("too_little") or ()
        if len(entries) > MAX_ENTRIES:
            raise PlanError(f"entries: at most {MAX_ENTRIES}, not {len(entries)}")
        return cls(
            made_at=_field(data, "made_at", str, "plan"),
            basis=_basis(_field(data, "basis", dict, "plan")),
            capacity=tuple(
                _capacity(each, f"capacity[{i}]")
                for i, each in enumerate(_field(data, "capacity", list, "plan"))
            ),
            entries=tuple(_entry(each, f"entries[{i}]") for i, each in enumerate(entries)),
            left_out=tuple(_left_out(each, f"left_out[{i}]") for i, each in enumerate(left_out)),
            too_little=(
                *(
                    each
                    for i, one in enumerate(left_out)
                    for each in _clients_left_out(one, f"left_out[{i}]")
                ),
                *(_too_little(each, f"too_little[{i}]") for i, each in enumerate(too_little)),
            ),
        )


def entity_to_json(entity: QuotaEntity) -> dict[str, str | None]:
    """The components of an entity; null means the default."""
    return {
        str(entity_type): None if isinstance(name, Default) else name
        for entity_type, name in entity.components()
    }


def entity_from_json(data: Mapping[str, Any], where: str) -> QuotaEntity:
    """The entity that `entity_to_json` wrote.

    Args:
        data: its JSON.
        where: its place, for errors.

    Raises:
        PlanError: a type is unknown or a name is neither text nor null.
    """
    names: dict[EntityType, Name] = {}
    for type_text, name in data.items():
        try:
            entity_type = EntityType(type_text)
        except ValueError:
            raise PlanError(f"{where}: entity: {type_text!r} is not one of {', '.join(EntityType)}") from None
        if name is not None and not isinstance(name, str):
            raise PlanError(f"{where}: entity: the name of {type_text} is text or null, not {name!r}")
        names[entity_type] = DEFAULT if name is None else name
    return entity_of_names(names)


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """The names of a dataclass's fields, which are the keys of its JSON."""
    return tuple(field.name for field in fields(kind))


def check_keys(data: Any, known: Sequence[str], where: str) -> None:
    """Checks that an object has no unknown key.

    Raises:
        PlanError: it has one; the message names the key, its place and the known keys.
    """
    wrong = next((name for name in data if name not in known), None) if isinstance(data, dict) else None
    if wrong is not None:
        raise PlanError(f"{where}: unknown key {wrong!r}; known keys: {', '.join(known)}")


def _list_of(items: list[dict[str, Any]]) -> str:
    if not items:
        return "[]"
    return "[\n  " + ",\n  ".join(_dump(each) for each in items) + "]"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _entry_to_json(entry: PlanEntry) -> dict[str, Any]:
    data: dict[str, Any] = {"entity": entity_to_json(entry.entity)}
    for name in ("key", "action", "value", "old", "lower", "upper", "expected_throttled", "days", "censored"):
        data[name] = getattr(entry, name)
    return {**data, "reason": entry.reason}


def _field(data: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(data, dict) or name not in data:
        raise PlanError(f"{where}: {name} is missing")
    value = data[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise PlanError(f"{where}: {name} is {kind.__name__}, not {value!r}")
    return value


def _number(data: Any, name: str, where: str) -> float:
    value = _optional(data, name, where)
    if value is None:
        raise PlanError(f"{where}: {name} is a number, not null")
    return value


def _optional(data: Any, name: str, where: str) -> float | None:
    if not isinstance(data, dict) or name not in data:
        raise PlanError(f"{where}: {name} is missing")
    value = data[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PlanError(f"{where}: {name} is a finite number, not {value!r}")
    return float(value)


_COUNTING: Final[dict[str, type[Any]]] = {"scope": str, "window_num": int, "window_ms": int, "open_days": str}


def _basis(data: dict[str, Any]) -> Basis:
    check_keys(data, names_of(Basis), "basis")
    return Basis(
        first_day=_field(data, "first_day", str, "basis"),
        last_day=_field(data, "last_day", str, "basis"),
        days=_field(data, "days", int, "basis"),
        completeness=_number(data, "completeness", "basis"),
        target=_number(data, "target", "basis"),
        margin=_number(data, "margin", "basis"),
        model=_field(data, "model", str, "basis"),
        # Plans of older releases lack these keys; the defaults are the values of those releases.
        **{name: _field(data, name, kind, "basis") for name, kind in _COUNTING.items() if name in data},
    )


def _key(data: Any, where: str) -> QuotaKey:
    name = _field(data, "key", str, where)
    try:
        return QuotaKey(name)
    except ValueError:
        raise PlanError(f"{where}: key {name!r} is not one of {', '.join(QuotaKey)}") from None


def _capacity(data: Any, where: str) -> CapacityCheck:
    check_keys(data, names_of(CapacityCheck), where)
    key = _key(data, where)
    fits = data.get("fits")
    if not isinstance(fits, bool):
        raise PlanError(f"{where}: fits is true or false, not {fits!r}")
    return CapacityCheck(
        key=key,
        limit=_optional(data, "limit", where),
        allocated=_number(data, "allocated", where),
        peak=_number(data, "peak", where),
        over_allocation=_number(data, "over_allocation", where),
        fits=fits,
        note=_field(data, "note", str, where),
    )


def _left_out(data: Any, where: str) -> LeftOut:
    check_keys(data, names_of(LeftOut), where)
    gateway, reason = _field(data, "gateway", str, where), _field(data, "reason", str, where)
    if isinstance(data.get("clients"), list):
        return LeftOut(gateway, "", reason, len(data["clients"]))
    return LeftOut(gateway, _field(data, "date", str, where), reason, _field(data, "clients", int, where))


def _clients_left_out(data: Any, where: str) -> list[TooLittle]:
    """The clients that a plan of an older release names."""
    clients = data.get("clients")
    reason = f"{_field(data, 'gateway', str, where)} {_field(data, 'reason', str, where)}"
    return [TooLittle(str(client), reason) for client in clients] if isinstance(clients, list) else []


def _too_little(data: Any, where: str) -> TooLittle:
    check_keys(data, names_of(TooLittle), where)
    return TooLittle(_field(data, "client", str, where), _field(data, "reason", str, where))


def _entry(data: Any, where: str) -> PlanEntry:
    check_keys(data, names_of(PlanEntry), where)
    entity = entity_from_json(_field(data, "entity", dict, where), where)
    key = _key(data, where)
    value = _number(data, "value", where)
    fault = validate(entity, key, value)
    if fault is not None:
        raise PlanError(f"{where}: {fault}")
    action = _field(data, "action", str, where)
    if action not in list(Action):
        raise PlanError(f"{where}: action {action!r} is not one of {', '.join(Action)}")
    return PlanEntry(
        entity=entity,
        key=key,
        action=Action(action),
        value=value,
        old=_optional(data, "old", where),
        lower=_number(data, "lower", where),
        upper=_number(data, "upper", where),
        expected_throttled=_optional(data, "expected_throttled", where),
        days=_field(data, "days", int, where),
        censored=_number(data, "censored", where),
        reason=_field(data, "reason", str, where),
    )
