"""Keeps Python's garbage collector from blocking the loop: a full collection walks through every object.

With ten thousand connections these are a million, and a walk takes a tenth of a second and more. So what survives a
full collection is kept out of all later ones. It is let go of as soon as nothing refers to it, as everything is; only
what refers to itself in a circle would stay. Hence the rule for what lives as long as a connection: its end breaks
its circles (`tests/gateway/test_ended_connections.py`).

Python's own thresholds let 70,000 objects come together before a full collection, up to 28 ms of one event. So full
ones come more often, and each has less to walk through. No object is walked through more often for it, as survivors
are frozen.
"""

from __future__ import annotations

import gc
from typing import Any, Final, Literal

THRESHOLDS: Final = (700, 3, 1)
"""Objects, collections of them, collections of those: a full one has some 700 x 4 x 2 new objects. 12,600 took 17 ms
where others use the caches too."""


def freeze_survivors() -> None:
    """From now on; what is there already is walked through once more."""
    if _freeze not in gc.callbacks:
        gc.collect()
        gc.freeze()
        gc.collect()  # or Python would put full ones off for a quarter of what it saw in the one before
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(_freeze)


def _freeze(phase: Literal["start", "stop"], info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
