"""The fuzzer's targets hold for their seeds, and for seeds with a few bytes changed; `atheris_run` looks further."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import SEEDS, TARGETS

INPUTS = [(name, seed) for name, seeds in SEEDS.items() for seed in seeds]


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_seeds_and_takes_them(name: str) -> None:
    assert SEEDS[name]
    for seed in (b"", *SEEDS[name]):
        TARGETS[name](seed)


@given(
    st.sampled_from(INPUTS), st.lists(st.tuples(st.integers(0, 80), st.binary(max_size=3)), min_size=1, max_size=3)
)
def test_targets_hold_for_damaged_seeds(which: tuple[str, bytes], changes: list[tuple[int, bytes]]) -> None:
    name, data = which
    for at, piece in changes:
        data = data[:at] + piece + data[at + 1 :]
    TARGETS[name](data)
