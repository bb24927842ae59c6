"""The offset index as files, one after each batch; and what days are known to lack by the newest of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pipeline.storage.coverage import DayCoverage, Expectation, coverage
from pipeline.storage.layout import CompactedDay
from pipeline.storage.offset_index import OffsetIndex
from pipeline.storage.store import Store, store_of

INDEX_FOLDER: Final = "ledger"
"""On disk the offset index has kept the name of the first release."""


def last_offset_index(store: Store, out: str) -> tuple[int, dict[str, Any]] | None:
    """Number and content of the newest index file, None before the first batch.

    Args:
        store: where `out` is.
        out: the pipeline's folder.
    """
    for name in reversed(store.names(f"{out}/{INDEX_FOLDER}")):
        if name.startswith("v=") and name.endswith(".json"):
            number = int(name.removeprefix("v=").removesuffix(".json"))
            content = read_index_file(store, out, number)
            if content is not None:
                return number, content
    return None


def numbered_offset_index(store: Store, out: str) -> tuple[int, OffsetIndex]:
    """Number and content of the newest offset index; -1 and an empty one before the first batch."""
    number, content = last_offset_index(store, out) or (-1, {"runs": []})
    return number, OffsetIndex.from_json(content["runs"])


def read_offset_index(out: str, spark: Any = None) -> OffsetIndex:
    """What has been read so far.

    Args:
        out: the pipeline's folder.
        spark: a session; needed if `out` is not on this machine.
    """
    return numbered_offset_index(store_of(out, spark), out)[1]


def with_losses(
    days: Sequence[CompactedDay], out: str, expectation: Expectation, spark: Any = None
) -> list[CompactedDay]:
    """Compacted days with what is known of them now: a gap may show only after the day was compacted.

    Args:
        days: as their manifests say.
        out: the pipeline's folder.
        expectation: what should be there.
        spark: a session; needed if `out` is not on this machine.
    """
    if not days:
        return []
    known = coverage(read_offset_index(out, spark), expectation)
    return [_with_loss(day, known[day.date]) if day.date in known else day for day in days]


def _with_loss(day: CompactedDay, known: DayCoverage) -> CompactedDay:
    shares = known.shares()
    return replace(
        day,
        completeness=min(day.completeness, known.share),
        gateways={
            gw: min(shares.get(gw, 1.0), day.gateways.get(gw, 1.0)) for gw in {**day.gateways, **shares}
        },
        clashes=tuple(map(str, known.clashes)),
    )


def index_path(out: str, number: int) -> str:
    """Where the offset index after a batch is kept."""
    return f"{out}/{INDEX_FOLDER}/v={number:012d}.json"


def read_index_file(store: Store, out: str, number: int) -> dict[str, Any] | None:
    """What `pipeline.ingest.writer` wrote after a batch: source, planned and runs; None if it did not."""
    content = store.read(index_path(out, number))
    if content is None:
        return None
    found: dict[str, Any] = json.loads(content)
    return found
