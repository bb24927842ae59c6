"""How long a test sleeps between two checks of another process, because each check costs both of them CPU."""

from __future__ import annotations


def pause_s(waited_s: float) -> float:
    """Twenty milliseconds at first, then a tenth of the time waited so far, at most a quarter of a second."""
    return min(max(waited_s / 10, 0.02), 0.25)
