"""A collection of garbage is one event of the loop: however many objects come to live, each walks through few."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from itertools import pairwise
from typing import Any, Final

from gateway.runtime import collector

MOST: Final = 8_000
"""Some 2 ms."""


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


def test_f16_no_collection_walks_through_more_than_some_thousand_objects() -> None:
    # In a process of its own: what other tests left in this one, threads among it, moves its collections.
    fresh = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            f"import json; from {__name__} import _full_after; print(json.dumps(_full_after()))",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    full_after = json.loads(fresh.stdout)
    assert len(full_after) > 10
    assert max(later - earlier for earlier, later in pairwise(full_after)) < MOST
