"""``python -m benchmarks.adversary.overload``: all attacks at once on a gateway in 512 MiB, five minutes.

With ``--each`` the attacks run one after the other, first through the gateway and then at the broker itself. The
result is how much longer honest clients wait beside each attack, and which part of that the broker and the machine
cause (`each_attack`). Exit code 1 when the gateway was killed because memory ran out, an honest client was not
served, or the gateway was not back to normal in time. Needs root, for the control group.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.adversary import each_attack
from benchmarks.adversary.attacks import ATTACKS, attack
from benchmarks.adversary.memory_cgroup import MemoryGroup, memory_group
from benchmarks.adversary.report import quantile
from benchmarks.keep import command_line, keep_results
from benchmarks.process_tree import cpu_of
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.adversary.honest import HonestClient
from campaigns.adversary.stage import Stage

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
LIMIT_BYTES: Final = 512 << 20
RECOVERY_S: Final = 10.0
MOST_TIMES: Final = 2.0
"""After the attacks, the median request time and the CPU per second may be this many times those before."""

_MEASURED_S: Final = 15.0


@dataclass(slots=True)
class Phase:
    """Requests of honest clients during one phase.

    Attributes:
        requests: requests that were answered.
        p50_ms, p99_ms, most_ms: how long the answers took.
        faults: requests that were not answered, or answered with an error.
        rss_mib: the gateway's resident memory at the end; 0 when the gateway has ended.
    """

    requests: int
    p50_ms: float
    p99_ms: float
    most_ms: float
    faults: list[str]
    rss_mib: int


@dataclass(frozen=True, slots=True)
class Second:
    """One second beside honest clients.

    Attributes:
        answered: honest requests that were answered.
        cpu_ms: CPU time of the gateway.
        faults: honest requests that were not answered, or answered with an error.
        descriptors: open descriptors of the gateway at the end of the second.
    """

    answered: int
    cpu_ms: float
    faults: int
    descriptors: int


def recovered_after_s(before: Sequence[Second], after: Sequence[Second]) -> int | None:
    """Seconds until everything is as before and stays so; None if it was not at the end.

    As before means: honest requests are answered, none fails, the gateway uses at most twice the CPU time of the
    busiest second before the attacks, and it has no more descriptors than before.

    Args:
        before: seconds without attacks.
        after: seconds since their end.
    """
    most_ms = MOST_TIMES * max(second.cpu_ms for second in before)
    descriptors = max(second.descriptors for second in before)
    late = [
        at
        for at, second in enumerate(after, 1)
        if not second.answered or second.faults or second.cpu_ms > most_ms or second.descriptors > descriptors
    ]
    last = max(late, default=0)
    return None if last == len(after) else last


@dataclass(slots=True)
class Overload:
    """A run.

    Attributes:
        before, during, after: phases; the last one begins `RECOVERY_S` after the attacks have ended.
        calm, recovery: the seconds of the first phase, and those between the ends of the attacks and of the last
        phase.
        recovered_s: see `recovered_after_s`.
        refused: connections that the gateway refused since the end of the attacks.
        seconds: duration of the attacks; shorter than requested if the gateway ended.
        killed: processes that the kernel killed because memory ran out.
        ended: whether the gateway has ended, for whatever reason.
        most_mib: peak memory of the control group.
        stalls: log lines in which the watchdog reported a stalled event loop.
    """

    before: Phase | None = None
    during: Phase | None = None
    after: Phase | None = None
    calm: list[Second] = field(default_factory=list)
    recovery: list[Second] = field(default_factory=list)
    recovered_s: int | None = None
    refused: int = 0
    seconds: float = 0.0
    killed: int = 0
    ended: bool = False
    most_mib: int = 0
    stalls: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """The requirements that the run did not meet."""
        faults = []
        if self.killed or self.ended:
            faults.append(
                f"the gateway ended after {self.seconds:.0f} s; {self.killed} killed for the want of memory"
            )
        if self.during is not None:
            faults += [f"during the attacks: {fault}" for fault in self.during.faults[:5]]
        if self.before is None or self.after is None:
            return faults
        faults += [f"after the attacks: {fault}" for fault in self.after.faults[:5]]
        if self.after.p50_ms > MOST_TIMES * self.before.p50_ms:
            faults.append(
                f"not back to normal after {RECOVERY_S:.0f} s: {self.after.p50_ms:.0f} ms at the median"
            )
        if self.refused:
            faults.append(f"after the attacks: {self.refused} connections refused")
        if self.recovered_s is None or self.recovered_s > RECOVERY_S:
            faults.append(f"not as before after {RECOVERY_S:.0f} s, but after {self.recovered_s} s")
        return faults


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversary.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", action="append", choices=sorted(ATTACKS), help="only these attacks")
    parser.add_argument("--each", action="store_true", help="one after the other, beside the same without us")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    names = options.only or list(ATTACKS)
    if options.each:
        return each_attack.main(names, min(options.seconds, each_attack.MOST_S), options.output)
    document: dict[str, Any] = {
        "command": command_line("benchmarks.adversary.overload"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "attacks": names,
    }
    with memory_group(LIMIT_BYTES) as group:
        result = asyncio.run(_run(group, names, options.seconds))
    document |= {"load_average_after": load_average(), **asdict(result), "faults": result.faults()}
    page = _page(document, result)
    keep_results(document, page, options.output, "overload")
    print(page)
    return int(bool(result.faults()))


async def _run(group: MemoryGroup, names: Sequence[str], seconds: float) -> Overload:
    result = Overload()
    async with Stage(prefix=group.prefix) as stage:
        clients = [HonestClient(stage, user=user) for user in (False, True)]
        beside = [asyncio.create_task(client.run()) for client in clients]
        for client in clients:
            await client.served()
        await asyncio.sleep(_MEASURED_S)
        _phase(clients, stage)  # the first requests are slower
        result.before, result.calm = await _watch(clients, stage, _MEASURED_S)
        attacks = [
            asyncio.create_task(attack(stage, ATTACKS[name][0]))
            for name in names
            for _ in range(ATTACKS[name][1])
        ]
        began_s = time.monotonic()
        while time.monotonic() < began_s + seconds and stage.gateway_runs:  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(0.2)
        result.seconds = time.monotonic() - began_s
        result.during = _phase(clients, stage)
        for task in attacks:
            task.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
        if stage.gateway_runs:
            refused = await asyncio.to_thread(_refused, stage)
            _, first = await _watch(clients, stage, RECOVERY_S)
            result.after, rest = await _watch(clients, stage, _MEASURED_S)
            result.recovery = first + rest
            # Not every second: a scrape after the attacks has many series, and its CPU time would be counted.
            result.refused = await asyncio.to_thread(_refused, stage) - refused
            result.recovered_s = recovered_after_s(result.calm, result.recovery)
        result.ended = not stage.gateway_runs
        lines = stage.log_file.read_text(errors="replace").splitlines()
        result.stalls = [line for line in lines if "event=event_loop_stalled" in line]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        result.killed, result.most_mib = group.killed, group.most_bytes >> 20
    return result


async def _watch(clients: Sequence[HonestClient], stage: Stage, seconds: float) -> tuple[Phase, list[Second]]:
    """Results of the clients from now on: in total and per second."""
    phases, found = [], []
    cpu_ms = cpu_of(stage.gateway_pid) * 1_000
    for _ in range(int(seconds)):
        await asyncio.sleep(1)
        descriptors = len(os.listdir(f"/proc/{stage.gateway_pid}/fd"))
        spent_ms, cpu_ms = cpu_of(stage.gateway_pid) * 1_000 - cpu_ms, cpu_of(stage.gateway_pid) * 1_000
        took, faults = _taken(clients)
        phases.append((took, faults))
        found.append(Second(len(took), round(spent_ms, 1), len(faults), descriptors))
    return _phase_of(
        [each for took, _ in phases for each in took],
        [each for _, faults in phases for each in faults],
        stage,
    ), found


def _refused(stage: Stage) -> int:
    families = text_string_to_metric_families(stage.metrics())
    samples = (sample for family in families for sample in family.samples)
    return int(sum(each.value for each in samples if each.name == "gateway_connections_refused_total"))


def _phase(clients: Sequence[HonestClient], stage: Stage) -> Phase:
    """Results of the clients since the last call."""
    return _phase_of(*_taken(clients), stage)


def _taken(clients: Sequence[HonestClient]) -> tuple[list[float], list[str]]:
    took = [each for client in clients for each in client.took_ms]
    faults = [text for client in clients for _, text in client.faults]
    for client in clients:
        client.took_ms.clear()
        client.faults.clear()
    return took, faults


def _phase_of(took: Sequence[float], faults: list[str], stage: Stage) -> Phase:
    took = sorted(took)
    p50_ms, p99_ms, most_ms = (round(quantile(took, part), 1) for part in (0.5, 0.99, 1.0))
    return Phase(len(took), p50_ms, p99_ms, most_ms, faults, stage.rss_bytes() >> 20)


def _page(document: Mapping[str, Any], result: Overload) -> str:
    machine = document["machine"]
    lines = [
        "# All attacks at once, in 512 MiB",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine.get('commit', '?')}; "
        f"load average before {machine['load_average_before']}, after {document['load_average_after']}.",
        "",
        f"The gateway alone is in a control group of {LIMIT_BYTES >> 20} MiB; the broker, the attackers and two "
        f"honest clients are outside. Attacks, for {result.seconds:.0f} s: {', '.join(document['attacks'])}.",
        "",
        "**" + ("; ".join(result.faults()) or "Every goal was met") + ".**",
        "",
        f"All was as before after {'-' if result.recovered_s is None else result.recovered_s} s: honest requests are "
        f"answered, none fails, the gateway takes at most {MOST_TIMES:.0f} times the CPU time of the busiest second "
        f"before, and it has no more descriptors. The goal is {RECOVERY_S:.0f} s. Since the attacks {result.refused} "
        "connections were refused. Memory stays: Python keeps what it once had for the next use.",
        "",
        f"The group's most: {result.most_mib} MiB; killed for the want of memory: {result.killed}; lines of stalls: "
        f"{len(result.stalls)}.",
        "",
        "| honest clients | answered | p50 | p99 | longest | not answered | gateway's memory at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, phase in (("before", result.before), ("during", result.during), ("after", result.after)):
        if phase is not None:
            lines.append(
                f"| {name} | {phase.requests:,} | {phase.p50_ms:.0f} ms | {phase.p99_ms:.0f} ms | "
                f"{phase.most_ms:.0f} ms | {len(phase.faults)} | {phase.rss_mib} MiB |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
