"""How often a line of librdkafka is written."""

from __future__ import annotations

import logging

from gateway.runtime.client_log import Repeated, client_logger


def test_l07_a_text_is_written_when_it_is_new_and_once_a_minute_while_it_is_repeated() -> None:
    now_s = 0.0
    repeated = Repeated(lambda: now_s)
    written = []

    def log(text: str) -> None:
        record = logging.LogRecord("kafka", logging.ERROR, "", 0, text, None, None)
        if repeated.filter(record):
            written.append(record.getMessage())

    for at in range(1_200):
        now_s = at * 0.1
        log(f"FAIL [rdkafka#consumer-{at}] [thrd:a:1/1]: a:{at}/1: Connection refused (after {at}ms)")
        if at == 700:
            log("FAIL [rdkafka#consumer-1] [thrd:b:1/1]: b:1/2: Broker handle destroyed")
    assert len(written) == 3
    assert written[1].endswith("destroyed") or "599 times" in written[1]
    assert sum("refused" in text for text in written) == 2


def test_a_logger_has_one_filter_and_texts_without_end_share_one_line() -> None:
    logger = client_logger("tests.client_log")
    assert client_logger("tests.client_log").filters == logger.filters
    assert len(logger.filters) == 1
    repeated = Repeated(lambda: 0.0)
    passed = sum(
        repeated.filter(logging.LogRecord("kafka", logging.ERROR, "", 0, "x" * at, None, None)) for at in range(1_000)
    )
    assert passed == 256
