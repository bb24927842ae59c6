"""Carries out the faults of a round on real processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from testkit.faults.schedule import Fault


def play(
    faults: Sequence[Fault],
    act: Callable[[Fault], None],
    *,
    failures: tuple[type[Exception], ...] = (OSError,),
    within_s: float,
) -> list[str]:
    """Carries out each fault at its time, in a thread of its own. Returns errors of faults that could not be undone.

    Args:
        faults: the faults of one round.
        act: carries out a fault and undoes it.
        failures: errors of `act` that are returned; other errors are also shown by the thread.
        within_s: the longest time for each fault.
    """
    found: list[str] = []
    under_way = set(range(len(faults)))

    def carry_out(at: int, fault: Fault) -> None:
        time.sleep(fault.at_ms / 1_000)
        try:
            act(fault)
        except failures as exc:
            found.append(f"{fault.what} could not be put right: {exc}")
        under_way.discard(at)

    threads = [threading.Thread(target=carry_out, args=each, daemon=True) for each in enumerate(faults)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within_s)
    return found + [f"{faults[at].what} has not been put right" for at in sorted(under_way)]
