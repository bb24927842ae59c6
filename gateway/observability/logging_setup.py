"""Structured logs on standard error: one line per event, logfmt or JSON.

A line holds the event first, then level and time, then what the caller gave, in the caller's order::

    event="client closed" level=info time=2026-07-29T12:00:00.123Z listener=default peer=127.0.0.1:51000

Clients choose their names, so every value is escaped: whatever is in it, a line stays one line of printable ASCII
with the keys that we wrote (hazard A23), of bounded length. Floods are bounded too (`log_limits.py`). The
standard library's logging, which other packages use, ends here as well.

Wall time is read here, for the line, and monotonic time for the limiter; neither goes anywhere else.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import structlog

from gateway.observability.log_exceptions import without_data, without_quotes
from gateway.observability.log_limits import EventLimiter

MAX_VALUE_CHARS: Final = 512
_MAX_TRACEBACK_CHARS: Final = 16_384

# Printable ASCII without blank, quote, equals sign and backslash: reads the same with and without a parser.
_BARE: Final = re.compile(r"""[!#-<>-\[\]-~]+""")
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LEVELS: Final = {
    name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")
}

_Event = MutableMapping[str, Any]

_drop: Callable[[str], bool] = lambda _event: False  # noqa: E731


def setup(
    level: str = "info",
    format: str = "logfmt",
    *,
    stream: TextIO | None = None,
    wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    max_lines_per_s: int = 20,
    limiter: EventLimiter | None = None,
) -> EventLimiter:
    """Makes `structlog.get_logger()` and `logging.getLogger()` write our lines. May be called again.

    Args:
        level: debug, info, warning or error: the lowest that is written.
        format: logfmt or json.
        stream: standard error if not given.
        wall_clock: for the line's time.
        monotonic_ms: for the limiter.
        max_lines_per_s: of one event name. Debug lines are not limited: who asks for them wants them all; nor are
            those with ``audit=True``.
        limiter: of an earlier call, to go on with its counts.

    Returns:
        The limiter, whose counts `report_suppressed` writes at the end.
    """
    counts = limiter or EventLimiter(max_lines_per_s)

    def limit(_logger: Any, method: str, event: _Event) -> _Event:
        if event.pop("audit", False) or method == "debug":
            return event
        suppressed = counts.admit(str(event.pop("limit_by", event["event"])), now_ms=monotonic_ms())
        if suppressed is None:
            raise structlog.DropEvent
        if suppressed:
            event["suppressed"] = suppressed
        return event

    def head(_logger: Any, method: str, event: _Event) -> _Event:
        now = wall_clock().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        ours = {"event": event["event"], "level": method, "time": now}
        return {**ours, **event, **ours}

    output = _Output(stream if stream is not None else sys.stderr)
    structlog.configure(
        processors=[
            limit,
            structlog.contextvars.merge_contextvars,
            head,
            structlog.processors.ExceptionRenderer(without_data),
            render_json if format == "json" else render_logfmt,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=False,  # a later call must reach loggers that exist already
    )
    _route_standard_logging(_LEVELS[level])
    global _drop
    _drop = lambda event: counts.drop(event, now_ms=monotonic_ms())  # noqa: E731
    return counts


def flooded(event: str) -> bool:
    """Whether a line of this event would be left out now; if so it counts as left out, and need not be made.

    Only for lines above debug, and only asked right before the line.
    """
    return _drop(event)


def audit_logger() -> Any:
    """A logger whose lines are written whatever the level; a flood of them is cut unless they say ``audit=True``."""
    return structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))


def report_suppressed(limiter: EventLimiter) -> None:
    """Writes what a flood left out and no later line has told."""
    logger = structlog.get_logger()
    for event, count in limiter.take_suppressed().items():
        logger.warning("log lines left out", of_event=event, suppressed=count)


def render_logfmt(_logger: Any, _method: str, event: _Event) -> str:
    """The event as ``key=value`` pairs; see the module's text."""
    return " ".join(f"{_key(key)}={_logfmt_value(key, value)}" for key, value in event.items())


def render_json(_logger: Any, _method: str, event: _Event) -> str:
    """The event as one JSON object; what JSON does not know is written as text."""
    return _dumps({_key(key): _json_value(key, value) for key, value in event.items()})


def _key(key: str) -> str:
    return key if _KEY.fullmatch(key) else "_".join(re.findall(r"[A-Za-z0-9_.-]+", key))[:64] or "_"


def _logfmt_value(key: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _shortened(key, str(value))
    return text if _BARE.fullmatch(text) else _dumps(text)


def _dumps(value: object) -> str:
    # JSON leaves DEL as it is. It can only stand in a string, so it can be replaced afterwards.
    return json.dumps(value).replace("\x7f", "\\u007f")


def _json_value(key: str, value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _shortened(key, str(value))


def _shortened(key: str, text: str) -> str:
    longest = _MAX_TRACEBACK_CHARS if key == "exception" else MAX_VALUE_CHARS
    return text if len(text) <= longest else f"{text[:longest]}...({len(text) - longest} more)"


class _Output:
    """What structlog calls with a finished line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the reader of our log is gone, or the stream is closed; nobody is left to tell

    debug = info = warning = error = critical = exception = warn = fatal = log = msg


class _ToStructlog(logging.Handler):
    """Sends records of the standard library's logging down the same way."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)  # a record whose arguments do not fit its text
        if record.name == "asyncio":
            # An event loop describes a lost exception with its text, and what it called with the arguments.
            text = without_quotes(text.partition("\n")[0] if record.exc_info else text)
        level = max((value for value in _LEVELS.values() if value <= record.levelno), default=logging.DEBUG)
        # Texts have values in them, so a flood of them is a flood of one logger.
        structlog.get_logger().log(
            level, text, logger=record.name, limit_by=f"log of {record.name}", exc_info=record.exc_info
        )


def _route_standard_logging(level: int) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _ToStructlog):
            root.removeHandler(handler)
    root.addHandler(_ToStructlog())
    root.setLevel(level)
    # One line per request, which is what metrics are for.
    logging.getLogger("aiohttp.access").setLevel(max(level, logging.WARNING))
