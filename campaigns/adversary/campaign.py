"""Plays many scripts, several at a time, beside honest clients; reports each finding with its shortest script."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from campaigns.adversary.honest import HonestClient
from campaigns.adversary.honest_client import PATIENCE_S
from campaigns.adversary.player import Outcome
from campaigns.adversary.script import Script, make_script
from campaigns.adversary.shrink import shrink
from campaigns.adversary.stage import Found, Stage
from campaigns.adversary.verdict import Violation, judge
from campaigns.adversary.watch import EVENT_CPU_MS, Watch
from testkit.wire_client import now_ms

OF_THE_PROCESS: Final = frozenset({"stall", "memory", "honest", "ended"})
"""Violations that can be assigned to a script only by playing that script alone."""

AT_ONCE: Final = 24
"""Scripts that are played at the same time."""

_LOOK_S: Final = 0.5
_PLAYED_MS: Final = 10_000.0
"""Every script that was running so long ago has ended."""

_LATE_MS: Final = 2_000.0
"""How long after its end a script can still be the cause of a violation."""


@dataclass(slots=True)
class Finding:
    """A violation and the script that caused it.

    Attributes:
        violation: the first of its kind that this script caused.
        script: the original or the shrunk script.
        steps: number of steps of the original script.
        repeated: whether it happened again when the script was played alone; None if not tried.
    """

    violation: Violation
    script: Script
    steps: int
    repeated: bool | None = None


@dataclass(slots=True)
class Report:
    """Results of a campaign.

    Attributes:
        episodes, requests, connections: how many were played.
        seconds: how long it took, without shrinking.
        findings: one for each script and kind; the first ones of each kind are shrunk.
        honest_ms: how long requests of honest clients took, sorted.
        starved: their unanswered requests while the client that bypasses the gateway also waited long.
        most_rss_bytes, most_event_cpu_ms, most_turn_cpu_ms, turns, long_turns: see `Watch`.
        apis: how many requests of each.
    """

    episodes: int = 0
    requests: int = 0
    connections: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    honest_ms: list[float] = field(default_factory=list)
    starved: list[str] = field(default_factory=list)
    most_rss_bytes: int = 0
    most_event_cpu_ms: float = 0.0
    most_turn_cpu_ms: float = 0.0
    turns: int = 0
    long_turns: int = 0
    apis: Counter[str] = field(default_factory=Counter)

    @property
    def kinds(self) -> Counter[str]:
        """Number of scripts by kind of violation."""
        return Counter(finding.violation.kind for finding in self.findings)


class Campaign:
    """See the module."""

    def __init__(
        self,
        stage: Stage,
        *,
        first_seed: int = 1,
        episodes: int = 10_000,
        seconds: float = 1_800,
        at_once: int = AT_ONCE,
        event_cpu_ms: float = EVENT_CPU_MS,
        shrunk_per_kind: int = 2,
        ends_at: frozenset[str] = frozenset(),
        tell: Callable[[str], None] = print,
    ) -> None:
        """Prepare the campaign without playing anything.

        Args:
            stage: a running stage.
            first_seed: the first seed; the others follow it.
            episodes: how many scripts at most.
            seconds: how long at most, without shrinking.
            at_once: how many scripts are played at the same time.
            event_cpu_ms: how long one event of the gateway may take.
            shrunk_per_kind: how many findings of a kind are shrunk.
            ends_at: kinds of violations at which it ends at once; then only these are shrunk.
            tell: called with lines of progress.
        """
        self._stage = stage
        self._seeds = iter(range(first_seed, first_seed + episodes))
        self._seconds = seconds
        self._at_once = at_once
        self._shrunk_per_kind = shrunk_per_kind
        self._ends_at = ends_at
        self._tell = tell
        self._watch = Watch(stage, event_cpu_ms=event_cpu_ms)
        self._honest = [HonestClient(stage, user=user) for user in (False, True)]
        self._beside = HonestClient(stage, user=False, past=True)
        self._honest_told = [0, 0]
        self._report = Report()
        self._ended = False
        # Current and recent scripts, for violations that are noticed later.
        self._recent: deque[tuple[Script, Outcome | None]] = deque(maxlen=4_000)
        self._playing: dict[int, Script] = {}
        self._ports: dict[int, Script] = {}
        self._ports_in_error: set[int] = set()
        self._unplaced: list[tuple[float, Violation, int]] = []

    async def run(self) -> Report:
        """Play, then shrink."""
        report = self._report
        self._watch.look()
        self._watch.begin()  # No client waited for the start.
        beside = [asyncio.create_task(client.run()) for client in (*self._honest, self._beside)]
        looking = asyncio.create_task(self._look_now_and_then())
        try:
            for client in (*self._honest, self._beside):
                await client.served()
            began_s = time.monotonic()
            await asyncio.gather(*(self._play_some(began_s + self._seconds) for _ in range(self._at_once)))
            report.seconds = time.monotonic() - began_s
            report.honest_ms = sorted(took for client in self._honest for took in client.took_ms)
            looking.cancel()
            await self._look(last=True)
            self._place(now_ms())
            await self._shrink()
        finally:
            for task in (*beside, looking):
                task.cancel()
            await asyncio.gather(*beside, looking, return_exceptions=True)
        report.most_rss_bytes = self._watch.most_rss_bytes
        report.most_event_cpu_ms = self._watch.most_event_cpu_ms
        report.most_turn_cpu_ms = self._watch.most_turn_cpu_ms
        report.turns, report.long_turns = self._watch.turns, self._watch.long_turns
        return report

    # -- playing ---------------------------------------------------------------------------------------------

    async def _play_some(self, until_s: float) -> None:
        judging: set[asyncio.Task[None]] = set()
        while not self._ended and time.monotonic() < until_s:
            seed = next(self._seeds, None)
            if seed is None:
                break
            script = make_script(seed)
            self._playing[seed] = script
            outcome, found = await self._stage.start(script)
            del self._playing[seed]
            self._recent.append((script, outcome))
            self._ports.update(dict.fromkeys(outcome.ports, script))
            task = asyncio.create_task(self._judge(script, outcome, found))
            judging.add(task)
            task.add_done_callback(judging.discard)
        await asyncio.gather(*judging)

    async def _judge(self, script: Script, outcome: Outcome, found: asyncio.Future[Found]) -> None:
        report = self._report
        violations = judge(script, outcome, await found)
        report.episodes += 1
        report.requests += outcome.requests
        report.connections += len(outcome.ports)
        report.apis.update(step["api"] for step in script.steps if "api" in step)
        for violation in violations:
            self._found(violation, script)
        if report.episodes % 500 == 0:
            rss = self._watch.most_rss_bytes >> 20
            self._tell(f"{report.episodes} episodes, {rss} MiB, {dict(report.kinds)}")

    def _found(self, violation: Violation, script: Script) -> None:
        if any(
            each.script is script and each.violation.kind == violation.kind for each in self._report.findings
        ):
            return
        self._tell(f"seed {script.seed}: {violation.kind}: {violation.detail}")
        self._report.findings.append(Finding(violation, script, len(script.steps)))
        self._ended = self._ended or violation.kind in self._ends_at

    # -- the process -----------------------------------------------------------------------------------------

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()

    def _place(self, before_ms: float) -> None:
        """Find the scripts of violations by their ports, once these scripts have ended. Ports are reused."""
        for when_ms, violation, port in self._unplaced:
            if when_ms <= before_ms and (script := self._ports.get(port)) is not None:
                self._found(violation, script)
        self._unplaced = [each for each in self._unplaced if each[0] > before_ms]

    def _honest_faults(self, before_ms: float) -> list[Violation]:
        """Faults of honest clients until then, unless the client that bypasses the gateway waited, too."""
        told = []
        for at, client in enumerate(self._honest):
            for at_ms, text in client.faults[self._honest_told[at] :]:
                if at_ms > before_ms:
                    break
                self._honest_told[at] += 1
                began_ms = at_ms - 1_000 * PATIENCE_S
                if "Timeout" in text and any(
                    begin < at_ms and end > began_ms for begin, end in self._beside.long_waits
                ):
                    self._report.starved.append(text)
                else:
                    told.append(Violation("honest", text))
        return told

    async def _look(self, *, last: bool = False) -> None:
        now = now_ms()
        self._place(now - _PLAYED_MS)
        happened = await asyncio.to_thread(self._watch.look)
        # By then the client that bypasses the gateway has reported whether it waited at the same time.
        before_ms = now if last else now - 1_000 * PATIENCE_S
        happened += [(violation, None) for violation in self._honest_faults(before_ms)]
        for violation, port in happened:
            if violation.kind == "ended":
                self._ended = True
            if port is not None:
                self._unplaced.append((now, violation, port))
                continue
            suspects = list(self._playing.values())
            suspects += [
                script for script, outcome in self._recent if outcome and now - outcome.ended_ms < _LATE_MS
            ]
            for suspect in suspects[-1:] or [make_script(0)]:
                self._found(violation, suspect)

    # -- shrinking -------------------------------------------------------------------------------------------

    async def _shrink(self) -> None:
        shrunk: Counter[str] = Counter()
        for finding in self._report.findings:
            kind = finding.violation.kind
            wanted = kind not in OF_THE_PROCESS and (not self._ends_at or kind in self._ends_at)
            if not wanted or shrunk[kind] >= self._shrunk_per_kind:
                continue
            shrunk[kind] += 1

            async def fails(scripts: list[Script], kind: str = kind) -> list[bool]:
                return list(await asyncio.gather(*(self._does(script, kind) for script in scripts)))

            finding.repeated = any(await fails([finding.script] * 3))
            if finding.repeated:
                finding.script = await shrink(finding.script, fails)
            again = "again" if finding.repeated else "not again"
            self._tell(
                f"\n{kind}, {again} when played alone: {finding.violation.detail}\n{finding.script.text()}"
            )

    async def _does(self, script: Script, kind: str) -> bool:
        outcome, found = await self._stage.play(script)
        violations = judge(script, outcome, found)
        if kind == "error":
            # Of the scripts that run at the same time, the first one to look gets the lines of all.
            happened = await asyncio.to_thread(self._watch.look)
            self._ports_in_error |= {port for _, port in happened if port is not None}
            if not self._ports_in_error.isdisjoint(outcome.ports):
                return True
        return any(violation.kind == kind for violation in violations)
