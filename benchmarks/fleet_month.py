"""Usage files of many gateways over a month, made quickly: 10,000 clients at 100 gateways.

Each client uses one gateway. Sizes are lognormal and drift from day to day. Every other client has a quota and is
slowed in seconds above it. Every twentieth client belongs to no team. This module itself counts what the files
contain, independently of the pipeline.

A gateway has records of six hours of a day, with a line for the first second of each minute. A quarter of the
gateways has the same six hours.
"""

from __future__ import annotations

import datetime
import gzip
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from quotas.usage_record import VERSION, RowFlags

FIRST_DAY: Final = datetime.date(2026, 2, 1)
"""February has 28 days: a whole month, as a bill needs it."""
TEAMS: Final = 20
"""The last team is not in the file of groups."""
EVERY_S: Final = 60
"""Seconds between two lines of a gateway. Up to 60 s they still count as one run of lines."""
LINES: Final = 360
"""Lines of one gateway and day, in one file."""
ACTIVITY: Final = 1 / 15
"""Share of these lines in which a client of the gateway has a row."""
_QUARTER_S: Final = 6 * 3_600
_MEDIAN_BYTES: Final = 40_000.0
_SIGMA: Final = 1.5
_DRIFT: Final = 0.12
_NOISE: Final = 0.5
_TAIL: Final = b'],"events":[],"dropped_rows":0,"dropped_events":0}\n'


@dataclass(frozen=True, slots=True)
class Month:
    """What to write.

    Attributes:
        clients, gateways, days: how many; at least one client for each gateway.
    """

    seed: int = 1
    clients: int = 10_000
    gateways: int = 100
    days: int = 28

    @property
    def client_days(self) -> int:
        """Number of client-days."""
        return self.clients * self.days


@dataclass(frozen=True, slots=True)
class Truth:
    """What the files contain."""

    lines: int = 0
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    file_bytes: int = 0

    def __add__(self, more: Truth) -> Truth:
        """The contents of both."""
        return Truth(*(getattr(self, each.name) + getattr(more, each.name) for each in fields(self)))


def write_month(folder: Path, month: Month) -> Truth:
    """Write the files and return what they contain.

    Args:
        folder: target folder; created if missing.
        month: what to write. Equal months give equal files.
    """
    folder.mkdir(parents=True)
    truth = Truth()
    with ProcessPoolExecutor() as pool:
        for day in range(month.days):
            truth = sum(pool.map(partial(_write, folder, month, day), range(month.gateways)), truth)
    return truth


def groups_text() -> str:
    """The file of groups of these clients."""
    return "".join(
        f'[[groups]]\nname = "team-{team}"\nusers = ["t{team:02d}-*"]\n\n' for team in range(TEAMS - 1)
    )


def _write(folder: Path, month: Month, day: int, gateway: int) -> Truth:
    """Write the file of a gateway's day. A gateway restarts each day: these are the lines of one run."""
    date = FIRST_DAY + datetime.timedelta(days=day)
    midnight = int(datetime.datetime.combine(date, datetime.time(), datetime.UTC).timestamp())
    begin = midnight + gateway % 4 * _QUARTER_S
    gw, boot = f"gw-{gateway:03d}", begin * 1000
    text = bytearray()
    truth = Truth()
    for seq, (rows, sums) in enumerate(_lines(month, day, gateway)):
        text += (
            b'{"v":%d,"gw":"%s","boot":%d,"seq":%d,"ts":%d,"dur_ms":1000,"algo":"token_bucket",'
            b'"scope":"gateway","rows":[' % (VERSION, gw.encode(), boot, seq, begin + seq * EVERY_S)
        )
        text += b",".join(rows)
        text += _TAIL
        truth += Truth(1, len(rows), *sums)
    content = gzip.compress(text, 1, mtime=0)
    (folder / f"usage-{gw}-{boot}-{0:09d}.jsonl.gz").write_bytes(content)
    return truth + Truth(file_bytes=len(content))


def _lines(month: Month, day: int, gateway: int) -> Iterator[tuple[list[bytes], tuple[int, int]]]:
    """For each line its rows, and their bytes in and out."""
    pairs = np.arange(month.clients) // 2
    own = np.flatnonzero(pairs % month.gateways == gateway)
    rng = np.random.default_rng([month.seed, day, gateway])
    line, place = np.nonzero(rng.random((LINES, len(own))) < ACTIVITY)
    clients = own[place]
    units = np.maximum(1, _sizes(month, day)[clients] * rng.lognormal(0, _NOISE, len(line))).astype(np.int64)
    requests = rng.integers(1, 9, len(line))
    largest = -(-units // requests)
    # Client ids come in pairs of one user: one produces, the other fetches.
    fetches, limited = clients % 2 == 1, pairs[clients] // month.gateways % 2 == 1
    other = 60 * requests
    bytes_in, bytes_out = np.where(fetches, other, units), np.where(fetches, units, other)
    quota = np.round(_sizes(month, 0) * 2, 1)[clients]
    wait = np.where(limited, np.clip(1000 * (units - quota) / quota, 0, 30_000), 0).astype(np.int64)
    level = np.round(quota - units, 1)
    first_ms = rng.integers(0, 1_000, len(line))
    quotas = [
        b"%.1f,%.1f" % (limit, rest) if has else b"null,null"
        for limit, rest, has in zip(quota.tolist(), level.tolist(), limited.tolist(), strict=True)
    ]
    cells = (clients, requests, bytes_in, bytes_out, units, largest, wait, first_ms)
    rows = [
        b"%s%d,%d,%d,%d,%d,%d,0,0,%d,%d,%d,%s,%d,1,%d,null,0]"
        % (_names(client), count, in_, out, amount, amount, most, ms > 0, ms, min(ms, 1000), limits,
           RowFlags.CENSORED * (ms > 0), at)
        for (client, count, in_, out, amount, most, ms, at), limits in zip(
            zip(*(each.tolist() for each in cells), strict=True), quotas, strict=True
        )
    ]  # fmt: skip
    edges = np.searchsorted(line, np.arange(LINES + 1)).tolist()
    sums_in, sums_out = (np.concatenate(([0], np.cumsum(each))).tolist() for each in (bytes_in, bytes_out))
    for begin, end in pairwise(edges):
        yield rows[begin:end], (sums_in[end] - sums_in[begin], sums_out[end] - sums_out[begin])


def _sizes(month: Month, day: int) -> Any:
    """Bytes of each client in a second with traffic."""
    size = np.random.default_rng([month.seed, 0]).lognormal(np.log(_MEDIAN_BYTES), _SIGMA, month.clients)
    if day:
        size *= np.random.default_rng([month.seed, 1, day]).lognormal(0, _DRIFT, month.clients)
    return size


@lru_cache(maxsize=100_000)
def _names(client: int) -> bytes:
    """The beginning of a client's rows."""
    user = b"t%02d-%05d" % (client // 2 % TEAMS, client // 2)
    return b'["clients","%s","client-%05d","%s",%d,' % (
        user,
        client,
        b"fetch" if client % 2 else b"produce",
        client % 3 + 1,
    )
