"""`python -m campaigns.adversary.shares`: attacks on shares at a real broker, each with the bound that must hold.

The attackers are users of the stage. Each of their players has a topic, and the broker reports the bytes in it.
Honest clients of both kinds must be served at the same time. The formulas are those of
docs/reference/quota-semantics.md. `simulation.attacks` has the same attacks in simulated time, and plants a fault for
each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from campaigns.adversary import timed_gateway
from campaigns.adversary.honest import HonestClient
from campaigns.adversary.script import LISTENERS, Script, Step
from campaigns.adversary.stage import WINDOW_S, Stage
from campaigns.adversary.verdict import SLACK_S, Violation
from campaigns.adversary.watch import Watch

RECORDS_BYTES: Final = 5_000
FRAME_BYTES: Final = RECORDS_BYTES + 500
SECONDS: Final = 12.0
"""Duration of an attack."""

SMALL: Final = 20_000
LARGE: Final = 40_000
BURST_S: Final = 3
IDLE_S: Final = 5.0
CAPACITY: Final = 2_000_000
_FREE: Final = 500_000
"""The byte rate of users whose only effective limit is a brake or a group."""

_PARTS: Final = (10, 20)
"""Percent that brakes leave, of tiers 1 and 3."""

_LATE_S: Final = 2.0
"""A brake is in force after the next division, and its counter is known after the one that follows."""

_OFFERS: Final = 1.3
"""An attack must send at least this many times the bound. Otherwise it could not break the bound."""

_SLOW_MS: Final = 3_000
"""Brokers that take longer count as slow. A broker on a busy machine does not reach this by itself."""

_USERS: Final = {
    name: f"u{11_000 + at}" for at, name in enumerate(("team", "first", "both", "second", "saver"))
}
_FLAPPING: Final = ("u11010", "u11011")
_RENAMED: Final = "u11020"
_LIARS: Final = ("u11030", "u11031")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of an attack.

    Attributes:
        name: name of the attack.
        got: bytes that the broker has.
        bound: upper bound for `got`.
        offered: bytes that the attackers sent or wanted to send.
        seconds: duration of the attack, until all requests were served.
        violations: broken rules.
    """

    name: str
    got: int
    bound: float
    offered: int
    seconds: float
    violations: tuple[Violation, ...]


def judge(name: str, got: int, bound: float, offered: int, seconds: float) -> Verdict:
    """Compare what attackers got with the bound."""
    violations = []
    if got > bound:
        violations.append(Violation("produced", f"{name}: {got:,} bytes, bound {bound:,.0f}"))
    if offered < _OFFERS * bound:
        violations.append(
            Violation("played", f"{name}: only {offered:,} bytes were offered, bound {bound:,.0f}")
        )
    return Verdict(name, got, bound, offered, seconds, tuple(violations))


def configuration() -> str:
    """Configuration of the stage's gateway in addition to the stage's quotas."""
    team, first, both, second, saver = _USERS.values()
    text = f"""
[capacity]
producer_byte_rate = {CAPACITY}
[overload]
mode = "enforce"
broker_time_ms = {_SLOW_MS}
[[groups]]
name = "team"
users = ["{team}"]
[[groups]]
name = "one"
users = ["{first}", "{both}"]
[[groups]]
name = "two"
users = ["{second}", "{both}"]
[[quotas]]
user = "{team}"
default_client_id = true
producer_byte_rate = {SMALL}
[[quotas]]
user = "{saver}"
producer_byte_rate = {SMALL}
producer_byte_burst_seconds = {BURST_S}
producer_byte_guarantee = {SMALL}
[[quotas]]
user = "{_RENAMED}"
default_client_id = true
producer_byte_rate = {_FREE}
tier = 3
"""
    for group, rate in (("team", SMALL), ("one", SMALL), ("two", LARGE)):
        text += f'[[quotas]]\ngroup = "{group}"\nproducer_byte_rate = {rate}\n'
    for user in (first, both, second, *_LIARS):
        text += f'[[quotas]]\nuser = "{user}"\nproducer_byte_rate = {_FREE}\n'
    return text


def script(steps: Sequence[Step]) -> Script:
    """A script of one user, on any listener."""
    return Script(0, "user", tuple(range(LISTENERS)), tuple(steps))


def _sends(connection: int, client: int) -> Step:
    more = {"acks": 1, "bytes": RECORDS_BYTES, "waits": True}
    return {"do": "send", "api": "Produce", "version": 9, "client": client, "connection": connection, **more}


def flood(*, ids: int = 1, first: int = 3, count: int = 600, idle_s: float = 0.0) -> Script:
    """As many requests as pass, under `ids` client ids that take turns, each on its own connection."""
    steps = [_sends(at % max(ids, 4), first + at % ids) for at in range(count)]
    # The counter must exist before it can collect tokens.
    first_steps = [steps[0], {"do": "pause", "ms": 1000 * idle_s}] if idle_s else []
    return script([*first_steps, *steps])


