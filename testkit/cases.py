"""Cases of tests: many small ones in one test, and seeds of which most are for campaigns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def seeds(first: int, count: int) -> list[Any]:
    """Numbers from 0 on, for `pytest.mark.parametrize`. All but the first ones are for campaigns."""
    return [*range(first), *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(first, count))]


def every_case(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Runs the test for each case in turn, without pytest's milliseconds for each of them.

    A note under the traceback names the case that fails.

    Args:
        names: the argument, or the arguments, whose values a case has.
        cases: values, or tuples of them; at least one.
    """
    arguments = (names,) if isinstance(names, str) else names
    rows = [(case,) if isinstance(names, str) else tuple(case) for case in cases]
    assert rows, "a test without cases tests nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**given: Any) -> None:
            for row in rows:
                case = dict(zip(arguments, row, strict=True))
                try:
                    test(**given, **case)
                except BaseException as exc:
                    exc.add_note(f"with {case}")
                    raise

        signature = inspect.signature(test)
        others = [value for name, value in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
