"""What the core that is imported here does with the bytes that seeds stand for: `python -m ... SEED` for one of them.

Without a number it reads seeds from its input, one a line. For each it writes a line: the seed, a digest of all that
happened, and the first thing that no core may do, if there was one.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from types import SimpleNamespace
from typing import Final
from unittest import mock

from gateway.runtime import slices
from gateway.runtime.compiled_core import core_name, stale_modules
from tests.fuzz.both_cores.conversations import FAILED, Say, converse
from tests.fuzz.both_cores.parsing import parse
from tests.fuzz.both_cores.tls import speak_tls

_KINDS: Final[tuple[Callable[[Random, Say], None], ...]] = (converse, parse, converse, parse, speak_tls)

_READING_S: Final = 0.000_3
"""How much later each reading of the clock is that ends slices of work."""


def play(seed: int) -> list[str]:
    """All that happens to what this seed stands for, a line for each step."""
    kind = _KINDS[seed % len(_KINDS)]
    # What the machine's own clock would end differs from run to run. This one ends a turn after so many steps.
    readings = itertools.count(step=_READING_S)
    clock = SimpleNamespace(perf_counter=lambda: next(readings), thread_time=lambda: 0.0)
    lines = [f"{kind.__name__} {seed}"]
    with mock.patch.object(slices, "time", clock):
        kind(Random(seed), lines.append)
    return lines


def main() -> None:
    """See the module."""
    if len(sys.argv) > 1:
        print("\n".join(play(int(sys.argv[1]))))
        return
    print(f"{core_name()} {' '.join(stale_modules())}", flush=True)
    for line in sys.stdin:
        lines = play(int(line))
        digest = blake2b("\n".join(lines).encode(errors="replace"), digest_size=8).hexdigest()
        failed = next((each for each in lines if each.startswith(FAILED)), "")
        print(line.strip(), digest, failed.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
