"""Reads a TOML file of what clients and teams may claim of a capacity. Pure, except for reading the file.

A file has only ``[[claims]]``. Names may end in a star. The first claim whose names fit applies to a client. Each
client claims for itself.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pipeline.errors import ArgumentError
from pipeline.replay.demand import KEY_OF_API
from quotas.entities import QuotaKey
from quotas.lending import DEFAULT_TIER, TIERS, Claim
from quotas.units import KINDS, UnitError, amount_of
from quotas.usage_record import UsageApi

_NAMES: Final = ("team", "user", "client_id")
_AMOUNTS: Final = ("floor", "ceiling")
_KEYS: Final = (*_NAMES, "tier", "weight", *_AMOUNTS)


@dataclass(frozen=True, slots=True)
class Claimant:
    """A client or team whose use is counted together.

    Attributes:
        user, client_id: names of a client as in records; "" is shared, and a team has neither.
        team: the team's name; "": a client.
    """

    user: str = ""
    client_id: str = ""
    team: str = ""

    def __str__(self) -> str:
        """The claimant as text."""
        if self.team:
            return f"team={self.team}"
        names = (("user", self.user), ("client-id", self.client_id))
        return ",".join(f"{name}={value}" for name, value in names if value) or "(no name)"


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """What some clients or a team may claim.

    Attributes:
        names: the names that it applies to; None: any. A star at the end stands for any rest.
        tier: None: not given.
        weight: > 0.
        floor, ceiling: per second, by quota.
    """

    names: Mapping[str, str]
    tier: int | None
    weight: float
    floor: Mapping[QuotaKey, float]
    ceiling: Mapping[QuotaKey, float]

    def is_of(self, claimant: Claimant) -> bool:
        """Whether the rule applies to this claimant."""
        if bool(claimant.team) != ("team" in self.names):
            return False
        return all(_fits(pattern, getattr(claimant, name)) for name, pattern in self.names.items())


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


@dataclass(frozen=True, slots=True)
class Claims:
    """All rules, and the tiers of teams without a tier in their rule."""

    rules: tuple[ClaimRule, ...] = ()
    tiers: Mapping[str, int] = field(default_factory=dict)

    def claim(self, claimant: Claimant, key: QuotaKey, demand: float) -> Claim:
        """The claim on the capacity of a quota, for `quotas.lending.divide`.

        Args:
            claimant: the client or team.
            key: the quota.
            demand: its required rate, in the key's unit per second.
        """
        rule = next((rule for rule in self.rules if rule.is_of(claimant)), None)
        tier = self.tiers.get(claimant.team, DEFAULT_TIER)
        if rule is None:
            return Claim(tier=tier, demand=demand)
        return Claim(
            rule.floor.get(key, 0.0),
            rule.ceiling.get(key, math.inf),
            rule.weight,
            tier if rule.tier is None else rule.tier,
            demand,
        )


def read_claims(text: str) -> tuple[ClaimRule, ...]:
    """Reads the rules in a text.

    Raises:
        ValueError: the text breaks a rule; the message says where.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"not TOML: {exc}") from None
    _check_keys(tables, ("claims",), "")
    found = tables.get("claims", [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError("claims: is not an array of tables: [[claims]]")
    return tuple(_rule(table, f"claims.{at}.") for at, table in enumerate(found))


def claims_of(file: str | None, tiers: Mapping[str, int]) -> Claims:
    """The claims in a file; no claims without a file.

    Raises:
        ArgumentError: as `read_claims`.
    """
    if file is None:
        return Claims((), tiers)
    try:
        return Claims(read_claims(Path(file).read_text(encoding="utf-8")), tiers)
    except ValueError as exc:
        raise ArgumentError(f"{file}: {exc}") from None


def _rule(table: Mapping[str, Any], place: str) -> ClaimRule:
    _check_keys(table, _KEYS, place)
    names = {name: table[name] for name in _NAMES if name in table}
    for name, value in names.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"{place}{name}: is not a text of at least one character")
    if not names or ("team" in names and len(names) > 1):
        raise ValueError(f"{place[:-1]}: names neither a team, nor a user or a client_id; or more than that")
    tier = table.get("tier")
    if tier is not None and (type(tier) is not int or not 0 <= tier < TIERS):
        raise ValueError(f"{place}tier: is not a whole number in 0..{TIERS - 1}")
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ValueError(f"{place}weight: is not a number above 0")
    floor, ceiling = (_amounts(table.get(name, {}), f"{place}{name}") for name in _AMOUNTS)
    for key in floor.keys() & ceiling.keys():
        if floor[key] > ceiling[key]:
            raise ValueError(f"{place}floor: is above the ceiling of {key}")
    return ClaimRule(names, tier, float(weight), floor, ceiling)


def _amounts(table: Any, place: str) -> dict[QuotaKey, float]:
    if not isinstance(table, dict):
        raise ValueError(f'{place}: is not a table, such as {{ produce = "50MB/s" }}')
    _check_keys(table, tuple(map(str, UsageApi)), f"{place}.")
    found = {}
    for api, value in table.items():
        key = KEY_OF_API[UsageApi(api)]
        try:
            amount = amount_of(value, KINDS[key]) if isinstance(value, str) else value
        except UnitError as exc:
            raise ValueError(f"{place}.{api}: {exc}") from None
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
            raise ValueError(f"{place}.{api}: is not a number of at least 0")
        found[key] = float(amount)
    return found


def _check_keys(table: Iterable[str], known: tuple[str, ...], place: str) -> None:
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        raise ValueError(f"{place}{unknown}: unknown key; known keys: {', '.join(known)}")
