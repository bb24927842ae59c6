"""Finds from the lines of gateways which gateways count together. Pure.

A client's demand does not depend on which counter counts it. Quotas are calculated for counters as they are now. So
the newest line of a gateway decides for all its days.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.errors import RefusedError
from pipeline.storage.entity_days import Scope
from pipeline.storage.layout import CompactedDay
from quotas.usage_record import FLEET


def fleets_of(days: Iterable[CompactedDay]) -> dict[str, str]:
    """The fleet with which each gateway shares its counters, by its lines. Other gateways count by themselves."""
    return {gw: scope for gw, scope in _newest(days).items() if scope.startswith(FLEET)}


def fleets_on(day: CompactedDay, fleets: Mapping[str, str]) -> dict[str, str]:
    """The entries of `fleets` for gateways of a day. An older release did not record a day's gateways."""
    return {gw: fleet for gw, fleet in sorted(fleets.items()) if gw in day.gateways or not day.gateways}


def recorded_scope(days: Iterable[CompactedDay]) -> Scope:
    """What one counter covers, by the newest lines. The gateway if no line names it.

    If only some gateways share counters, the scope is the fleet. The other gateways then count by themselves.

    Raises:
        RefusedError: some gateways count by broker and others do not.
    """
    newest = _newest(days)
    kinds = {gw: scope.partition(":")[0] for gw, scope in newest.items()}
    found = set(kinds.values())
    if Scope.BROKER in found and len(found) > 1:
        each = ", ".join(f"{scope} ({gw})" for gw, scope in sorted(kinds.items()))
        raise RefusedError(f"one counter covers {each}: say which with --scope")
    return next((scope for scope in (Scope.FLEET, Scope.BROKER) if scope in found), Scope.GATEWAY)


def _newest(days: Iterable[CompactedDay]) -> dict[str, str]:
    newest: dict[str, str] = {}
    for day in sorted(days, key=lambda day: day.date):
        newest |= day.scopes
    return newest
