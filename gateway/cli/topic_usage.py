"""``sluice usage --topics``: the use of each topic by each client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.cli.table import aligned
from gateway.usage.reader import Readings, name_of_row, topics_of
from quotas.entities import format_name
from quotas.usage_record import OTHER, OVERHEAD, TopicRow, UsageApi


@dataclass(slots=True)
class TopicUse:
    """The use of one topic by one client; rates are averages over the whole time.

    Attributes:
        topic: the topic; "": all bytes around the records.
        rate, peak: average bytes per second, and bytes in the busiest second.
        records: records per second.
        requests: requests or responses that contained the topic.
        size_bytes: the sum of bytes.
    """

    api: str
    user: str
    client_id: str
    topic: str
    rate: float = 0.0
    peak: float = 0.0
    records: float = 0.0
    requests: int = 0
    size_bytes: int = 0


def summarise_topics(readings: Readings, seconds: float, *, api: str | None = None) -> list[TopicUse]:
    """The use of each topic by each client, the busiest of each API first. Listeners and brokers are added up.

    Args:
        readings: the lines.
        seconds: the time that the lines cover.
        api: only this API; None: all.
    """
    uses: dict[tuple[str, str, str, str], TopicUse] = {}
    by_second: dict[tuple[str, str, str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for line in readings.lines:
        for row in topics_of(line):
            key = (row[TopicRow.API], row[TopicRow.USER], row[TopicRow.CLIENT_ID], row[TopicRow.TOPIC])
            if api is not None and key[0] != api:
                continue
            use = uses.setdefault(key, TopicUse(*key))
            use.size_bytes += row[TopicRow.BYTES]
            use.requests += row[TopicRow.REQUESTS]
            use.records += row[TopicRow.RECORDS] / seconds
            by_second[key][line["ts"]] += row[TopicRow.BYTES]
    for key, use in uses.items():
        use.rate = use.size_bytes / seconds
        use.peak = max(by_second[key].values())
    order = {each.value: at for at, each in enumerate(UsageApi)}
    return sorted(uses.values(), key=lambda use: (order.get(use.api, len(order)), -use.size_bytes))


def topic_blocks(uses: Sequence[TopicUse], top: int) -> list[str]:
    """A table for each API."""
    blocks = []
    for api in dict.fromkeys(use.api for use in uses):
        found = [use for use in uses if use.api == api]
        rows: list[tuple[str, ...]] = [(api.upper(), "TOPIC", "RATE B/s", "PEAK", "RECORDS/s", "REQUESTS")]
        rows += [_cells(use) for use in found[:top]]
        more = [f"and {len(found) - top} more"] if len(found) > top else []
        blocks.append("\n".join([*aligned(rows), *more]))
    return blocks


def topics_json(uses: Sequence[TopicUse]) -> list[dict[str, Any]]:
    """The uses as JSON, for programs."""
    return [asdict(use) for use in uses]


def _cells(use: TopicUse) -> tuple[str, ...]:
    return (
        name_of_row(use.api, use.user, use.client_id),
        _topic(use.topic),
        _rate(use.rate),
        _rate(use.peak),
        _rate(use.records),
        str(use.requests),
    )


def _topic(name: str) -> str:
    if name == OVERHEAD:
        return "(around records)"
    return name if name == OTHER else (format_name(name) if name else "-")


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
