"""Ends a process that alters quotas at one chosen system call, and checks the store that the next process opens.

strace attaches to the writing thread. At the n-th call of a kind it kills the process, or makes the call fail. A
first run without faults lists the calls. This module starts no threads, so that it can fork.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import re
import select
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from campaigns.crash_scenarios import SCENARIOS, Scenario
from gateway.quota_admin.store.interface import Alteration, StoreError
from quotas.entities import QuotaEntity, QuotaKey
from testkit.faults.effects import strace
from testkit.quota_stores import FETCH, Seen, alteration, sqlite_store

Values = dict[tuple[QuotaEntity, QuotaKey], float]

_CALL: Final = re.compile(r"^(?:\[pid +\d+\] )?(\w+)\(", re.MULTILINE)
_DEADLINE_S: Final = 20.0


@dataclass(frozen=True)
class Outcome:
    """The result at one point.

    Attributes:
        killed: True if the process was to be killed; False if the call was to fail.
        reached: whether the process ended there. It did not if it made fewer such calls, or survived the failure.
        acknowledged: the process had acknowledged the alteration.
        refused: the process had refused the alteration.
        again: a second attempt was acknowledged.
        torn: after the refusal, the quotas in force had changed.
        found: "old" or "new"; anything else is a fault.
    """

    scenario: str
    call: str
    at: int
    killed: bool
    reached: bool
    acknowledged: bool
    refused: bool
    again: bool
    torn: bool
    found: str

    @property
    def fault(self) -> str | None:
        """The broken rule; None if there is none."""
        if self.found not in ("old", "new"):
            return self.found
        if self.acknowledged and self.found == "old":
            return "acknowledged, and lost"
        if self.reached and not self.killed:
            return "the process ended"
        if self.torn:
            return "refused, and in force"
        if self.refused and not self.again and not self.reached:
            return "refused a second time"
        if self.refused and self.found == "new" and not self.again:
            return "refused, and made"
        return None


@dataclass
class _Child:
    pid: int
    thread: int
    say: int
    hear: int
    heard: list[str] = field(default_factory=list)


class CrashPoints:
    """Prepared stores of all scenarios, and their crash points."""

    def __init__(self, folder: Path) -> None:
        """Create the stores.

        Args:
            folder: an empty folder on the file system to test.
        """
        self._folder = folder
        self._states: dict[str, tuple[Values, Values]] = {}
        for scenario in SCENARIOS:
            template = self._template(scenario)
            if scenario.change is None:
                self._states[scenario.name] = ({}, {})
                continue
            # The process of a warm scenario writes these alterations itself.
            asyncio.run(_write(template, *(() if scenario.warm else scenario.before)))
            copy = folder / "copy"
            shutil.copytree(template, copy)
            asyncio.run(_write(copy, *scenario.before))
            old = asyncio.run(_read(copy))
            asyncio.run(_write(copy, scenario.change))
            self._states[scenario.name] = (old, asyncio.run(_read(copy)))
            shutil.rmtree(copy)

    def calls(self, scenario: Scenario) -> list[str]:
        """The system calls of the alteration, in order."""
        log = self._folder / "calls"
        with self._started(scenario) as (child, _):
            with strace(child.thread, "-o", str(log)) as tracer:
                _finish(child)
            tracer.wait(_DEADLINE_S)
        # In the last call the thread waits for more work.
        return _CALL.findall(log.read_text(errors="replace"))

    def record(self, scenario: Scenario, calls: str) -> tuple[dict[str, bytes], str]:
        """The files before an alteration, and strace's log of some calls with all the data that they write."""
        log = self._folder / "calls"
        with self._started(scenario) as (child, folder):
            before = {path.name: path.read_bytes() for path in folder.iterdir()}
            with strace(
                child.thread, "-o", str(log), "-e", f"trace={calls}", "-y", "-xx", "-s", "1000000"
            ) as tracer:
                _finish(child)
            tracer.wait(_DEADLINE_S)
        return before, log.read_text()

    def state(self, files: dict[str, bytes], scenario: Scenario) -> str:
        """The state of a store with these files: "old", "new", or a description of its fault."""
        folder = self._folder / "image"
        folder.mkdir()
        try:
            for name, content in files.items():
                (folder / name).write_bytes(content)
            return self._found(scenario, folder)
        finally:
            shutil.rmtree(folder)

    def points(self) -> Iterator[tuple[Scenario, str, int]]:
        """Every call of every scenario: the scenario, the call's name and its number among those of that name."""
        for scenario in SCENARIOS:
            for name, count in collections.Counter(self.calls(scenario)).items():
                for at in range(1, count + 1):
                    yield scenario, name, at

    def kill(self, scenario: Scenario, call: str, at: int) -> Outcome:
        """Kill the process at the entry of a call."""
        return self._try(scenario, call, at, f"inject={call}:signal=KILL:when={at}")

    def fail(self, scenario: Scenario, call: str, at: int, error: str) -> Outcome:
        """Make a call fail, once, and end the process after the answer."""
        return self._try(scenario, call, at, f"inject={call}:error={error}:when={at}")

    def _try(self, scenario: Scenario, call: str, at: int, injection: str) -> Outcome:
        with self._started(scenario) as (child, folder):
            with strace(child.thread, "-o", "/dev/null", "-e", f"trace={call}", "-e", injection) as tracer:
                _finish(child)
            tracer.wait(_DEADLINE_S)
            reached = "end" not in child.heard
            _end(child)
            return Outcome(
                scenario.name,
                call,
                at,
                killed="signal=KILL" in injection,
                reached=reached,
                acknowledged="made" in child.heard or "again" in child.heard,
                refused="refused" in child.heard,
                again="again" in child.heard,
                torn="torn" in child.heard,
                found=self._found(scenario, folder),
            )

    def _found(self, scenario: Scenario, folder: Path) -> str:
        old, new = self._states[scenario.name]
        try:
            found = asyncio.run(_read(folder))
            # The store is also writable: no partial transaction blocks it.
            asyncio.run(_write(folder, alteration((QuotaEntity(user="after"), FETCH, 1.0))))
        except StoreError as exc:
            return f"not opened: {exc}"
        if found == new:
            return "new"
        return "old" if found == old else f"a mix: {len(found)} quotas"

    def _template(self, scenario: Scenario) -> Path:
        return self._folder / f"template {scenario.name}"

    @contextlib.contextmanager
    def _started(self, scenario: Scenario) -> Iterator[tuple[_Child, Path]]:
        folder = self._folder / "run"
        if scenario.change is not None:
            shutil.copytree(self._template(scenario), folder)
        child = _fork(folder, scenario)
        try:
            yield child, folder
        finally:
            _end(child)
            os.close(child.say)
            os.close(child.hear)
            shutil.rmtree(folder, ignore_errors=True)


