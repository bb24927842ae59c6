"""Keeps Python's garbage collector from blocking the loop: a full collection walks through every object.

With ten thousand connections there are a million objects, and a collection takes a tenth of a second or more. So
objects that survive a full collection are frozen: later collections leave them out. Reference counting still frees
them; only objects in a reference cycle would stay. Hence the rule for objects that live as long as a connection: the
end of the connection breaks their cycles (`tests/gateway/test_ended_connections.py`).

With Python's own thresholds a full collection walks through up to 70,000 objects, up to 28 ms in one event. With the
thresholds here full collections are more frequent and shorter. No object is walked through more often because of
that, as survivors are frozen.

Python compares its thresholds with new objects minus freed ones. While as many connections end as begin, it does not
collect for seconds, and then walks through all their objects at once: with 500 connections a second up to 90 ms. So
new connections count too.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any, Final, Literal

THRESHOLDS: Final = (700, 3, 1)
"""Thresholds of the three generations: a full collection has about 700 x 4 x 2 new objects. With 12,600 it took 17 ms
when other work used the CPU's caches too."""


CONNECTIONS: Final = 32
"""New connections between two full collections."""

_new_connections = itertools.count(1)


def connection_opened() -> None:
    """Collect after so many new connections, if survivors are frozen and collections are not turned off."""
    if next(_new_connections) % CONNECTIONS == 0 and _freeze in gc.callbacks and gc.isenabled():
        gc.collect()


def freeze_survivors() -> None:
    """Freeze survivors from now on. The existing objects are walked through once more."""
    if _freeze not in gc.callbacks:
        gc.collect()
        gc.freeze()
        gc.collect()  # otherwise Python would delay full ones until a quarter of the objects seen before are new
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(_freeze)


def _freeze(phase: Literal["start", "stop"], info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
