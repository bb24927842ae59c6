"""Which gateways' records are not to be trusted, so that what their clients need is not known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pipeline.storage.coverage import short_gateways
from pipeline.storage.layout import CompactedDay

_SET_BACK_MS: Final = 1_000


def doubtful_gateways(days: Iterable[CompactedDay]) -> dict[str, str]:
    """Gateways whose clients' need can't be told from these days, and why.

    Where a clock was set back, seconds stand twice: what was used one after the other looks as used at once.
    """
    days = list(days)
    set_back: dict[str, int] = {}
    for day in days:
        for gw, by_ms in day.set_back_ms.items():
            set_back[gw] = max(by_ms, set_back.get(gw, 0))
    short = short_gateways(day.gateways for day in days)
    return {gw: f"is {share:.1%} complete" for gw, share in short.items()} | {
        gw: f"had its clock set back by {by_ms / 1000:.4g} s"
        for gw, by_ms in sorted(set_back.items())
        if by_ms > _SET_BACK_MS
    }