def renames(player: int, *, seconds: int = int(SECONDS), names: int = 6) -> Script:
    """Always new client ids: each sends one request on a new connection."""
    steps: list[Step] = []
    for at in range(seconds * names * 2):
        steps.append(_sends(at % 6, 1_000 * (player + 1) + at) | {"copies": 2})
        if at % 6 == 5:
            steps += [{"do": "end", "connection": each, "how": "close"} for each in range(6)]
    return script(steps)


class Attacks:
    """The attacks of one stage. Each public method is an attack."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def _play(
        self, plays: Sequence[tuple[str, Script]], seconds: float = SECONDS
    ) -> tuple[int, int, float]:
        """Bytes that the players got and offered, and the seconds until all was served."""
        stage = self._stage
        started = await asyncio.gather(
            *(stage.start(each, user=user, seconds=seconds) for user, each in plays)
        )
        found = await asyncio.gather(*(each for _, each in started))
        offered = sum(outcome.requests for outcome, _ in started) * RECORDS_BYTES
        lasted = max(
            max(outcome.seconds, each.seconds) for (outcome, _), each in zip(started, found, strict=True)
        )
        return sum(each.produced_bytes for each in found), offered, lasted

    async def split(self) -> list[Verdict]:
        """A user of a group splits into client ids, each with a quota as large as the group's."""
        plays = [(_USERS["team"], flood(ids=10, first=10 + 10 * at)) for at in range(5)]
        got, offered, lasted = await self._play(plays)
        bound = SMALL * (lasted + SLACK_S + 2 * WINDOW_S) + FRAME_BYTES
        return [judge("split", got, bound, offered, lasted)]

    async def overlap(self) -> list[Verdict]:
        """A user of two groups, and one user of each group."""
        users = [_USERS[name] for name in ("first", "both", "second")]
        both = await asyncio.gather(*(self._play([(user, flood(ids=4))] * 3) for user in users))
        verdicts = []
        for name, rate, members in (("one", SMALL, (0, 1)), ("two", LARGE, (1, 2))):
            got, offered = sum(both[at][0] for at in members), sum(both[at][1] for at in members)
            lasted = max(both[at][2] for at in members)
            bound = rate * (lasted + SLACK_S + 2 * WINDOW_S) + FRAME_BYTES
            verdicts.append(judge(f"overlap, group {name}", got, bound, offered, lasted))
        return verdicts

    async def idle(self) -> list[Verdict]:
        """A user with a burst is silent and then sends on many connections: its silence only fills the burst."""
        plays = [(_USERS["saver"], flood(ids=4, idle_s=IDLE_S))] * 4
        got, offered, lasted = await self._play(plays, SECONDS + IDLE_S)
        bound = SMALL * (lasted - IDLE_S + SLACK_S + BURST_S) + (1 + len(plays)) * FRAME_BYTES
        return [judge("idle", got, bound, offered, lasted - IDLE_S)]

    async def lie(self) -> list[Verdict]:
        """Users that read no replies and send in pieces must not make brokers look slow."""
        steps: list[Step] = [{"do": "deaf", "connection": at} for at in range(4)]
        for at in range(400):
            steps.append(_sends(at % 4, 3) | {"waits": False, "copies": 3})
            steps.append(_sends(4, 3) | {"cuts": [0.1, 0.5, 0.9]})
        play = asyncio.create_task(self._play([(user, script(steps)) for user in _LIARS]))
        usable = 1.0
        while not play.done():
            usable = min([usable, *self._metric("gateway_produce_usable_capacity_ratio").values()])
            await asyncio.sleep(0.5)
        got, offered, lasted = await play
        violations = () if usable == 1 else (Violation("lie", f"{usable:.2f} of the capacity seemed usable"),)
        return [Verdict("lie", got, CAPACITY * (lasted + 2), offered, lasted, violations)]

    async def flap(self) -> list[Verdict]:
        """Users whose tiers change twice a second, between two with brakes."""
        await asyncio.to_thread(self._set_flapping, 0)
        usual = [(user, flood(ids=4)) for user in _FLAPPING]
        bound_per_s = await self._brake(usual, {1: _PARTS[0], 3: _PARTS[1]})
        play = asyncio.create_task(self._play([(user, flood(ids=4)) for user in _FLAPPING * 3]))
        turn = 0
        while not play.done():
            turn += 1
            await asyncio.to_thread(self._set_flapping, turn)
            await asyncio.sleep(0.5)
        got, offered, lasted = await play
        self._end_brakes((1, 3))
        bound = bound_per_s * (lasted + SLACK_S + 2) + 2 * FRAME_BYTES
        return [judge("flap", got, bound, offered, lasted)]

    async def rename(self) -> list[Verdict]:
        """Always new client ids, in a tier with a brake."""
        plays = [(_RENAMED, renames(at)) for at in range(6)]
        bound_per_s = await self._brake(plays, {3: _PARTS[0]})
        got, offered, lasted = await self._play([(_RENAMED, renames(at + 10)) for at in range(6)])
        self._end_brakes((3,))
        bound = bound_per_s * (lasted + SLACK_S + 2) + FRAME_BYTES * (lasted + 1)
        return [judge("rename", got, bound, offered, lasted)]

    # -- operations ------------------------------------------------------------------------------------------

    async def _brake(self, plays: Sequence[tuple[str, Script]], parts: dict[int, int]) -> float:
        """Use some tiers and brake them; the bytes per second that they may still use together."""
        play = asyncio.create_task(self._play(plays))
        await asyncio.sleep(SECONDS - 1)
        for tier, percent in parts.items():
            self._put("/shed", {"tier": tier, "percent": percent, "seconds": 300})
        await play
        await asyncio.sleep(_LATE_S)
        left = self._metric("gateway_produce_byte_limit_of_tier")
        return sum(value for labels, value in left.items() if any(f'"{tier}"' in labels for tier in parts))

    def _end_brakes(self, tiers: Sequence[int]) -> None:
        for tier in tiers:
            self._put("/shed", {"tier": tier})

    def _set_flapping(self, turn: int) -> None:
        rows = []
        for at, user in enumerate(_FLAPPING):
            entity = [{"type": "user", "name": user}]
            for quota, limit in (("producer_byte_rate", _FREE), ("tier", (1, 3)[(turn + at) % 2])):
                rows.append(json.dumps({"entity": entity, "quota": quota, "limit": limit}))
        self._ask("POST", "/quotas/import", "\n".join(rows).encode(), "application/x-ndjson")

    def _put(self, path: str, body: dict[str, Any]) -> None:
        self._ask("PUT", path, json.dumps(body).encode(), "application/json")

    def _ask(self, method: str, path: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(
            self._stage.admin + path, data=body, method=method, headers={"Content-Type": kind}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()

    def _metric(self, name: str) -> dict[str, float]:
        found = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", self._stage.metrics(), re.MULTILINE)
        return {labels: float(value) for labels, value in found}


ATTACKS: Final[dict[str, Callable[[Attacks], Awaitable[list[Verdict]]]]] = {
    "split": Attacks.split,
    "overlap": Attacks.overlap,
    "idle": Attacks.idle,
    "lie": Attacks.lie,
    "flap": Attacks.flap,
    "rename": Attacks.rename,
}


async def run(names: Sequence[str]) -> int:
    """Play these attacks one after the other; 1 when a bound was broken or an honest client was not served."""
    broken = 0
    program = (sys.executable, "-m", timed_gateway.__name__)
    async with Stage(program=program, more_configuration=configuration()) as stage:
        watch = Watch(stage)
        honest = [HonestClient(stage, user=user) for user in (False, True)]
        beside = [asyncio.create_task(client.run()) for client in honest]
        try:
            for client in honest:
                await client.served()
            attacks = Attacks(stage)
            for name in names:
                for client in honest:
                    client.took_ms.clear()
                verdicts = await ATTACKS[name](attacks)
                took_ms = sorted(each for client in honest for each in client.took_ms)
                p99_ms = took_ms[int(0.99 * (len(took_ms) - 1))] if took_ms else float("inf")
                for each in verdicts:
                    print(
                        f"{each.name}: {each.got:,} bytes in {each.seconds:.1f} s, bound {each.bound:,.0f}, "
                        f"offered {each.offered:,}; honest p99 {p99_ms:.0f} ms",
                        flush=True,
                    )
                    for violation in each.violations:
                        print(f"  {violation.kind}: {violation.detail}", flush=True)
                    broken += bool(each.violations)
                for violation, _ in await asyncio.to_thread(watch.look):
                    if violation.kind != "stall":  # of the machine, which has other users
                        broken += 1
                        print(f"  {violation.kind}: {violation.detail}", flush=True)
                faults = [text for client in honest for _, text in client.faults]
                for client in honest:
                    client.faults.clear()
                if faults or not took_ms:
                    broken += 1
                    print(f"  honest: {len(faults)} requests were not served: {faults[:3]}", flush=True)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
    print(f"**{len(names)} attacks on shares at a broker, {broken} bounds broken**")
    return int(broken > 0)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.adversary.shares", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ATTACK", help=f"of {', '.join(ATTACKS)} (all)")
    names = parser.parse_args().names or list(ATTACKS)
    if unknown := set(names) - set(ATTACKS):
        parser.error(f"no such attack: {min(unknown)}")
    return asyncio.run(run(names))


if __name__ == "__main__":
    sys.exit(main())
