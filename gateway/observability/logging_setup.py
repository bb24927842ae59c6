"""Structured logs on standard error: one line per event, logfmt or JSON.

A line has the event first, then level and time, then the caller's values in the caller's order::

    event="client closed" level=info time=2026-07-29T12:00:00.123Z listener=default peer=127.0.0.1:51000

Clients choose their names, so every value is escaped. Whatever it contains, a line stays one line of printable ASCII
of bounded length, and only the gateway sets its keys (hazard A23). The lines per second of one event are limited.
Further lines are left out and counted, and the event's next line reports their number. Lines for which the log had no
room are counted in the next line of any event (`lost`). The standard library's logging, which other packages use, is
written here too.

A traceback shows the place and the class of an exception, but not the data in its text (hazard H15):
``KeyError(frame)`` or ``int(text)`` would write bytes of a client, which may be its password. So text in quotes is
left out, unless the class of exception only quotes our own code or the system.

Wall time is read here for the line, and monotonic time for the limiter. Neither is used for anything else.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO, TypeAlias

import structlog

from gateway.observability.log_output import LogOutput
from protocol.errors import ProtocolError

MAX_VALUE_CHARS: Final = 512
_MAX_TRACEBACK_CHARS: Final = 16_384

# Printable ASCII without space, quote, equals sign and backslash: it reads the same with and without a parser.
_BARE: Final = re.compile(r"""[!#-<>-\[\]-~]+""")
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LEVELS: Final = {
    name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")
}

_LIMIT_WINDOW_MS: Final = 1001
"""A second on a clock of whole milliseconds: two readings that differ by 1000 may be only 999.1 ms apart."""
_SECOND_MS: Final = 1000
_OVERFLOW: Final = "other events"

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

_QUOTED: Final = re.compile(r"""b?(?P<quote>['"]).*(?P=quote)""", re.DOTALL)
# These quote names of our own code, texts of the system, and texts that `protocol` has composed itself.
_HARMLESS: Final = (AttributeError, NameError, TypeError, ImportError, OSError, ProtocolError)
_MAX_CHAIN: Final = 5
_BECAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"

_Event = MutableMapping[str, Any]


class EventLimiter:
    """Decides which lines are written. Pure: time is an argument.

    The limit holds in any span of a second: a line is admitted only if the line written ``max_per_s`` lines before it
    is a second old. By their timestamps too: the process may stand still between a timestamp and the admission.
    """

    def __init__(self, max_per_s: int = 20, *, max_events: int = 1024) -> None:
        """Starts with nothing counted.

        Args:
            max_per_s: lines per second and event name.
            max_events: names with a limit of their own. Further names share one limit, because names may be log texts
                of other libraries.
        """
        self._max_per_s = max_per_s
        self._max_events = max_events
        self._written: dict[str, deque[tuple[int, int]]] = {}  # when, and with which timestamp, in ms
        self._suppressed: dict[str, int] = {}

    def drop(self, event: str, *, now_ms: int) -> bool:
        """Counts a line as left out and returns True if `admit` would leave it out; otherwise does nothing.

        It is for callers that write floods of lines which take time to compose.
        """
        written = self._written.get(event)
        if written is None or len(written) < self._max_per_s or now_ms - written[0][0] >= _LIMIT_WINDOW_MS:
            return False
        self._suppressed[event] = self._suppressed.get(event, 0) + 1
        return True

    def admit(self, event: str, *, now_ms: int, stamp_ms: int) -> int | None:
        """Whether a line may be written.

        Args:
            event: its name.
            now_ms: the time, by a clock that never jumps.
            stamp_ms: the timestamp that the line will have. Where it is before an earlier line's, that clock was set.

        Returns:
            The number of lines of this event that were left out since the last written one; None when this one is
            left out as well.
        """
        if event not in self._written and len(self._written) >= self._max_events:
            event = _OVERFLOW
        written = self._written.get(event)
        if written is None:
            written = self._written[event] = deque(maxlen=self._max_per_s)
        if len(written) == self._max_per_s and (
            now_ms - written[0][0] < _LIMIT_WINDOW_MS or 0 <= stamp_ms - written[0][1] < _SECOND_MS
        ):
            self._suppressed[event] = self._suppressed.get(event, 0) + 1
            return None
        written.append((now_ms, stamp_ms))
        return self._suppressed.pop(event, 0)

    def take_suppressed(self) -> dict[str, int]:
        """Lines left out and not reported yet, by event; they count as reported from now on."""
        suppressed, self._suppressed = self._suppressed, {}
        return suppressed


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
    cluster: str | None = None,
) -> EventLimiter:
    """Makes `structlog.get_logger()` and `logging.getLogger()` write lines in this form. May be called again.

    Args:
        level: debug, info, warning or error: the lowest written level.
        format: logfmt or json.
        stream: standard error if not given.
        wall_clock: for the line's time.
        monotonic_ms: for the limiter.
        max_lines_per_s: lines per event name. Debug lines and lines with ``audit=True`` are not limited.
        limiter: that of an earlier call, to continue its counts.
        cluster: the cluster's name in each line, if the gateway has several.

    Returns:
        The limiter, whose counts `report_suppressed` writes at the end.
    """
    counts = limiter or EventLimiter(max_lines_per_s)

    def limit(_logger: Any, method: str, event: _Event) -> _Event:
        stamp = event["time"] = wall_clock()
        if event.pop("audit", False) or method == "debug":
            return event
        name, stamp_ms = str(event.pop("limit_by", event["event"])), int(stamp.timestamp() * 1000)
        suppressed = counts.admit(name, now_ms=monotonic_ms(), stamp_ms=stamp_ms)
        if suppressed is None:
            raise structlog.DropEvent
        if suppressed:
            event["suppressed"] = suppressed
        return event

    def head(_logger: Any, method: str, event: _Event) -> _Event:
        now = event["time"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
        ours = {"event": event["event"], "level": method, "time": now}
        if output.lost:
            event["lost"] = output.lost
        if cluster is not None:
            ours["cluster"] = cluster
        return {**ours, **event, **ours}

    output = LogOutput(stream if stream is not None else sys.stderr)
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
        cache_logger_on_first_use=False,  # a later call must apply to loggers that exist already
    )
    _route_standard_logging(_LEVELS[level])
    global _drop
    _drop = lambda event: counts.drop(event, now_ms=monotonic_ms())  # noqa: E731
    return counts