async def _write(folder: Path, *alterations: Alteration) -> None:
    store = sqlite_store(folder)
    await store.open(Seen())
    try:
        for each in alterations:
            await store.write(each)
    finally:
        await store.close()


async def _read(folder: Path) -> Values:
    store = sqlite_store(folder)
    await store.open(seen := Seen())
    await store.close()
    return seen.values


# -- the process that is killed ----------------------------------------------------------------------------------


def _fork(folder: Path, scenario: Scenario) -> _Child:
    hear, tell = os.pipe()
    listen, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(hear)
            os.close(say)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            _live(
                folder,
                scenario,
                lambda word: os.write(tell, f"{word}\n".encode()),
                lambda: os.read(listen, 1),
            )
            code = 0
        finally:
            os._exit(code)
    os.close(tell)
    os.close(listen)
    child = _Child(pid, 0, say, hear)
    child.thread = int(_hear(child))
    return child


def _live(
    folder: Path, scenario: Scenario, tell: Callable[[object], object], wait: Callable[[], object]
) -> None:
    store = sqlite_store(folder)
    if scenario.change is None:
        tell(threading.get_native_id())
        wait()
        try:
            store._load()
            tell("made")
        except StoreError:
            tell("refused")
            sqlite_store(folder)._load()
            tell("again")
        tell("end")
        wait()
        return

    async def alter(change: Alteration) -> None:
        await store.open(seen := Seen())
        if scenario.warm:
            for each in scenario.before:
                await store.write(each)
        before = dict(seen.values)
        await store.history(1)
        tell(next(each.native_id for each in threading.enumerate() if "quota-store" in each.name))
        wait()
        try:
            await store.write(change)
            tell("made")
        except StoreError:
            if seen.values != before:
                tell("torn")
            tell("refused")
            await store.write(change)
            tell("again")
        # Work that remains after the answer is done before the next task of the same thread.
        await store.history(1)
        tell("end")
        wait()

    asyncio.run(alter(scenario.change))


def _hear(child: _Child) -> str:
    """The child's next word; "" when the child has ended."""
    word = b""
    while not word.endswith(b"\n"):
        ready, _, _ = select.select([child.hear], [], [], _DEADLINE_S)
        if not ready:
            raise TimeoutError(f"the process says nothing after {child.heard}")
        piece = os.read(child.hear, 1)
        if not piece:
            return ""
        word += piece
    return word.decode().strip()


def _finish(child: _Child) -> None:
    """Let the child continue, and read all its output."""
    # The first call of a kind may already be running before the child reads its input.
    with contextlib.suppress(BrokenPipeError):
        os.write(child.say, b".")
    while word := _hear(child):
        child.heard.append(word)
        if word == "end":
            return


def _end(child: _Child) -> None:
    if child.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        child.pid = 0
