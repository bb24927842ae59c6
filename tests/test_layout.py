"""Every module has its test file, and every test file of a mirrored folder its module."""

from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = (
    "protocol",
    "quotas",
    "config",
    "gateway",
    "gateway/handlers",
    "gateway/commands",
    "gateway/store",
    "gateway/usage",
)

# Without a test file of their own, with what covers them instead.
ELSEWHERE: Final = {
    "__init__": "nothing but a docstring and names",
    "__main__": "starts another module",
    "gateway/store/interface": "protocols and records, which every store's tests use",
    "gateway/store/sqlite_file": "those of its only user, and tests/hazards/test_quota_store.py",
    "gateway/store/topic_writer": "a real Kafka: tests/integration/test_quota_topic.py",
}


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_has_its_test_file(room: str) -> None:
    modules = {path.stem for path in (ROOT / room).glob("*.py")}
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / room).glob("test_*.py")}
    known = {name for name in modules if {name, f"{room}/{name}"} & ELSEWHERE.keys()}
    assert sorted(modules - tests - known) == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_test_file_has_its_module(room: str) -> None:
    modules = {path.stem for path in (ROOT / room).glob("*.py")}
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / room).glob("test_*.py")}
    assert sorted(tests - modules) == []


def test_exceptions_are_still_modules_without_a_test_file() -> None:
    for name in ELSEWHERE.keys() - {"__init__", "__main__"}:
        room, _, module = name.rpartition("/")
        assert (ROOT / room / f"{module}.py").exists(), f"{name} is gone"
        assert not (ROOT / "tests" / room / f"test_{module}.py").exists(), f"{name} has a test file now"
