"""Limits librdkafka's log: without brokers librdkafka repeats a line twenty times a second."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

_EVERY_S: Final = 60.0
_MOST: Final = 256
"""Texts that are counted separately; all others share one line a minute."""

_VARYING: Final = re.compile(r"\[[^\]]*\]|\d+")


class Repeated(logging.Filter):
    """Passes a text when it is new, and once a minute while it is repeated (hazard L07).

    Texts that differ only in numbers and names of clients are the same, so all connections to a broker share a line.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: clock: seconds, monotonic."""
        super().__init__()
        self._clock = clock
        self._told: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        kind = _VARYING.sub("", record.getMessage())
        if kind not in self._told and len(self._told) >= _MOST:
            kind = ""
        now_s = self._clock()
        if now_s - self._told.get(kind, -_EVERY_S) < _EVERY_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        self._told[kind] = now_s
        if left_out := self._left_out.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage()} (and {left_out} times like this since)", None
        return True


def client_logger(name: str) -> logging.Logger:
    """A logger for one kind of librdkafka's clients; the same for each call with the same name."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, Repeated) for each in logger.filters):
        logger.addFilter(Repeated())
    return logger
