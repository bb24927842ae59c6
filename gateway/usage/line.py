"""A line of usage records, put together from slices so that no call of the loop takes long. Pure but for orjson.

The layout is `quotas.usage_record`. What clients choose goes through the encoder as a string and so can neither end a
line nor add a field (hazard I14).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.usage.row import RowValues
from gateway.usage.table import EventValues
from quotas.usage_record import VERSION

_EMPTY: Final = b"[]"


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without the line feed, and what is in it.

    Attributes:
        seq: its number.
        data: the JSON text.
        rows, events: how many it tells.
    """

    seq: int
    data: bytes
    rows: int
    events: int


class LineBuilder:
    """Puts one line together: `add_rows` as often as needed, then `finish`."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._slices: list[bytes] = []
        self._rows = 0

    def add_rows(self, rows: Sequence[RowValues]) -> None:
        """Encode a slice of the rows."""
        if rows:
            self._slices.append(orjson.dumps(rows)[1:-1])
            self._rows += len(rows)

    def finish(
        self,
        *,
        gateway: str,
        boot: int,
        seq: int,
        ts: int,
        dur_ms: int,
        algorithm: str,
        events: Iterable[EventValues],
        clock_offset_ms: int,
        dropped: tuple[int, int],
        jump_ms: int = 0,
    ) -> Line:
        """The whole line.

        Args:
            gateway, boot, seq: its name.
            ts: the second it covers.
            dur_ms: the time it covers.
            algorithm: of the controller mutation quota.
            events: as the table has them.
            clock_offset_ms: the gateway's clock at the wall clock's `ts`.
            dropped: clients in `~other` and events that are missing.
            jump_ms: by how much the wall clock was set meanwhile.
        """
        shown = [(when_ms - clock_offset_ms, *rest) for when_ms, *rest in events]
        head = orjson.dumps(
            {
                "v": VERSION,
                "gw": gateway,
                "boot": boot,
                "seq": seq,
                "ts": ts,
                "dur_ms": dur_ms,
                "algo": algorithm,
                **({"jump_ms": jump_ms} if jump_ms else {}),
            }
        )
        parts = (
            head[:-1],
            b',"rows":[',
            b",".join(self._slices),
            b'],"events":',
            orjson.dumps(shown) if shown else _EMPTY,
            b',"dropped_rows":%d,"dropped_events":%d}' % dropped,
        )
        return Line(seq, b"".join(parts), self._rows, len(shown))
