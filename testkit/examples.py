"""The number of examples for properties whose example is a whole conversation."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

A_THIRD: Final = settings(max_examples=settings().max_examples // 3)
"""A third of the profile's number (see `tests/conftest.py`)."""
