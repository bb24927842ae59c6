"""A collection of garbage is one event of the loop: however many objects come to live, each walks through few."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from gateway.runtime import collector
from gateway.runtime.slices import without_collections

MOST: Final = 8_000
"""Some 2 ms."""

_OBJECTS: Final = 150
"""Of one connection."""


def _full_after() -> list[int]:
    """How many objects had come to live at each full collection."""
    collector.freeze_survivors()
    kept: list[list[int]] = []
    full_after = [0]

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            full_after.append(len(kept))

    gc.callbacks.append(look)
    for _ in range(20 * MOST):
        kept.append([])
    return full_after


def _walked() -> list[int]:
    """How many objects full collections walk through while as many connections end as begin."""
    connections = deque([[] for _ in range(_OBJECTS)] for _ in range(1_000))
    collector.freeze_survivors()
    walked = []

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            walked.append(len(gc.get_objects()))  # without frozen ones

    gc.callbacks.append(look)
    for _ in range(1_000):
        collector.connection_opened()
        connections.append([[] for _ in range(_OBJECTS)])
        connections.popleft()
    gc.collect()
    return walked


def _collected_while_off() -> list[int]:
    """The collections while other work has turned them off."""
    collector.freeze_survivors()
    collections: list[int] = []
    gc.callbacks.append(lambda _phase, info: collections.append(info["generation"]))
    with without_collections():
        for _ in range(2 * collector.CONNECTIONS):
            collector.connection_opened()
        return list(collections)


def _in_a_fresh_process(function: Callable[[], list[int]]) -> list[int]:
    """What it returns there: what other tests left in this one, threads among it, moves its collections."""
    fresh = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            f"import json; from {__name__} import {function.__name__} as f; print(json.dumps(f()))",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    found: list[int] = json.loads(fresh.stdout)
    return found


def test_f16_no_collection_walks_through_more_than_some_thousand_objects() -> None:
    full_after = _in_a_fresh_process(_full_after)
    assert len(full_after) > 10
    assert max(later - earlier for earlier, later in pairwise(full_after)) < MOST


def test_f16_nor_while_as_many_connections_end_as_begin() -> None:
    walked = _in_a_fresh_process(_walked)
    assert len(walked) > 10
    assert max(walked) < MOST


def test_f16_new_connections_collect_nothing_while_an_import_has_turned_collections_off() -> None:
    assert _in_a_fresh_process(_collected_while_off) == []
