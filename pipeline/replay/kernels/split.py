"""Seconds into requests: what a record of one second says about its requests, made into some stand-ins of them.

A second's sum is not one request: against a quota it would be refused or delayed as a whole. With the number of
requests and the largest one known, a few stand-ins of the right sizes decide nearly as the real ones did.

A client that was muted sent late, and by how much is not in the record: it sent when it was let, so its times are
those of the quota that was in force and not its own. Replayed at these times it would wait for the old mutes as well
as for the new ones, and each error could only make the new ones shorter. So its requests are wanted as early as
they can have been, one after the other, each some time after the answer to the one before (think time): the time in
which the client was not muted, shared by its requests.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.replay.kernels.ragged import Floats, Ints, Ragged

MOST: Final = 8
MOST_MUTED: Final = 32
"""Of a second with a mute: what a quota leaves to a client comes in bursts, and their order matters."""

EARLIEST_MS: Final = 11_000
"""How much earlier than it came a request of a muted client can have been wanted: the time that a Rate looks back."""


def split_seconds(
    offsets: Ints,
    seconds: Ints,
    units: Floats,
    requests: Ints,
    max_units: Floats,
    muted_ms: Ints | None = None,
    *,
    most: int = MOST,
    most_muted: int = MOST_MUTED,
) -> Ragged:
    """Requests that could have made these records.

    A second with r requests becomes min(r, `most`) at even distances. Up to `most` requests, or where the largest is
    more than an even share, one of them is the largest, and the others share the rest evenly. Which one of them it is
    goes round from second to second, since nothing is known of the order.

    In a second after one with a mute (hence in all but the first of a stretch of them) requests are wanted when the
    stretch began, but not more than `EARLIEST_MS` before they came.

    Args:
        offsets: client i is [offsets[i], offsets[i + 1]) of the arrays.
        seconds: when, in s; never falling within a client.
        units: sum of the second; seconds without any have only mutes.
        requests: how many; 0 counts as 1.
        max_units: of the largest request; more than the sum counts as the sum.
        muted_ms: how long the client was muted in that second; None is never.
        most: stand-ins of a second; see above.
        most_muted: of a second with a mute or after one.
    """
    seconds = np.asarray(seconds, np.int64)
    requests = np.maximum(np.asarray(requests, np.int64), 1)
    open_ms = np.full(len(seconds), 1000)
    if muted_ms is not None:
        open_ms -= np.clip(muted_ms, 0, 1000)
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
    series = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))

    begins_ms = seconds * 1000
    stretch_ms = (
        begins_ms[np.maximum.accumulate(np.where(after, 0, np.arange(len(seconds))))]
        if len(seconds)
        else begins_ms
    )
    earliest_ms = np.where(after & muted, np.maximum(stretch_ms, begins_ms - EARLIEST_MS), begins_ms)
    # Where in the time it has a request comes: in its middle, or after a mute as soon as that ends.
    halves = np.where(after[record], 2 * place, 2 * place + 1)
    within_ms = np.where((after & muted)[record], 0, halves * open_ms[record] // (2 * counts[record]))
    at_ms = earliest_ms[record] + within_ms
    share_ms = open_ms[record] // counts[record]
    think_ms = np.where(place > 0, share_ms, np.where(after[record], share_ms // 2, 0))
    think_ms[~(muted | after)[record]] = 0
    # Wanted in the order in which they came; a series is told from the next by more than any time of day.
    far = series[record] * np.int64(2**40)
    at_ms = np.maximum.accumulate(at_ms + far) - far
    sizes = np.where(is_largest, largest[record], rest[record])
    weights = (requests / counts)[record]
    begins = np.concatenate((first, [len(record)]))
    return Ragged.build(begins[offsets], at_ms, sizes, weights, think_ms)


def _after_mute(offsets: Ints, seconds: Ints, muted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether the second before was one with a mute."""
    after = np.zeros(len(seconds), bool)
    after[1:] = muted[:-1] & (np.diff(seconds) <= 1)
    begins = np.asarray(offsets)[:-1]
    after[begins[begins < len(seconds)]] = False
    return after
