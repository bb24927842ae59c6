"""Hypothesis profiles and the fixtures that every room's tests share.

``HYPOTHESIS_PROFILE=thorough`` runs twenty times as many examples as the default, ``quick``.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.clock import FakeClock

# No deadline: a shared machine makes single examples slow, which is not what the properties are about.
settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile(
    "thorough", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands at an instant with no meaning, so that code relying on zero fails."""
    return FakeClock(now_ms=7_300_000)
