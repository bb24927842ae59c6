import asyncio
import gc
import io
import json
import logging
import os
import re
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import structlog
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.logging_setup import (
    MAX_VALUE_CHARS,
    EventLimiter,
    render_json,
    render_logfmt,
    report_suppressed,
    setup,
    without_data,
)
from protocol.errors import MalformedBody
from testkit.clock import FakeClock
from testkit.secrets import secrets_in

HOSTILE = "a\x00b\r\nlevel=error c\x1b[31m\x9b\x7f\u2028\u202e\"'\\{}%s=<default>/é\udc80"


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    structlog.reset_defaults()
    for handler in our_handlers():
        root.removeHandler(handler)
    root.setLevel(level)


def our_handlers() -> list[logging.Handler]:
    """What `setup` hung on the root logger, among pytest's own."""
    return [each for each in logging.getLogger().handlers if type(each).__module__ == setup.__module__]


BEGAN = datetime(2026, 7, 29, 12, 0, 0, 118_000, UTC)


class Log:
    """A configured log and what it wrote."""

    def __init__(self, level: str = "info", format: str = "logfmt") -> None:
        self.stream = io.StringIO()
        self.clock = FakeClock(5)
        self.limiter = setup(
            level,
            format,
            stream=self.stream,
            wall_clock=lambda: BEGAN + timedelta(milliseconds=self.clock.now_ms),
            monotonic_ms=lambda: self.clock.now_ms,
        )
        self.logger = structlog.get_logger()

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().split("\n")[:-1]


def test_line_begins_with_event_level_and_time_and_json_has_the_same_keys() -> None:
    log = Log()
    log.logger.info("client closed", listener="default", peer="127.0.0.1:5", throttle_ms=3, strict=True, api=None)
    assert log.lines == [
        'event="client closed" level=info time=2026-07-29T12:00:00.123Z '
        "listener=default peer=127.0.0.1:5 throttle_ms=3 strict=true api="
    ]
    log = Log(format="json")
    log.logger.warning("client closed", throttle_ms=3, strict=True, api=None, names=("a",))
    assert list(json.loads(log.lines[0]).items()) == [
        ("event", "client closed"), ("level", "warning"), ("time", "2026-07-29T12:00:00.123Z"),
        ("throttle_ms", 3), ("strict", True), ("api", None), ("names", "('a',)"),
    ]  # fmt: skip


def parse_logfmt(line: str) -> dict[str, str]:
    """What a logfmt reader makes of a line; fails on anything but pairs."""
    found = {}
    at = 0
    while at < len(line):
        equals = line.index("=", at)
        key = line[at:equals]
        if line[equals + 1 : equals + 2] == '"':
            value, length = json.JSONDecoder().raw_decode(line[equals + 1 :])
            at = equals + 1 + length
        else:
            end = line.find(" ", equals)
            at = len(line) if end < 0 else end
            value = line[equals + 1 : at]
        assert key not in found
        assert line[at : at + 1] in ("", " ")
        found[key] = value
        at += 1
    return found


@pytest.mark.parametrize("format", ["logfmt", "json"])
def test_a23_hostile_names_stay_inside_their_value(format: str) -> None:
    log = Log(format=format)
    log.logger.info("client closed", client_id=HOSTILE, principal='x" level=error')
    assert len(log.lines) == 1
    assert log.lines[0].isascii()
    assert log.lines[0].isprintable()
    found: dict[str, Any] = parse_logfmt(log.lines[0]) if format == "logfmt" else json.loads(log.lines[0])
    assert found["client_id"] == HOSTILE
    assert found["principal"] == 'x" level=error'
    assert found["level"] == "info"


@given(st.text(), st.text(max_size=20))
def test_any_value_is_one_printable_line_and_reads_back(value: str, key: str) -> None:
    event = {"event": "x", key: value, "last": 1}
    for line in (render_logfmt(None, "info", dict(event)), render_json(None, "info", dict(event))):
        assert line.isascii()
        assert line.isprintable()
    if key.isidentifier() and key.isascii():
        assert parse_logfmt(render_logfmt(None, "info", dict(event)))[key] == value


def test_traceback_is_one_line_and_long_values_are_cut() -> None:
    log = Log()
    log.logger.info("x", client_id="c" * 32_767)
    assert len(log.lines[0]) < MAX_VALUE_CHARS + 200
    assert f"({32_767 - MAX_VALUE_CHARS} more)" in log.lines[0]
    log = Log()
    try:
        raise ValueError(HOSTILE)
    except ValueError as exc:
        log.logger.error("channel_failed", exc_info=exc)
    assert len(log.lines) == 1
    assert "Traceback" in parse_logfmt(log.lines[0])["exception"]


def test_lines_below_the_level_are_not_written_and_a_new_setup_reaches_old_loggers() -> None:
    log = Log(level="warning")
    log.logger.info("quiet")
    logging.getLogger("other").info("quiet")
    assert log.lines == []
    again = Log(level="debug")
    log.logger.debug("loud")
    assert [line.split()[0] for line in again.lines] == ["event=loud"]


