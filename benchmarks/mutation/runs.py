"""Runs of the unit tests, each in a process forked from one that has collected them; no file is changed.

A mutant replaces the code of a function, so that only the tests themselves run for it. Results of imports do not
change, so code that imports run gets no mutants.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import signal
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias

import coverage
import pytest
from hypothesis import HealthCheck, Phase, settings

from benchmarks.mutation.mutants import Mutant

ARGUMENTS: Final = (
    *("-m", "not integration and not spark and not campaign and not slow"),
    *("--ignore=tests/integration", "--ignore=tests/pipeline"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of hypothesis
    *("-o", "addopts=--strict-markers --strict-config"),
    *(f"-pno:{name}" for name in ("randomly", "cacheprovider", "xdist", "rerunfailures", "terminal")),
    "tests",
)

OUTSIDE: Final = {"socket.__new__", "subprocess.Popen", "os.fork", "_thread.start_new_thread"}
"""Audit events of tests that depend on the environment as well as on the code."""

LEAST_CPU_S: Final = 5
TIMES_THE_CPU: Final = 5
"""A test's time limit with a mutant, in multiples of its time without."""

MEMORY_BYTES: Final = 4 << 30

Outcome: TypeAlias = tuple[str, str]
"""`killed` and the first test that failed, `timeout` and the signal, `survived`, or a `fault` of the run itself."""


@dataclass(frozen=True, slots=True)
class Covered:
    """The tests' behaviour without a mutant. A test with parameters is one test.

    Attributes:
        seconds: CPU seconds by test, including the overhead of measuring.
        by_line: tests by file and line, with "" if imports or the collection of tests run the line.
    """

    seconds: dict[str, float]
    by_line: dict[str, dict[int, list[str]]]

    def tests_of(self, file: str, lines: Iterable[int]) -> dict[str, float] | None:
        """Tests that run one of these lines, with their seconds; None if imports run one of them, too."""
        tests = {test for line in lines for test in self.by_line[file].get(line, ())}
        return None if "" in tests else {test: self.seconds[test] for test in tests if test in self.seconds}


class _Session:
    """A pytest session that collects the tests and passes them to `work`.

    Hypothesis generates the same examples each time. It stores none, and does not shrink failing examples.
    """

    def __init__(self, work: Callable[[_Session, list[pytest.Item]], None]) -> None:
        self.failed: list[str] = []
        self._work = work

    def run(self) -> None:
        code = pytest.main([*ARGUMENTS], plugins=[self])
        if code != pytest.ExitCode.OK:
            raise SystemExit(f"pytest ended with {code!r}: {self.failed}")

    def first_failure(self, items: Sequence[pytest.Item], seconds: dict[str, float]) -> list[str]:
        """Run these tests, the quick ones first, until one fails; returns the failed test."""
        chosen = sorted(
            (item for item in items if name(item) in seconds), key=lambda item: seconds[name(item)]
        )
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            # A limit of CPU time, because the machine may be busy. A test that uses no CPU is limited by the clock.
            cpu_s = LEAST_CPU_S + TIMES_THE_CPU * seconds[name(item)]
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            signal.setitimer(signal.ITIMER_REAL, 30 * cpu_s)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                break
        return self.failed

    def pytest_sessionstart(self) -> None:
        settings.register_profile(
            "mutation",
            settings.get_profile("quick"),
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
        )
        settings.load_profile("mutation")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if self.failed:
            return None
        # A test with an event loop may depend on other load of the machine.
        self._work(self, [item for item in session.items if not item.get_closest_marker("asyncio")])
        return True


def name(item: pytest.Item) -> str:
    """The test's name without its parameters."""
    return item.nodeid.partition("[")[0]


