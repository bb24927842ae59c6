"""How much longer honest clients wait beside each attack: through the gateway, and at the broker without it.

An attack loads the broker and the machine as well, which no gateway in front can mend; the second measure tells how
much of the first that is. The attackers share one process, the honest clients have one each, and so has the gateway.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.adversary.attacks import ADMIN_ATTACKS, ATTACKS, attack
from benchmarks.adversary.report import quantile
from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from testkit.adversary.honest import HonestClient
from testkit.adversary.stage import Stage

MOST_S: Final = 60.0
GOAL: Final = 1.2
"""Times its value alone may the p99 be."""

_FIRST_S: Final = 3.0
"""What comes first is slower, and so is what an attack has left behind."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What honest clients saw for a while: requests answered, how long that took, what was not."""

    requests: int
    p50_ms: float
    p99_ms: float
    faults: int


@dataclass(frozen=True, slots=True)
class Beside:
    """One attack; `_direct` is at the broker itself, None where that has no such port."""

    attack: str
    alone: Wait
    beside: Wait
    alone_direct: Wait | None
    beside_direct: Wait | None

    @property
    def ratio(self) -> float:
        """How many times the p99 alone."""
        return self.beside.p99_ms / self.alone.p99_ms

    @property
    def ratio_direct(self) -> float | None:
        """The same without the gateway."""
        if self.alone_direct is None or self.beside_direct is None:
            return None
        return self.beside_direct.p99_ms / self.alone_direct.p99_ms


def main(names: Sequence[str], seconds: float, output: Path) -> int:
    """Measure, keep, tell; 1 when an honest client was not served through the gateway."""
    document: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.adversary.overload", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    rows = asyncio.run(_measure(names, seconds))
    document |= {
        "load_average_after": load_average(),
        "rows": [asdict(row) | {"ratio": row.ratio, "ratio_direct": row.ratio_direct} for row in rows],
    }
    text = _page(document, rows, seconds)
    keep_results(document, text, output, "attacks")
    print(text)
    return int(any(row.beside.faults for row in rows))


async def _measure(names: Sequence[str], seconds: float) -> list[Beside]:
    async with Stage() as stage:
        rows = []
        for name in names:
            through = await _waits(stage, name, seconds, direct=False)
            direct = (None, None)
            if name not in ADMIN_ATTACKS:
                direct = await _waits(stage, name, seconds, direct=True)
            rows.append(Beside(name, *through, *direct))
            print(
                f"{name}: {rows[-1].ratio:.1f} times through the gateway, {rows[-1].ratio_direct} without",
                flush=True,
            )
        return rows


async def _waits(stage: Stage, name: str, seconds: float, *, direct: bool) -> tuple[Wait, Wait]:
    stage.direct = direct
    clients = [HonestClient(stage, user=user) for user in (False, True)]
    beside = [asyncio.create_task(client.run()) for client in clients]
    each, count = ATTACKS[name]
    attacks: list[asyncio.Task[None]] = []
    try:
        for client in clients:
            await client.served()
        alone = await _phase(clients, seconds)
        attacks = [asyncio.create_task(attack(stage, each)) for _ in range(count)]
        return alone, await _phase(clients, seconds)
    finally:
        for task in (*beside, *attacks):
            task.cancel()
        await asyncio.gather(*beside, *attacks, return_exceptions=True)
        stage.direct = False
        await asyncio.sleep(_FIRST_S)


async def _phase(clients: Sequence[HonestClient], seconds: float) -> Wait:
    await asyncio.sleep(_FIRST_S)
    for client in clients:
        client.took_ms.clear()
        client.faults.clear()
    await asyncio.sleep(seconds)
    took = sorted(each for client in clients for each in client.took_ms)
    p50_ms, p99_ms = (round(quantile(took, part), 1) for part in (0.5, 0.99))
    return Wait(len(took), p50_ms, p99_ms, sum(len(client.faults) for client in clients))


def _page(document: dict[str, Any], rows: Sequence[Beside], seconds: float) -> str:
    machine = document["machine"]
    lines = [
        "# Honest clients beside each attack",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine.get('commit', '?')}; "
        f"load average before {machine['load_average_before']}, after {document['load_average_after']}.",
        "",
        f"Two honest clients, {seconds:.0f} s alone and as long beside each attack; p50 / p99 in milliseconds. "
        "First through the gateway; then they and the attack are at the broker itself, which has no quotas: "
        f"what is as much longer there is the broker and the machine. Goal: {GOAL} times.",
        "",
        "| attack | gateway, alone | beside | times | broker, alone | beside | times | not answered |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        direct = "| - | - | - |"
        if row.ratio_direct is not None:
            direct = f"| {_told(row.alone_direct)} | {_told(row.beside_direct)} | {row.ratio_direct:.1f} |"
        lines.append(
            f"| {row.attack} | {_told(row.alone)} | {_told(row.beside)} | {row.ratio:.1f} {direct} "
            f"{row.beside.faults} |"
        )
    return "\n".join(lines) + "\n"


def _told(wait: Wait | None) -> str:
    return "-" if wait is None else f"{wait.p50_ms:.0f} / {wait.p99_ms:.0f}"