def flooded(event: str) -> bool:
    """Whether a line of this event would be left out now. If so, it is counted and the caller need not compose it.

    Call it only for lines above debug, right before the line.
    """
    return _drop(event)


def audit_logger() -> Any:
    """A logger whose lines are written at every level. A flood of them is limited, except with ``audit=True``."""
    return structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))


def report_suppressed(limiter: EventLimiter) -> None:
    """Writes the numbers of left-out lines that no later line has reported."""
    logger = structlog.get_logger()
    for event, count in limiter.take_suppressed().items():
        logger.warning("log lines left out", of_event=event, suppressed=count)


def render_logfmt(_logger: Any, _method: str, event: _Event) -> str:
    """The event as ``key=value`` pairs; see the module."""
    return " ".join(f"{_key(key)}={_logfmt_value(key, value)}" for key, value in event.items())


def render_json(_logger: Any, _method: str, event: _Event) -> str:
    """The event as one JSON object; values that JSON does not support are written as text."""
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
    # JSON does not escape DEL. It occurs only in strings, so it can be replaced afterwards.
    return json.dumps(value).replace("\x7f", "\\u007f")


def _json_value(key: str, value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _shortened(key, str(value))


def _shortened(key: str, text: str) -> str:
    longest = _MAX_TRACEBACK_CHARS if key == "exception" else MAX_VALUE_CHARS
    return text if len(text) <= longest else f"{text[:longest]}...({len(text) - longest} more)"


class _ToStructlog(logging.Handler):
    """Passes records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)  # the record's arguments do not fit its text
        if record.name == "asyncio":
            # An event loop's record contains the text of a lost exception, and the call with its arguments.
            text = without_quotes(text.partition("\n")[0] if record.exc_info else text)
        level = max((value for value in _LEVELS.values() if value <= record.levelno), default=logging.DEBUG)
        # Texts contain values and so differ. Therefore floods are limited per logger.
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
    # This logger writes one line per request, but metrics count requests already.
    logging.getLogger("aiohttp.access").setLevel(max(level, logging.WARNING))


def without_data(exc_info: ExcInfo) -> str:
    """The traceback of an exception and its causes, in Python's usual form without data."""
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
    """The text without its quoted parts, which may be data."""
    # This removes everything from the first quote to the last one, because quoted text may contain quotes.
    return _QUOTED.sub(lambda found: f"<{len(found[0])} characters>", text)
