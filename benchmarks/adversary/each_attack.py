"""How much longer honest clients wait beside each attack: through the gateway, and at the broker without it.

An attack also loads the broker and the machine, and a gateway cannot prevent that. So honest clients use the gateway
and the broker itself all the time. Short windows alternate: no attack, and the attack through the gateway. Changes on
the machine affect both alike. The attack at the broker itself runs last: afterwards a broker can be unable to answer
any client for most of a minute. The attackers share one process. Each honest client has its own process, and so has
the gateway.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from benchmarks.adversary.attacks import ADMIN_ATTACKS, ATTACKS, attack
from benchmarks.adversary.report import quantile
from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.adversary.honest import HonestClient
from campaigns.adversary.stage import Stage

MOST_S: Final = 60.0
GOAL: Final = 1.2
"""The p99 beside an attack may be this many times the p99 without one."""

_WINDOW_S: Final = 5.0
_FIRST_S: Final = 2.0
"""The start of a window is not measured: first requests are slower, and so are requests just after an attack."""

_EVERY_S: Final = 0.05
_RESAMPLED: Final = 500


class Window(StrEnum):
    """Which attack runs beside the honest clients in a window."""

    ALONE = "alone"
    THROUGH = "through"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The p99 beside an attack, divided by the p99 alone: over all windows, with a 90 % interval by resampling."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(slots=True)
class Beside:
    """One attack: answer times in milliseconds, a list for each window.

    Attributes:
        attack: its name.
        gateway, broker: answer times of the honest clients there.
        faults: requests that were not answered through the gateway, alone and beside the attack through it.
    """

    attack: str
    gateway: dict[Window, list[list[float]]] = field(default_factory=dict)
    broker: dict[Window, list[list[float]]] = field(default_factory=dict)
    faults: int = 0

    @property
    def through(self) -> Ratio:
        """Clients of the gateway, beside the attack through it."""
        return _ratio(self.gateway, Window.THROUGH)

    @property
    def beside_at_broker(self) -> Ratio:
        """Clients of the broker in the same windows: the attack passes the gateway, these clients do not."""
        return _ratio(self.broker, Window.THROUGH)

    @property
    def direct(self) -> Ratio | None:
        """Clients of the broker beside the attack there; None if the broker has no such port."""
        return _ratio(self.broker, Window.DIRECT) if Window.DIRECT in self.broker else None


def _ratio(windows: dict[Window, list[list[float]]], beside: Window) -> Ratio:
    dice = random.Random(1)
    alone, attacked = windows[Window.ALONE], windows[beside]

    def resampled() -> float:
        return _p99(dice.choices(attacked, k=len(attacked))) / _p99(dice.choices(alone, k=len(alone)))

    found = sorted(resampled() for _ in range(_RESAMPLED))
    return Ratio(
        round(_p99(attacked) / _p99(alone), 2),
        round(quantile(found, 0.05), 2),
        round(quantile(found, 0.95), 2),
    )


def _p99(windows: Sequence[Sequence[float]], part: float = 0.99) -> float:
    return quantile(sorted(each for window in windows for each in window), part)


def main(names: Sequence[str], seconds: float, output: Path) -> int:
    """Measure, keep, report; 1 when an honest client was not served through the gateway."""
    document: dict[str, Any] = {
        "command": command_line("benchmarks.adversary.overload"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    rows = asyncio.run(measure(Stage(), names, seconds))
    document |= {"load_average_after": load_average(), "rows": [as_row(row) for row in rows]}
    text = (
        "\n".join(["# Honest clients beside each attack", "", *head(document, seconds), "", *table(rows)])
        + "\n"
    )
    keep_results(document, text, output, "attacks")
    print(text)
    return int(any(row.faults for row in rows))


async def measure(stage: Stage, names: Sequence[str], seconds: float) -> list[Beside]:
    """Run each of these attacks for `seconds` through the gateway and at the broker."""
    async with stage:
        at_gateway = [HonestClient(stage, user=user, every_s=_EVERY_S) for user in (False, True)]
        stage.direct = True
        at_broker = [HonestClient(stage, user=user, every_s=_EVERY_S) for user in (False, True)]
        beside = [asyncio.create_task(client.run()) for client in (*at_gateway, *at_broker)]
        try:
            for client in (*at_gateway, *at_broker):
                await client.served()
            rows = [Beside(name) for name in names]
            turns = range(max(2, round(seconds / _WINDOW_S)))
            for row in rows:
                for at in turns:
                    kinds = [Window.ALONE, Window.THROUGH]
                    # The order alternates, so that it does not affect the result.
                    for kind in kinds if at % 2 == 0 else reversed(kinds):
                        await _window(stage, row, kind, at_gateway, at_broker)
                        row.faults += sum(len(client.faults) for client in at_gateway)
                print(
                    f"{row.attack}: {row.through} times through the gateway, at the broker meanwhile "
                    f"{row.beside_at_broker}; {row.faults} not answered",
                    flush=True,
                )
            for row in rows:
                for _ in turns if row.attack not in ADMIN_ATTACKS else ():
                    await _window(stage, row, Window.DIRECT, at_gateway, at_broker)
                print(f"{row.attack}: {row.direct} times at the broker", flush=True)
            return rows
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _window(
    stage: Stage,
    row: Beside,
    kind: Window,
    at_gateway: Sequence[HonestClient],
    at_broker: Sequence[HonestClient],
) -> None:
    stage.direct = kind is Window.DIRECT
    each, count = ATTACKS[row.attack]
    attacks = [asyncio.create_task(attack(stage, each)) for _ in range(0 if kind is Window.ALONE else count)]
    try:
        await asyncio.sleep(_FIRST_S)
        for client in (*at_gateway, *at_broker):
            client.took_ms.clear()
            client.faults.clear()
        await asyncio.sleep(_WINDOW_S)
        for into, clients in ((row.gateway, at_gateway), (row.broker, at_broker)):
            # No request was answered in the whole window, so it took at least that long.
            took_ms = [took for client in clients for took in client.took_ms] or [_WINDOW_S * 1000]
            into.setdefault(kind, []).append(took_ms)
    finally:
        for task in attacks:
            task.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)


def as_row(row: Beside) -> dict[str, Any]:
    """A row of the raw data."""
    return {
        "attack": row.attack,
        **{
            f"{place}_{kind}": {
                "answers": sum(map(len, windows)),
                "p50_ms": round(_p99(windows, 0.5), 1),
                "p99_ms": round(_p99(windows), 1),
            }
            for place, of_place in (("gateway", row.gateway), ("broker", row.broker))
            for kind, windows in of_place.items()
        },
        "through": asdict(row.through),
        "beside_at_broker": asdict(row.beside_at_broker),
        "direct": asdict(row.direct) if row.direct else None,
        "faults": row.faults,
    }


def head(document: dict[str, Any], seconds: float) -> list[str]:
    """The page's text about the run and its tables."""
    machine = document["machine"]
    return [
        f"`{document['command']}`, {document['started']}, commit {machine.get('commit', '?')}; "
        f"load average before {machine['load_average_before']}, after {document['load_average_after']}.",
        "",
        "Two honest clients at the gateway and two at the broker itself, all the time. Windows of "
        f"{_WINDOW_S:.0f} s take turns, {seconds:.0f} s of each kind: no attack, the attack through the gateway. "
        "The same attack at the broker, which has no quotas, comes last of all. p50 / p99 in milliseconds; how many "
        "times the p99 is that without the attack, and within what nine of ten resamplings of the windows have it. "
        "What clients of the broker wait longer while the attack goes through the gateway is the broker and the "
        "machine. Not answered: requests through the gateway, before the attack at the broker. "
        f"Goal: {GOAL} times.",
    ]


def table(rows: Sequence[Beside]) -> list[str]:
    """A line for each attack."""
    lines = [
        "| attack | gateway, alone | beside | times | broker meanwhile, alone | beside | times | "
        "attack at the broker | times | not answered |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        direct = "- | -"
        if row.direct is not None:
            direct = f"{_told(row.broker[Window.DIRECT])} | {row.direct}"
        lines.append(
            f"| {row.attack} | {_told(row.gateway[Window.ALONE])} | {_told(row.gateway[Window.THROUGH])} | "
            f"{row.through} | {_told(row.broker[Window.ALONE])} | {_told(row.broker[Window.THROUGH])} | "
            f"{row.beside_at_broker} | {direct} | {row.faults} |"
        )
    return lines


def _told(windows: Sequence[Sequence[float]]) -> str:
    return f"{_p99(windows, 0.5):.0f} / {_p99(windows):.0f}"
