"""Reads a TOML file of prices for use and of shared costs. Pure, except for reading the file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pipeline.errors import ArgumentError

STORED_BYTE_HOURS: Final = "stored_byte_hours"
"""The amount whose price is for a month: bytes on brokers' disks, for an hour each."""

PER: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "gb_in": ("bytes_in", 10**9),
        "gb_out": ("bytes_out", 10**9),
        "request_hour": ("request_us", 3_600 * 10**6),
        "partition_mutation": ("mutations", 1),
        "connection": ("connections", 1),
        "stored_gb_month": (STORED_BYTE_HOURS, 10**9),
    }
)
"""For each key of [prices]: its amount, and how much of the amount has the price.

An amount of `STORED_BYTE_HOURS` is also divided by the hours of the month."""

IDLE: Final = "idle"
"""The column of idle cost."""

_MOST: Final = 10**9
"""A limit that keeps sums exact: decimal numbers have 28 digits."""


class Split(StrEnum):
    """How a cost is divided among teams."""

    WEIGHTED = "weighted"
    """In proportion to each team's payment for its use."""
    EVEN = "even"
    """In equal parts."""
    SEPARATE = "separate"
    """Not divided: the cost has a line of its own. Only for idle cost."""


@dataclass(frozen=True, slots=True)
class SharedCost:
    """A cost of all teams."""

    name: str
    monthly_cost: Decimal
    split: Split


@dataclass(frozen=True, slots=True)
class Prices:
    """The content of the file.

    Attributes:
        currency: its name, as text.
        prices: by key of `PER`; amounts without a price cost nothing.
        cluster: the cost of the cluster in a month; None: there is no idle cost.
        idle: how the cost that no use pays for is divided.
        shared: further costs.
    """

    currency: str
    prices: Mapping[str, Decimal]
    cluster: Decimal | None = None
    idle: Split = Split.SEPARATE
    shared: tuple[SharedCost, ...] = ()


def read_prices(text: str) -> Prices:
    """Reads the prices in a text.

    Raises:
        ValueError: the text breaks a rule; the message says where.
    """
    try:
        tables = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"not TOML: {exc}") from None
    _check_keys(tables, ("currency", "prices", "cluster", "shared"), "")
    currency = tables.get("currency")
    if not isinstance(currency, str) or not currency.isprintable() or not 1 <= len(currency) <= 10:
        raise ValueError("currency: is not a text of 1 to 10 characters")
    prices, cluster, shared = tables.get("prices", {}), tables.get("cluster", {}), tables.get("shared", [])
    if not isinstance(prices, dict) or not isinstance(cluster, dict):
        raise ValueError("prices, cluster: are not tables")
    if not isinstance(shared, list) or not all(isinstance(each, dict) for each in shared):
        raise ValueError("shared: is not an array of tables: [[shared]]")
    _check_keys(prices, tuple(PER), "prices.")
    _check_keys(cluster, ("monthly_cost", "idle"), "cluster.")
    if "idle" in cluster and "monthly_cost" not in cluster:
        raise ValueError("cluster.monthly_cost: required with idle, but missing")
    found = tuple(_shared(each, f"shared.{at}.") for at, each in enumerate(shared))
    names = [*PER, IDLE, *(each.name for each in found)]
    for at, each in enumerate(found):
        if names.index(each.name) < len(PER) + 1 + at:
            raise ValueError(f"shared.{at}.name: {each.name} is another column already")
    return Prices(
        currency,
        {key: _amount(prices, key, "prices.") for key in prices},
        _amount(cluster, "monthly_cost", "cluster.") if cluster else None,
        _split(cluster.get("idle", Split.SEPARATE), tuple(Split), "cluster.idle"),
        found,
    )


def prices_of(file: str) -> Prices:
    """Reads the prices in a file.

    Raises:
        ArgumentError: as `read_prices`.
    """
    try:
        return read_prices(Path(file).read_text(encoding="utf-8"))
    except ValueError as exc:
        raise ArgumentError(f"{file}: {exc}") from None


def _shared(table: Mapping[str, Any], place: str) -> SharedCost:
    _check_keys(table, ("name", "monthly_cost", "split"), place)
    name = table.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"{place}name: is not a text of at least one character")
    ways = (Split.WEIGHTED, Split.EVEN)
    split = _split(table.get("split", Split.WEIGHTED), ways, f"{place}split")
    return SharedCost(name, _amount(table, "monthly_cost", place), split)


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        raise ValueError(f"{place}{unknown}: unknown key; known keys: {', '.join(known)}")


def _amount(table: Mapping[str, Any], key: str, place: str) -> Decimal:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError(f"{place}{key}: {'required, but missing' if value is None else 'is not a number'}")
    amount = Decimal(value)
    if not amount.is_finite() or not 0 <= amount <= _MOST:
        raise ValueError(f"{place}{key}: is not a number from 0 to {_MOST}")
    return amount


def _split(value: Any, allowed: tuple[Split, ...], place: str) -> Split:
    if value not in allowed:
        raise ValueError(f"{place}: is not one of {', '.join(allowed)}")
    return Split(value)