def try_mutants(
    files: Sequence[Path],
    choose: Callable[[Covered], Iterable[Mutant]],
    report: Callable[[Mutant, Outcome], None],
) -> None:
    """Report the outcome of each chosen mutant of these files.

    Raises:
        SystemExit: a test fails without a mutant.
    """
    measuring = coverage.Coverage(data_file=None, config_file=False, include=[str(file) for file in files])

    def work(session: _Session, items: list[pytest.Item]) -> None:
        covered = _forked(lambda: _measured(session, items, measuring, files))
        measuring.stop()
        if not isinstance(covered, Covered):
            raise SystemExit(f"without a mutant: {covered}")
        if control := _forked(lambda: session.first_failure(items, covered.seconds)):
            raise SystemExit(f"without a mutant, once more: {control}")
        gc.unfreeze()  # `gc` does not list frozen objects
        functions = [each for each in gc.get_objects() if type(each) is FunctionType]
        gc.freeze()
        for mutant in choose(covered):
            seconds = covered.tests_of(mutant.file, mutant.covering)
            told = _forked(lambda: _tried(session, items, functions, mutant, seconds)) if seconds else []  # noqa: B023
            if isinstance(told, list):
                report(
                    mutant,
                    ("killed", told[0]) if told else ("survived", "" if seconds else "no test runs it"),
                )
            elif told in (-signal.SIGPROF, -signal.SIGALRM):
                report(mutant, ("timeout", signal.Signals(-told).name))
            else:
                raise SystemExit(
                    f"{mutant.file}:{mutant.line} {mutant.operator}: its process ended with {told}"
                )

    measuring.start()
    _Session(work).run()


def _measured(
    session: _Session, items: list[pytest.Item], measuring: coverage.Coverage, files: Sequence[Path]
) -> Covered | list[str]:
    running = ""
    outside: set[str] = set()
    seconds: dict[str, float] = defaultdict(float)
    sys.addaudithook(lambda event, _: outside.add(running) if event in OUTSIDE else None)
    for item, following in zip(items, [*items[1:], None], strict=True):
        running = name(item)
        measuring.switch_context(running)
        began_s = time.process_time()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        seconds[running] += time.process_time() - began_s
    measuring.stop()
    if failed := [test for test in session.failed if test.partition("[")[0] not in outside]:
        return failed
    data = measuring.get_data()
    return Covered(
        {test: value for test, value in seconds.items() if test not in outside},
        {str(file): data.contexts_by_lineno(str(file.resolve())) for file in files},
    )


def _tried(
    session: _Session,
    items: list[pytest.Item],
    functions: Sequence[FunctionType],
    mutant: Mutant,
    seconds: dict[str, float],
) -> list[str]:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    path = str(Path(mutant.file).resolve())
    changes = list(changed_codes(mutant, path))
    changed = False
    for function in functions:
        if function.__code__.co_filename == path:
            for before, after in changes:
                if function.__code__ == before:
                    function.__code__ = after
                    changed = True
                    break
    assert changed, f"no function has line {mutant.line} of {path}"
    return session.first_failure(items, seconds)


def changed_codes(mutant: Mutant, path: str) -> Iterator[tuple[CodeType, CodeType]]:
    """The code that the mutant changes, before and after, including nested functions."""
    old, new = (_codes(_compile(text, path)) for text in (Path(path).read_text(), mutant.source))
    for key, befores in old.items():
        yield from (pair for pair in zip(befores, new.get(key, ())) if pair[0] != pair[1])


def _compile(source: str, path: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about comparisons with `is`, say
        return compile(source, path, "exec", dont_inherit=True)


def _codes(code: CodeType) -> dict[tuple[str, int], list[CodeType]]:
    found: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
    left = [code]
    for each in left:
        found[each.co_qualname, each.co_firstlineno].append(each)
        left += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
    return found


def _forked(work: Callable[[], Any]) -> Any:
    """The result of `work`, or the process's exit code if it ended without a result."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_told, args=(there, work))
    process.start()
    there.close()
    try:
        told = here.recv()
    except EOFError:
        told = None
    process.join()
    return process.exitcode if told is None else told


def _told(there: Connection, work: Callable[[], Any]) -> None:
    there.send(work())
