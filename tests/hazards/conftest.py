"""Hazards are met on the loop that the gateway runs on."""

from __future__ import annotations

from tests.gateway.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
