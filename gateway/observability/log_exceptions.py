"""Tracebacks for the log: where and what kind, without the data that an exception carries in its text (hazard H15).

``KeyError(frame)`` or ``int(text)`` would write what a client sent, which may be its password. So text in quotes is
left out, unless the kind of exception only ever quotes our own code or the system.
"""

from __future__ import annotations

import re
import traceback
from types import TracebackType
from typing import Final, TypeAlias

from protocol.errors import ProtocolError

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

_QUOTED: Final = re.compile(r"""b?(?P<quote>['"]).*(?P=quote)""", re.DOTALL)
# They quote names of our own code, the system's words, and what `protocol` has put into words itself.
_HARMLESS: Final = (AttributeError, NameError, TypeError, ImportError, OSError, ProtocolError)
_MAX_CHAIN: Final = 5
_BECAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"


def without_data(exc_info: ExcInfo) -> str:
    """The traceback of an exception and of those that led to it, in Python's usual form."""
    exception: BaseException | None = exc_info[1]
    parts: list[str] = []
    for _ in range(_MAX_CHAIN):
        if exception is None:
            break
        frames = "".join(traceback.format_tb(exception.__traceback__))
        kind = f"{type(exception).__module__}.{type(exception).__qualname__}".removeprefix("builtins.")
        parts.append(f"Traceback (most recent call last):\n{frames}{kind}: {_text(exception)}\n")
        before, why = exception.__cause__, _BECAUSE
        if before is None and not exception.__suppress_context__:
            before, why = exception.__context__, _MEANWHILE
        if before is not None:
            parts.append(why)
        exception = before
    return "".join(reversed(parts)).rstrip("\n")


def _text(exception: BaseException) -> str:
    text = str(exception)
    if isinstance(exception, _HARMLESS) and not isinstance(exception, UnicodeError):
        return text
    return without_quotes(text)


def without_quotes(text: str) -> str:
    """The text without what it quotes, which may be data."""
    # From the first quote to the last one: what is quoted may contain quotes.
    return _QUOTED.sub(lambda found: f"<{len(found[0])} characters>", text)
