"""The wheel that all tests here install."""

from pathlib import Path

import pytest

from testkit.installed import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
