"""What is compiled gives what numpy gives, bit for bit."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.replay.kernels.compiled import LOOPS
from pipeline.replay.kernels.deferral import deferred, required_rates_on
from pipeline.replay.kernels.ragged import Ragged
from pipeline.replay.kernels.token_bucket import strict_token_bucket
from testkit.pipeline.traces import day_of
from tests.pipeline.kernels import scalar

pytestmark = pytest.mark.skipif(LOOPS is None, reason="install with: pip install sluice[kernels]")

TARGETS, BURSTS = [0.0, 0.003, 0.01, 0.3], [1.0, 10.0, 60.0]


def same(ragged: Ragged, candidates: np.ndarray, window: tuple[int, int]) -> None:
    num, ms = window
    for kind in (strict_token_bucket, deferred):
        how = {"window_num": num, "window_ms": ms} if kind is strict_token_bucket else {"burst_s": num * ms / 1000}
        plain, compiled = (kind(ragged, candidates, loops=loops, **how) for loops in (None, LOOPS))
        assert plain.throttled.tobytes() == compiled.throttled.tobytes()
        assert plain.throttled_units.tolist() == compiled.throttled_units.tolist()
    plain, compiled = (required_rates_on(ragged, TARGETS, BURSTS, loops=loops) for loops in (None, LOOPS))
    assert plain.tobytes() == compiled.tobytes()


@given(scalar.clients, scalar.candidates, scalar.windows)
def test_any_clients_get_the_same_numbers_from_both(
    clients: list[scalar.Series], rates: list[float], window: tuple[int, int]
) -> None:
    same(scalar.ragged(clients), np.array(rates), window)


# The order of a sum changes at 8, 128 and each half of what is more.
@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 3_000), min_size=1, max_size=6))
def test_long_series_of_any_length_are_added_up_in_the_same_order(seed: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *lengths])
    t_ms = np.concatenate([np.sort(rng.integers(0, 86_400_000, length)) for length in lengths])
    ragged = Ragged.build(offsets, t_ms, rng.lognormal(0, 3, offsets[-1]))
    same(ragged, np.maximum(ragged.total_units(), 1)[:, None] / 86_400 * np.geomspace(0.5, 64, 7), (11, 1000))


@pytest.mark.slow
def test_a_day_of_every_kind_of_client_gives_the_same_numbers() -> None:
    day = day_of(3, 20, 0)
    ragged = Ragged.build(day.starts, day.t.astype(np.int64) * 1000, day.units)
    same(ragged, ragged.total_units()[:, None] / 86_400 * np.geomspace(0.5, 64, 16), (11, 1000))


@pytest.mark.slow
def test_what_one_process_compiled_is_loaded_by_the_next() -> None:
    one = Ragged.build(np.array([0, 300]), np.arange(300), np.ones(300))
    program = (
        "import numpy as np\n"
        "from pipeline.replay.kernels.deferral import required_rates\n"
        "from pipeline.replay.kernels.ragged import Ragged\n"
        "one = Ragged.build(np.array([0, 300]), np.arange(300), np.ones(300))\n"
        "print(required_rates(one, 0.0)[0])"
    )
    told = required_rates_on(one, [0.0], [11.0])[0, 0, 0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{told}\n"), done.stderr
