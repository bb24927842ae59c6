from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from gateway.observability.log_exceptions import without_data
from protocol.errors import MalformedBody

SECRET = "hunter2"


def written(call: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as raised:  # whatever it is
        call()
    return without_data((raised.type, raised.value, raised.tb))


def carry(exception: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise exception

    return call


@pytest.mark.parametrize(
    "call",
    [
        lambda: {}[SECRET],
        lambda: {}[SECRET.encode()],
        lambda: {}[(1, SECRET, b"x'y")],
        lambda: int(SECRET),
        lambda: float(f"{SECRET}'\"quoted"),
        lambda: [].remove(SECRET),
        lambda: bytes.fromhex(SECRET),
        lambda: f"\0{SECRET}\udc80".encode(),
        carry(ValueError(f"a line\n    '{SECRET}\n' and one more")),
        carry(RuntimeError([SECRET])),
    ],
)
def test_h15_what_an_exception_carries_is_not_written(call: Callable[[], Any]) -> None:
    text = written(call)
    assert SECRET not in text
    assert text.startswith("Traceback (most recent call last):\n")
    assert "test_log_exceptions.py" in text


def test_names_of_our_own_code_and_words_of_the_system_are_written() -> None:
    assert "has no attribute 'missing'" in written(lambda: None.missing)  # type: ignore[attr-defined]
    assert "'/nowhere/at/all'" in written(lambda: os.stat("/nowhere/at/all"))
    assert 'protocol.errors.MalformedBody: "x" is odd' in written(carry(MalformedBody('"x" is odd')))
    assert "KeyError: <9 characters>" in written(lambda: {}[SECRET])


def test_chain_is_written_in_pythons_order_and_without_data_too() -> None:
    def chain() -> None:
        try:
            int(SECRET)
        except ValueError as exc:
            raise MalformedBody("a number is wanted") from exc

    text = written(chain)
    assert SECRET not in text
    assert text.index("ValueError") < text.index("direct cause") < text.index("a number is wanted")

    def context() -> None:
        try:
            int(SECRET)
        except ValueError:
            raise RuntimeError("second") from None

    assert "ValueError" not in written(context)


def test_chain_is_bounded() -> None:
    exception: BaseException = ValueError("0")
    for number in range(1, 20):
        following = ValueError(str(number))
        following.__cause__ = exception
        exception = following
    assert written(carry(exception)).count("Traceback") == 5