def test_standard_logging_is_written_the_same_way() -> None:
    log = Log()
    logging.getLogger("kafka.conn").warning("node %s\n gone", "1")
    # Not through the logger: pytest's own handler refuses such a record.
    wrong = logging.LogRecord("kafka.conn", logging.WARNING, "", 0, "bad %d", ("arguments",), None)
    our_handlers()[0].handle(wrong)
    found = [parse_logfmt(line) for line in log.lines]
    assert [(each["event"], each["level"], each["logger"]) for each in found] == [
        ("node 1\n gone", "warning", "kafka.conn"),
        ("bad %d", "warning", "kafka.conn"),
    ]


def test_setting_up_twice_does_not_write_twice_and_access_lines_are_left_to_the_metrics() -> None:
    Log()
    log = Log()
    logging.getLogger("x").error("once")
    assert len(log.lines) == 1
    assert len(our_handlers()) == 1
    log = Log()
    logging.getLogger("aiohttp.access").info("GET /metrics")
    assert log.lines == []
    log = Log()
    log.stream.close()
    log.logger.error("nobody reads this")


def test_flood_of_one_event_is_bounded_and_counted_whatever_its_texts() -> None:
    log = Log()
    for at in range(100):
        log.logger.info("refused", peer=at)
    log.logger.info("something else")
    assert sum("event=refused" in line for line in log.lines) == 20
    assert len(log.lines) == 21
    log.clock.advance(1001)
    log.logger.info("refused", peer="later")
    assert parse_logfmt(log.lines[-1])["suppressed"] == "80"
    log = Log()
    for at in range(100):
        logging.getLogger("kafka.conn").warning("node %d", at)
    assert len(log.lines) == 20
    log = Log()
    for _ in range(25):
        log.logger.info("refused")
    report_suppressed(log.limiter)
    last = parse_logfmt(log.lines[-1])
    assert (last["event"], last["of_event"], last["suppressed"]) == ("log lines left out", "refused", "5")
    log = Log(level="debug")
    for at in range(100):
        log.logger.debug("frame", at=at)
    assert len(log.lines) == 100


def careless(data: bytes) -> None:
    raise KeyError(data)


async def careless_task(data: bytes) -> None:
    careless(data)


