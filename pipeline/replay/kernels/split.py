"""Splits the record of one second into stand-ins for its requests.

A second's sum is not one request: against a quota it would be refused or delayed as a whole. With the number of
requests and the largest one known, a few stand-ins of the right sizes decide nearly as the real ones did.

A client that was muted sent late, and by how much is not in the record: it sent when it was let, so its times are
those of the quota that was in force and not its own. Replayed at these times under a larger one it would wait for
the old mutes as well as for the new ones. So there its requests are wanted as early as they can have been, one after
the other, each some time after the answer to the one before (think time): the time in which the client was not muted,
shared by its requests. Under a quota no larger than the one in force none comes earlier than it did: not before the
first of its second, which is in the record. Only where that one came as a mute ended, and of a client with one
connection, it was wanted before: else errors could make the waits shorter and none longer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.kernels.ragged import Floats, Ints, Pace, Ragged

MOST: Final = 8
MOST_MUTED: Final = 32
"""Of a second with a mute: what a quota leaves to a client comes in bursts, and their order matters."""

EARLIEST_MS: Final = 60_000
"""How much earlier than it came a request of a muted client can have been wanted."""

SOONER_MS: Final = 1_000
"""The same under a quota no larger than the one in force."""

MOST_CONNECTIONS: Final = 16
"""That take turns; of more the others are left out."""
_TOGETHER_S: Final = 10
"""Connections that are muted make no requests: those of so many seconds, and of as many before and after, count."""


_FAR_MS: Final = np.int64(2**40)
"""Separates a series from the next: more than any time of day."""


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
    """Requests that could have made these records.

    A second with r requests becomes min(r, `most`) at even distances, from the first of them on where that is known.
    Up to `most` requests, or where the largest is more than an even share, one of them is the largest, and the others
    share the rest evenly. Which one of them it is goes round from second to second, since nothing is known of the
    order.

    In a second after one with a mute (hence in all but the first of a stretch of them) requests are wanted when the
    stretch began, but not more than `EARLIEST_MS` before they came: so under a larger quota than the one in force, or
    where the first of them is not in the record.

    Args:
        offsets: client i is [offsets[i], offsets[i + 1]) of the arrays.
        seconds: when, in s; never falling within a client.
        units: sum of the second; seconds without any have only mutes.
        requests: how many; 0 counts as 1.
        max_units: of the largest request; more than the sum counts as the sum.
        muted_ms: how long the client was muted in that second; None is never.
        quota: in force; None or NaN: none, or not known.
        connections: that made requests in that second; None or 0: not known, one.
        first_ms: when the first request of that second came, since its begin, where connections are known.
        most: stand-ins of a second; see above.
        most_muted: of a second with a mute or after one.
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
    # No request may be larger than the largest; many small ones in a stand-in together may.
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
    # Where in its second a request comes: evenly, or in a mute's as soon as it may.
    late, told_record = (after & muted)[record], told[record]
    span_ms = np.where(told & ~muted, seconds * 1000 + 1000 - begins_ms, open_ms)[record]
    halves = np.where(after[record] | told_record, 2 * place, 2 * place + 1)
    within_ms = np.where(late | (told & muted)[record], 0, halves * span_ms // (2 * counts[record]))
    came_ms = chain_ms[record] + within_ms
    early_ms = np.where(late, np.maximum(stretch_ms, begins_ms - EARLIEST_MS)[record], came_ms)
    share_ms = open_ms[record] // counts[record]
    think_ms = np.where(place > 0, share_ms, np.where(after[record], share_ms // 2, 0))
    think_ms[~(muted | after)[record]] = 0
    # Wanted in the order in which they came.
    far = series[record] * _FAR_MS
    early_ms, came_ms = (np.maximum.accumulate(at_ms + far) - far for at_ms in (early_ms, came_ms))
    in_force = np.full(len(seconds), np.inf) if quota is None else np.where(np.isnan(quota), np.inf, quota)
    # Of seconds without the time of requests nothing is known but that they were wanted before.
    in_force = np.where(told | ~(muted | after), in_force, 0.0)
    sizes = np.where(is_largest, largest[record], rest[record])
    weights = (requests / counts)[record]
    begins = np.concatenate((first, [len(record)]))
    pace = Pace(think_ms, early_ms, in_force[record], turns[record])
    return Ragged.build(begins[offsets], came_ms, sizes, weights, pace)


def _begins(at_ms: Ints, goes_on: NDArray[np.bool_]) -> Ints:
    """The moment of the last second that is no continuation, second by second."""
    if not len(at_ms):
        return at_ms
    begins: Ints = at_ms[np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(at_ms))))]
    return begins


def _turns(seconds: Ints, series: Ints, connections: Ints) -> Ints:
    """How many connections a client has, second by second."""
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
    """Whether the second before was one with a mute."""
    after = np.zeros(len(seconds), bool)
    after[1:] = muted[:-1] & (np.diff(seconds) <= 1)
    begins = np.asarray(offsets)[:-1]
    after[begins[begins < len(seconds)]] = False
    return after
