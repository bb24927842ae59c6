"""Bugs made on purpose, which the harness must find: a run that finds nothing means something then."""

from collections.abc import Callable
from typing import Final

_MAGIC: Final = b"sluice"


def planted(data: bytes) -> None:
    """Fails for a word and two bytes behind it: chance alone would look for years."""
    if data[: len(_MAGIC)] == _MAGIC and len(data) > len(_MAGIC) + 1:
        first, second = data[len(_MAGIC) : len(_MAGIC) + 2]
        if first > second + 100:
            raise RuntimeError("the planted bug")


PLANTED: Final[dict[str, Callable[[bytes], None]]] = {"planted": planted}