@pytest.mark.slow
@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_h15_exception_never_retrieved_is_logged_without_data(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """An event loop puts the exception's text, and the arguments of what it called, into its own message."""
    log = Log()
    secret = b"hunter2"  # no canary: pytest's own handler sees the record as the loop has made it
    message = b"\0alice\0" + secret
    loop = make_loop()
    loop.set_debug(True)
    task = loop.create_task(careless_task(message))
    loop.call_soon(careless, message)
    loop.call_soon(partial(careless, message))
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    del task
    gc.collect()
    loop.close()
    found = [parse_logfmt(line) for line in log.lines if "exception" in parse_logfmt(line)]
    assert len(found) == 3
    assert "Task exception was never retrieved" in [line["event"] for line in found]
    assert all("in careless" in line["exception"] for line in found)
    assert secrets_in("\n".join(log.lines).encode(), [secret]) == []


# -- the limit of lines ---------------------------------------------------------------------------------------------
def test_limit_holds_in_every_second_and_no_line_is_lost_or_told_twice(clock: FakeClock) -> None:
    limiter = EventLimiter(3)
    answers = [limiter.admit("flood", now_ms=clock.now_ms, stamp_ms=clock.now_ms) for _ in range(5)]
    assert answers == [0, 0, 0, None, None]
    clock.advance(1000)  # of a clock of whole milliseconds: a little less may have passed
    assert limiter.admit("flood", now_ms=clock.now_ms, stamp_ms=clock.now_ms) is None
    clock.advance(1)
    assert limiter.admit("flood", now_ms=clock.now_ms, stamp_ms=clock.now_ms) == 3
    assert limiter.admit("flood", now_ms=clock.now_ms, stamp_ms=clock.now_ms) == 0
    limiter = EventLimiter(20)
    written = []
    for _ in range(10_000):
        if limiter.admit("flood", now_ms=clock.now_ms, stamp_ms=clock.now_ms) is not None:
            written.append(clock.now_ms)
        clock.advance(1)
    assert len(written) == 200
    assert all(later - earlier > 1000 for earlier, later in zip(written, written[20:], strict=False))
    limiter = EventLimiter(2)
    # The process stands still for 5 ms between a timestamp and the limiter, or the other way round.
    stamps = [(1, 0), (2, 1), (999, 998), (1_003, 999), (1_005, 1_000), (1_006, 1_001)]
    admitted = [limiter.admit("late", now_ms=now_ms, stamp_ms=at_ms) is not None for now_ms, at_ms in stamps]
    assert admitted == [True, True, False, False, True, True]
    assert limiter.admit("late", now_ms=3_000, stamp_ms=500) == 0  # the wall clock was set back
    limiter = EventLimiter(2)
    answers = []
    for _ in range(500):
        answers.append(limiter.admit("flood", now_ms=clock.now_ms, stamp_ms=clock.now_ms))
        clock.advance(7)
    told = sum(answer for answer in answers if answer is not None)
    written = sum(answer is not None for answer in answers)
    assert written + told + sum(limiter.take_suppressed().values()) == 500
    assert limiter.take_suppressed() == {}


def test_events_have_limits_of_their_own_up_to_a_bound(clock: FakeClock) -> None:
    limiter = EventLimiter(1)
    assert limiter.admit("a", now_ms=clock.now_ms, stamp_ms=clock.now_ms) == 0
    assert limiter.admit("a", now_ms=clock.now_ms, stamp_ms=clock.now_ms) is None
    assert limiter.admit("b", now_ms=clock.now_ms, stamp_ms=clock.now_ms) == 0
    limiter = EventLimiter(1, max_events=2)
    answers = [limiter.admit(name, now_ms=clock.now_ms, stamp_ms=clock.now_ms) for name in ("a", "b", "c", "d", "e")]
    assert answers == [0, 0, 0, None, None]
    assert limiter.take_suppressed() == {"other events": 2}


# -- tracebacks -----------------------------------------------------------------------------------------------------
SECRET = "hunter2"


def traceback_of(call: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as raised:  # whatever it is
        call()
    return without_data((raised.type, raised.value, raised.tb))


def carry(exception: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise exception

    return call


@pytest.mark.parametrize("call", [
    lambda: {}[SECRET], lambda: {}[SECRET.encode()], lambda: {}[(1, SECRET, b"x'y")], lambda: int(SECRET),
    lambda: float(f"{SECRET}'\"quoted"), lambda: [].remove(SECRET), lambda: bytes.fromhex(SECRET),
    lambda: f"\0{SECRET}\udc80".encode(), carry(ValueError(f"a line\n    '{SECRET}\n' and one more")),
    carry(RuntimeError([SECRET])),
])  # fmt: skip
def test_h15_what_an_exception_carries_is_not_written(call: Callable[[], Any]) -> None:
    text = traceback_of(call)
    assert SECRET not in text
    assert text.startswith("Traceback (most recent call last):\n")
    assert "test_logging_setup.py" in text


def test_names_of_our_own_code_and_words_of_the_system_are_written() -> None:
    assert "has no attribute 'missing'" in traceback_of(lambda: None.missing)  # type: ignore[attr-defined]
    assert "'/nowhere/at/all'" in traceback_of(lambda: os.stat("/nowhere/at/all"))
    assert 'protocol.errors.MalformedBody: "x" is odd' in traceback_of(carry(MalformedBody('"x" is odd')))
    assert "KeyError: <9 characters>" in traceback_of(lambda: {}[SECRET])


def test_chain_is_written_in_pythons_order_and_without_data_too() -> None:
    def chain() -> None:
        try:
            int(SECRET)
        except ValueError as exc:
            raise MalformedBody("a number is wanted") from exc

    text = traceback_of(chain)
    assert SECRET not in text
    assert text.index("ValueError") < text.index("direct cause") < text.index("a number is wanted")

    def context() -> None:
        try:
            int(SECRET)
        except ValueError:
            raise RuntimeError("second") from None

    assert "ValueError" not in traceback_of(context)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_f11_a_reader_that_stops_reading_costs_lines_that_are_counted_and_no_time(kind: str) -> None:
    reading, writing = os.pipe() if kind == "pipe" else (each.detach() for each in socket.socketpair())
    with open(reading, "rb", buffering=0) as reader, open(writing, "w") as stream:
        setup(stream=stream, max_lines_per_s=100_000)
        logger = structlog.get_logger()
        for number in range(5_000):  # more than a pipe or a socket holds
            logger.info("flood", number=number, text="x" * 400)
        os.set_blocking(reading, False)
        text = b""
        while part := reader.read(1 << 20):
            text += part
        before = text.count(b"\n")
        assert 0 < before < 5_000
        logger.info("rest")  # of a line that was cut may come first, and it is this one that is lost then
        logger.info("after")
        text += reader.read(1 << 20) or b""
    lines = text.decode().splitlines()
    assert [line for line in lines if not line.startswith(("event=flood ", "event=rest ", "event=after "))] == []
    written = [line for line in lines if line.startswith("event=flood ")]
    assert [f"number={number} " in line for number, line in enumerate(written)] == [True] * len(written)
    (lost,) = re.findall(r" lost=(\d+)", "\n".join(lines))
    assert len(written) + int(lost) == 5_000


def test_f12_a_full_disk_costs_lines_and_no_more() -> None:
    stream = open("/dev/full", "w")  # noqa: SIM115
    setup(stream=stream, max_lines_per_s=100_000)
    logger = structlog.get_logger()
    tracemalloc.start()
    try:
        for number in range(2_000):
            logger.error("flood", number=number, text="x" * 400)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        with suppress(OSError):
            stream.close()
    assert kept < 400_000, "half of what was written"


def test_chain_is_bounded() -> None:
    exception: BaseException = ValueError("0")
    for number in range(1, 20):
        following = ValueError(str(number))
        following.__cause__ = exception
        exception = following
    assert traceback_of(carry(exception)).count("Traceback") == 5
