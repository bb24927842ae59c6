"""Splits the record of one second into stand-ins for its requests.

The sum of a second is not one request: a quota would refuse or delay it as a whole. The record also has the number of
requests and the largest one. A few stand-ins of the right sizes are decided nearly as the real requests were.

A client that was muted sent late, and the record does not say by how much. Its times follow from the quota that was
in force, not from its demand. Replayed at these times under a larger quota, it would wait for the old mutes as well
as for the new ones. So requests of muted seconds are wanted at the earliest possible times: one after the other, each
some time after the response to the one before (think time). Think time is the time in which the client was not muted,
divided among its requests.

Under a quota no larger than the one in force, a request does not come earlier than it did: not before the first
request of its second, whose time is recorded. There is one exception, because otherwise errors could only make waits
longer: if that first request came as a mute ended, and the client has one connection, it was wanted before.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.kernels.ragged import Floats, Ints, Pace, Ragged

MOST: Final = 8
MOST_MUTED: Final = 32
"""Stand-ins of a second with a mute. Under a quota requests come in bursts, and their order matters."""

EARLIEST_MS: Final = 60_000
"""How long before it came a request of a muted client can have been wanted."""

SOONER_MS: Final = 1_000
"""The same under a quota no larger than the one in force."""

MOST_CONNECTIONS: Final = 16
"""The most connections of a client that take turns; further ones are left out."""
_TOGETHER_S: Final = 10
"""Muted connections make no requests. So connections count from this many seconds, and as many before and after."""


_FAR_MS: Final = np.int64(2**40)
"""Separates a series from the next one: more than any time of day."""


def split_seconds(
    offsets: Ints,
    seconds: Ints,
    units: Floats,
    requests: Ints,
    max_units: Floats,
    muted_ms: Ints | None = None,
    quota: Floats | None = None,
    connections: Ints | None = None,
    first_ms: Ints | None = None,
    *,
    most: int = MOST,
    most_muted: int = MOST_MUTED,
) -> Ragged:
    """Makes requests that could have led to these records.

    A second with r requests becomes min(r, `most`) stand-ins at even distances, beginning with the time of the first
    request if that is known. If there are up to `most` requests, or the largest is more than an even share, one
    stand-in is the largest, and the others share the rest evenly. The position of the largest changes from second to
    second, since the real order is not known.

    Consecutive seconds with mutes are a stretch. In a second after one with a mute, requests are wanted when the
    stretch began, but not more than `EARLIEST_MS` before they came. This applies under a quota above the one in
    force, or if the time of the first request is not recorded.

    Args:
        offsets: client i is [offsets[i], offsets[i + 1]) of the arrays.
        seconds: time in s; never falling within a client.
        units: sum of the second; seconds without units have only mutes.
        requests: their number; 0 counts as 1.
        max_units: units of the largest request; more than the sum counts as the sum.
        muted_ms: for how long the client was muted in that second; None: never.
        quota: the quota in force; None or NaN: none, or not known.
        connections: the number of connections with requests in that second; None or 0: not known, one.
        first_ms: time of the second's first request, ms since its begin, if connections are known.
        most: the most stand-ins of a second; see above.
        most_muted: the most stand-ins of a second with a mute or after one.
    """
    seconds = np.asarray(seconds, np.int64)
    requests = np.maximum(np.asarray(requests, np.int64), 1)
    open_ms = np.full(len(seconds), 1000)
    if muted_ms is not None:
        open_ms -= np.clip(muted_ms, 0, 1000)
    series = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    muted = open_ms < 1000
    after = _after_mute(offsets, seconds, muted)
    counts = np.minimum(requests, np.where(muted | after, most_muted, most))
    largest = np.minimum(np.asarray(max_units, np.float64), units)
    even = units / counts
    # No stand-in of one request may be larger than the largest. One of many small requests may be.
    largest = np.where((requests <= counts) | (largest > even), np.maximum(largest, even), even)
    rest = np.where(counts > 1, (units - largest) / np.maximum(counts - 1, 1), 0.0)
    record = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    place = np.arange(len(record)) - first[record]
    is_largest = place == (seconds % counts)[record]

    told = np.zeros(len(seconds), bool) if connections is None else np.asarray(connections) > 0
    turns = np.ones(len(seconds), np.int64) if connections is None else _turns(seconds, series, connections)
    into_ms = 0 if first_ms is None else np.where(told, np.clip(first_ms, 0, 999), 0)
    begins_ms = seconds * 1000 + into_ms
    released = after & muted & told & (turns == 1) & (1000 - open_ms >= into_ms - 1)
    stretch_ms, chain_ms = (_begins(begins_ms, goes_on) for goes_on in (after, released))
    chain_ms = np.maximum(chain_ms, begins_ms - SOONER_MS)
    # Where in its second a request comes: evenly spread, or after a mute as soon as possible.
    late, told_record = (after & muted)[record], told[record]
    span_ms = np.where(told & ~muted, seconds * 1000 + 1000 - begins_ms, open_ms)[record]
    halves = np.where(after[record] | told_record, 2 * place, 2 * place + 1)
    within_ms = np.where(late | (told & muted)[record], 0, halves * span_ms // (2 * counts[record]))
    came_ms = chain_ms[record] + within_ms
    early_ms = np.where(late, np.maximum(stretch_ms, begins_ms - EARLIEST_MS)[record], came_ms)
    share_ms = open_ms[record] // counts[record]
    think_ms = np.where(place > 0, share_ms, np.where(after[record], share_ms // 2, 0))
    think_ms[~(muted | after)[record]] = 0
    # Requests are wanted in the order in which they came.
    far = series[record] * _FAR_MS
    early_ms, came_ms = (np.maximum.accumulate(at_ms + far) - far for at_ms in (early_ms, came_ms))
    in_force = np.full(len(seconds), np.inf) if quota is None else np.where(np.isnan(quota), np.inf, quota)
    # If the time of requests is not recorded, a quota of 0 makes every candidate larger: they were wanted before.
    in_force = np.where(told | ~(muted | after), in_force, 0.0)
    sizes = np.where(is_largest, largest[record], rest[record])
    weights = (requests / counts)[record]
    begins = np.concatenate((first, [len(record)]))
    pace = Pace(think_ms, early_ms, in_force[record], turns[record])
    return Ragged.build(begins[offsets], came_ms, sizes, weights, pace)


def _begins(at_ms: Ints, goes_on: NDArray[np.bool_]) -> Ints:
    """The begin of the stretch that each second continues, or of the second itself."""
    if not len(at_ms):
        return at_ms
    begins: Ints = at_ms[np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(at_ms))))]
    return begins


def _turns(seconds: Ints, series: Ints, connections: Ints) -> Ints:
    """The number of connections of a client, second by second."""
    if not len(seconds):
        return np.ones(0, np.int64)
    spans = series * _FAR_MS + seconds // _TOGETHER_S
    starts = np.flatnonzero(np.diff(spans, prepend=spans[0] - 1))
    most, names = np.maximum.reduceat(connections, starts), spans[starts]
    near = np.diff(names) == 1
    around = most.copy()
    around[1:] = np.maximum(around[1:], np.where(near, most[:-1], 0))
    around[:-1] = np.maximum(around[:-1], np.where(near, most[1:], 0))
    lengths = np.diff(np.append(starts, len(seconds)))
    turns: Ints = np.repeat(np.clip(around, 1, MOST_CONNECTIONS), lengths)
    return turns


def _after_mute(offsets: Ints, seconds: Ints, muted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether the second before had a mute."""
    after = np.zeros(len(seconds), bool)
    after[1:] = muted[:-1] & (np.diff(seconds) <= 1)
    begins = np.asarray(offsets)[:-1]
    after[begins[begins < len(seconds)]] = False
    return after
