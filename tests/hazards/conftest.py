"""Hazards are met on the loop that the gateway runs on."""

from collections.abc import Iterator

import pytest

from testkit.crowd import leave_all
from tests.gateway.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture(autouse=True)
def crowd() -> Iterator[None]:
    """Nobody of a crowd stays."""
    yield
    leave_all()
