"""How long a test sleeps between two looks at another process: each look costs both of them CPU."""

from __future__ import annotations


def pause_s(waited_s: float) -> float:
    """Twenty milliseconds at first, then a tenth of what has been waited so far; a quarter of a second at most."""
    return min(max(waited_s / 10, 0.02), 0.25)
