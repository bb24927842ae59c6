"""Attacks on shares in the simulation, by names, groups, credits, lies and tiers.

Each attack is a plan from a seed, and a bound on the bytes that its clients pass in every span of whole seconds. The
formulas are those of docs/reference/quota-semantics.md. Honest clients beside the attack pass all that they offer.
`campaigns.adversary.shares` has the same attacks with a real broker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from quotas.entities import QuotaEntity, QuotaKey
from quotas.lending import Brake
from simulation.gateways import GatewayUnderTest
from simulation.laws import Violation
from simulation.plan import Client, Plan
from simulation.run import Run
from testkit.faults.schedule import Fault

CAPACITY: Final = 400_000
REQUEST_BYTES: Final = 4_000
SECONDS: Final = 16
WINDOW_NUM: Final = 2
"""A small window, so that the bound (quota of two more windows) is soon below the offered bytes."""

BRAKE_S: Final = 6
"""Time of a brake's begin. The use of its tier in the five seconds before decides how much the tier keeps."""

HONEST_BYTES_PER_S: Final = 20_000
_FRAME_BYTES: Final = REQUEST_BYTES + 500


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that clients pass together: `rate * (time + burst_s) + per_s * time + once`.

    Attributes:
        names: beginnings of their client ids.
        rate: bytes per second; None: what the run's brakes leave to their tiers.
        burst_s: burst of the bucket, and the time by which a division learns late.
        once: bytes.
        per_s: bytes per second in addition to the rate: one request of any size for each division.
        from_s: the first second that counts.
    """

    names: tuple[str, ...]
    rate: float | None
    burst_s: float
    once: float
    per_s: float = 0.0
    from_s: int = 0


@dataclass(frozen=True, slots=True)
class Attack:
    """A plan, and its promises.

    Attributes:
        plan: the plan.
        bounds: bounds on attackers.
        usable: the least part of the capacity that brokers may seem to have.
        honest_from_s: from this second on honest clients pass all that they offer.
    """

    plan: Plan
    bounds: tuple[Bound, ...] = ()
    usable: float = 0.0
    honest_from_s: int = 3


def _plan(seed: int, quotas: list[dict[str, Any]], attackers: list[Client], **more: Any) -> Plan:
    tables = {
        "client_quota": {"window_num": WINDOW_NUM, "window_size_seconds": 1},
        "capacity": {"producer_byte_rate": CAPACITY},
        **more.pop("tables", {}),
    }
    clients = list(attackers)
    for at in range(more.pop("honest", 2)):
        rates = (float(HONEST_BYTES_PER_S), float(HONEST_BYTES_PER_S))
        options = {"topic": "a", "version": 9, "bytes": 1_000, "rates": rates, "change_s": 0}
        clients.append(Client("offer", f"honest-{at}", 1, options))
        quotas.append(
            {
                "client_id": f"honest-{at}",
                "producer_byte_rate": CAPACITY,
                "producer_byte_guarantee": 2 * HONEST_BYTES_PER_S,
                "tier": 0,
            }
        )
    return Plan(
        seed=seed, seconds=SECONDS, tables={**tables, "quotas": quotas}, clients=tuple(clients), **more
    )


def _many(name: str, names: int, *, life_s: float = SECONDS, every_s: float = SECONDS, **more: Any) -> Client:
    options = {"names": names, "life_ms": int(1000 * life_s), "every_ms": int(1000 * every_s)}
    return Client("disguise", name, 1, {"bytes": REQUEST_BYTES, **options, **more})


def split(seed: int) -> Attack:
    """A member of a group splits into many client ids, which all count for the group."""
    dice = random.Random(f"split/{seed}")
    rate = dice.choice((20_000, 40_000))
    plan = _plan(
        seed,
        [
            {"default_client_id": True, "producer_byte_rate": rate},
            {"group": "team", "producer_byte_rate": rate},
        ],
        [
            _many(
                "team",
                dice.choice((10, 30)),
                life_s=dice.choice((1, 3, SECONDS)),
                every_s=dice.choice((1, 3)),
            )
        ],
        tables={"groups": [{"name": "team", "client_ids": ["team-*"]}]},
    )
    return Attack(plan, (Bound(("team-",), rate, 2 * WINDOW_NUM, _FRAME_BYTES),))


def overlap(seed: int) -> Attack:
    """Clients are members of two groups. Their bytes count for both, so neither group exceeds its own quota."""
    dice = random.Random(f"overlap/{seed}")
    first, second = dice.sample((15_000, 30_000, 60_000), 2)
    attackers = [_many(name, dice.choice((1, 5))) for name in ("first", "both", "second")]
    plan = _plan(
        seed,
        [
            {"default_client_id": True, "producer_byte_rate": CAPACITY},
            {"group": "one", "producer_byte_rate": first},
            {"group": "two", "producer_byte_rate": second},
        ],
        attackers,
        tables={
            "groups": [
                {"name": "one", "client_ids": ["first-*", "both-*"]},
                {"name": "two", "client_ids": ["second-*", "both-*"]},
            ]
        },
    )
    burst_s = 2 * WINDOW_NUM
    return Attack(
        plan,
        (
            Bound(("first-", "both-"), first, burst_s, _FRAME_BYTES),
            Bound(("second-", "both-"), second, burst_s, _FRAME_BYTES),
        ),
    )


def idle(seed: int) -> Attack:
    """Clients are silent for some seconds, and then try to use the credit that they believe to have."""
    dice = random.Random(f"idle/{seed}")
    rate, burst_s, idle_s = dice.choice((10_000, 20_000)), dice.choice((1, 3)), dice.choice((3, 5))
    quota = {
        "client_id": "saver-0",
        "producer_byte_rate": rate,
        "producer_byte_burst_seconds": burst_s,
        "producer_byte_guarantee": rate,
    }
    savers = [_many("saver", 1, idle_s=idle_s) for _ in range(dice.choice((1, 4)))]
    return Attack(_plan(seed, [quota], savers), (Bound(("saver-",), rate, burst_s, _FRAME_BYTES),))


def lie(seed: int, *, more: int = 0) -> Attack:
    """Clients appear slow by using a topic whose broker takes a second. If half of all do so, others lose nothing.

    The honest clients start first. A liar that starts before them would be the majority of all clients for a moment.

    Args:
        seed: see the module's docstring.
        more: how many more liars than honest clients there are. With one more, the brokers do seem to be slow.
    """
    dice = random.Random(f"lie/{seed}")
    honest = dice.choice((2, 3, 5))
    liars = [_many(f"liar-{at}", 1, topic="b", after_ms=4_000) for at in range(honest + more)]
    plan = _plan(
        seed,
        [{"default_client_id": True, "producer_byte_rate": CAPACITY, "tier": 3}],
        liars,
        honest=honest,
        brokers=2,
        topics={"a": 1, "b": 1},
        faults=(Fault(1, "broker-slow", where=1, for_ms=1_000 * SECONDS, amount=1_000),),
        tables={"overload": {"mode": "enforce", "broker_time_ms": 300}},
    )
    return Attack(plan, usable=1.0)


def flap(seed: int) -> Attack:
    """Clients change their tiers continuously. Under brakes of two tiers they pass what both tiers keep together."""
    dice = random.Random(f"flap/{seed}")
    names = dice.choice((2, 4))
    quotas = [
        {"client_id": f"flap-{at}", "producer_byte_rate": CAPACITY, "tier": 2 + at % 2} for at in range(names)
    ]
    every_ms = dice.choice((300, 700, 1_000))
    faults = [
        Fault(BRAKE_S * 1000, "brake", where=tier, for_ms=60_000, amount=dice.choice((10, 20)))
        for tier in (2, 3)
    ]
    faults += [
        Fault(at_ms, "tier", where=dice.randrange(names), amount=dice.choice((2, 3)))
        for at_ms in range(1_000, SECONDS * 1000, every_ms)
    ]
    plan = _plan(
        seed, quotas, [_many("flap", names)], faults=tuple(sorted(faults, key=lambda each: each.at_ms))
    )
    return Attack(plan, (Bound(("flap-",), None, 2, names * _FRAME_BYTES, from_s=BRAKE_S + 1),))


def rename(seed: int) -> Attack:
    """New client ids in each second share what a brake leaves to the tier of clients without a setting."""
    dice = random.Random(f"rename/{seed}")
    names = dice.choice((8, 15, 25))
    life_s = dice.choice((0.5, 1, 2))
    faults = (Fault(BRAKE_S * 1000, "brake", where=2, for_ms=60_000, amount=dice.choice((5, 10, 20))),)
    plan = _plan(
        seed,
        [{"default_client_id": True, "producer_byte_rate": CAPACITY}],
        [_many("new", names, life_s=life_s, every_s=1, pause_ms=20)],
        faults=faults,
        gateways=(dice.choice((1, 2, 4)),),
    )
    bound = Bound(("new-",), None, 2, _FRAME_BYTES, per_s=_FRAME_BYTES, from_s=BRAKE_S + 2)
    return Attack(plan, (bound,))


ATTACKS: Final[dict[str, Callable[[int], Attack]]] = {
    "split": split,
    "overlap": overlap,
    "idle": idle,
    "lie": lie,
    "flap": flap,
    "rename": rename,
}


class AttackRun(Run):
    """A run whose plan has brakes and changes of tiers among its faults.

    Attributes:
        braked: bytes per second that the brake of each tier leaves.
        usable: the least part of the capacity that brokers seemed to have.
    """

    def __init__(self, plan: Plan) -> None:
        """See `Run`."""
        super().__init__(plan)
        self.braked: dict[int, float] = {}
        self.usable = 1.0

    def _happen(self, fault: Fault) -> None:
        for unit in self.gateways:
            for process, gateway in unit.serving:
                if fault.what == "brake":
                    process.post(self._brake, gateway, fault)
                elif fault.what == "tier":
                    entity = QuotaEntity(client_id=f"flap-{fault.where}")
                    process.post(gateway.limits.set, entity, QuotaKey.TIER, float(fault.amount))
        if fault.what not in ("brake", "tier"):
            super()._happen(fault)

    def _brake(self, gateway: Any, fault: Fault) -> None:
        key, tier, part = QuotaKey.PRODUCER_BYTE_RATE, fault.where, fault.amount / 100
        used = gateway.client_quotas.produce.lender.used_by(tier) or 0.0
        brake = Brake(part, gateway._now_ms() + fault.for_ms, "ops", {key: used})
        gateway.limits.brakes = {**gateway.limits.brakes, tier: brake}
        self.braked[tier] = max(part * used, 0.001 * CAPACITY)

    def _look(self) -> None:
        super()._look()
        # After `end_ns` the honest clients have left.
        for unit in self.gateways if self.world.now_ns < self.end_ns else ():
            self.usable = min([self.usable, *_usable(unit)])


def _usable(unit: GatewayUnderTest) -> Iterator[float]:
    for _, gateway in unit.serving:
        overload = gateway.client_quotas.overload
        if overload is not None:
            yield overload.usable


def broken(attack: Attack, run: AttackRun) -> Iterator[Violation]:
    """The broken promises of an attack after its run."""
    passed = run.laws.passed_bytes
    for bound in attack.bounds:
        rate = sum(run.braked.values()) if bound.rate is None else bound.rate
        names = [name for name in passed if name.startswith(bound.names)]
        by_second = [sum(passed[name][at] for name in names) for at in range(SECONDS)]
        if not sum(by_second):
            yield Violation("attack_is_played", 0, f"no {bound.names} has passed anything")
        for begin in range(bound.from_s, SECONDS):
            for end in range(begin + 1, SECONDS + 1):
                most = rate * (end - begin + bound.burst_s) + bound.once + bound.per_s * (end - begin)
                if (total := sum(by_second[begin:end])) > most:
                    text = f"{bound.names} pass {total:,} bytes in {end - begin} s, bound {most:,.0f}"
                    yield Violation("attack_is_bounded", begin * 1000, text)
    if run.usable < attack.usable:
        yield Violation("lies_cost_nothing", 0, f"brokers seemed to take {run.usable:.2f} of the capacity")
    for client in run.plan.clients:
        if client.does == "offer":
            span = range(attack.honest_from_s, SECONDS)
            rate = sum(passed[client.client_id][at] for at in span) / len(span)
            if rate < 0.95 * HONEST_BYTES_PER_S:
                yield Violation(
                    "honest_clients_pass", 0, f"{client.client_id} passes {rate:,.0f} bytes per second"
                )


def run_attack(name: str, seed: int) -> list[str]:
    """Runs one attack with a seed. Returns the broken promises."""
    attack = ATTACKS[name](seed)
    run = AttackRun(replace(attack.plan, seed=seed))
    return [str(each) for each in run.go().violations or broken(attack, run)]
