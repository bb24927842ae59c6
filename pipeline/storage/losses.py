"""The known losses of each day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.storage.coverage import Coverage, DayCoverage, Expectation, coverage
from pipeline.storage.layout import CompactedDay
from pipeline.storage.raw_table import read_raw_state


def with_losses(days: Sequence[CompactedDay], out: str, expectation: Expectation) -> list[CompactedDay]:
    """Updates compacted days with the losses that are known now. A gap may show only after a day was compacted.

    Args:
        days: as they were compacted.
        out: the pipeline's folder.
        expectation: the gateways and the time that are expected.
    """
    if not days:
        return []
    known = coverage(read_raw_state(out).index, expectation)
    return [_with_loss(day, known[day.date]) if day.date in known else day for day in days]


def _with_loss(day: CompactedDay, known: DayCoverage) -> CompactedDay:
    shares = known.shares()
    # Lines of a gateway that was unknown when the day was compacted have been read, but are not in the day's tables.
    # An older release did not record the gateways of a day.
    absent = shares.keys() - day.gateways.keys() if day.gateways else set()
    present_s = known.covered_s - sum(known.gateways[gw].covered_s for gw in absent)
    return replace(
        day,
        completeness=min(day.completeness, Coverage(present_s, known.expected_s).share),
        gateways={
            gw: 0.0 if gw in absent else min(shares.get(gw, 1.0), day.gateways.get(gw, 1.0))
            for gw in {**day.gateways, **shares}
        },
        silent={**day.silent, **known.silent()},
        clashes={**day.clashes, **known.clash_texts()},
    )
