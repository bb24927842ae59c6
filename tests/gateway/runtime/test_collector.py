"""A collection of garbage is one event of the loop: however many objects come to live, each walks through few."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from gateway.runtime import collector

MOST = 8_000
"""Some 2 ms."""


@pytest.fixture
def frozen_survivors() -> Iterator[None]:
    before = gc.get_threshold()
    collector.freeze_survivors()
    yield
    gc.callbacks.remove(collector._freeze)
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("frozen_survivors")
def test_no_collection_walks_through_more_than_some_thousand_objects() -> None:
    kept: list[list[int]] = []
    full_after = [0]

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            full_after.append(len(kept))

    gc.callbacks.append(look)
    try:
        for _ in range(20 * MOST):
            kept.append([])
    finally:
        gc.callbacks.remove(look)
    assert len(full_after) > 10
    assert max(later - earlier for earlier, later in pairwise(full_after)) < MOST
