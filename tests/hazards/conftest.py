"""No one of a crowd outlives a test of a hazard."""

from collections.abc import Iterator

import pytest

from testkit.crowd import leave_all


@pytest.fixture(autouse=True)
def crowd() -> Iterator[None]:
    """No one of a crowd stays."""
    yield
    leave_all()
