"""Plans: all decisions of a seed, as data.

A plan can be printed as Python and pasted into a test. `make` makes one from a seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, Literal

from testkit.faults.schedule import Fault, Kind, choose

_kind: Final = partial(Kind, where=range(8), for_ms=range(50, 6_000))
_DRAWN: Final = tuple(
    _kind(what, amount=(-3_600_000, -500, 700, 90_000) if what == "clock-step" else range(20, 800))
    for what in (
        "stall",
        "reset",
        "broker-away",
        "broker-slow",
        "broker-keeps-fetches",
        "broker-lies",
        "leaders-move",
        "clock-step",
        "disk-full",
        "worker-kill",
        "pause",
        "fleet-away",
    )
)
_BROKER_VANISHES: Final = _kind("broker-vanishes")
KINDS: Final = {kind.what: kind for kind in (*_DRAWN, _BROKER_VANISHES)}
"""Targets are gateways, brokers or links, counted from 0 and taken modulo their number. Amounts are milliseconds."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client, honest or not.

    Attributes:
        does: the name of its behaviour; see `simulation.clients`.
        client_id: the client id that it sends.
        gateway: the gateway that it connects to, from 1 on.
        options: options of its behaviour.
    """

    does: str
    client_id: str
    gateway: int = 1
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run.

    Attributes:
        seed: seed of all random numbers during the run: delays, sizes, costs.
        seconds: for how long clients continue.
        gateways: the number of workers of each gateway; 1: a single process.
        tables: tables of the gateways' configuration.
        topics: numbers of partitions by topic name.
        brokers: the number of brokers.
        most_delay_ms: the longest delay of a link.
        most_cost_us: the longest CPU time of one callback.
        buffer_bytes: size of the two buffers of each end of a connection.
        clients: see `Client`.
        faults: see `KINDS`.
    """

    seed: int = 0
    seconds: int = 20
    gateways: tuple[int, ...] = (1,)
    tables: dict[str, Any] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=lambda: {"a": 3})
    brokers: int = 2
    most_delay_ms: int = 2
    most_cost_us: int = 60
    buffer_bytes: int = 256 * 1024
    clients: tuple[Client, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        """Python code that makes the same plan."""
        lines = ["Plan("]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("clients", "faults") and value:
                lines += [f"    {each.name}=(", *(f"        {item!r}," for item in value), "    ),"]
            else:
                lines.append(f"    {each.name}={value!r},")
        return "\n".join([*lines, ")"])


Key = Literal[
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "metadata_request_rate",
]


def limit_of(plan: Plan, client_id: str, key: Key) -> float | None:
    """The limit of a client by the plan's own quotas; None: it has none.

    Each client id has a counter of its own, whether its quota is the default or not.
    """
    default = None
    for rule in plan.tables.get("quotas", ()):
        if key not in rule:
            continue
        if rule.get("client_id") == client_id:
            return float(rule[key])
        if rule.get("default_client_id"):
            default = float(rule[key])
    return default


def groups_of(plan: Plan, client_id: str, key: Key) -> dict[str, float]:
    """The limits of the groups that list a client id, by name, by the plan's own quotas."""
    limits = {rule.get("group"): float(rule[key]) for rule in plan.tables.get("quotas", ()) if key in rule}
    return {
        group["name"]: limits[group["name"]]
        for group in plan.tables.get("groups", ())
        if group["name"] in limits
        and any(
            client_id.startswith(name[:-1]) if name.endswith("*") else client_id == name
            for name in group["client_ids"]
        )
    }


def make(seed: int) -> Plan:
    """Makes a plan from a seed."""
    dice = random.Random(f"plan/{seed}")
    count = 2 if dice.random() < 0.25 else 1
    gateways = tuple(2 if dice.random() < 0.2 else 1 for _ in range(count))
    tables: dict[str, Any] = {
        "client_quota": {"window_num": dice.choice((2, 3, 6, 11)), "window_size_seconds": 1},
        "mutation_quota": {"window_num": dice.choice((2, 5)), "window_size_seconds": 1},
        "limits": {
            "max_mute_ms": dice.choice((5_000, 20_000, 110_000)),
            "first_frame_timeout_ms": 5_000,
            "frame_timeout_ms": dice.choice((5_000, 15_000)),
            "write_timeout_ms": dice.choice((5_000, 10_000)),
            "upstream_write_timeout_ms": 60_000,
        },
        "drain": {"timeout_ms": dice.choice((1_000, 10_000))},
    }
    if count == 2 and dice.random() < 0.6:
        tables["client_quota"]["scope"] = "fleet"
    elif dice.random() < 0.1:
        tables["client_quota"]["scope"] = "broker"
    if dice.random() < 0.3:
        tables["limits"]["announced_max_request_bytes"] = dice.choice((200_000, 1_000_000))
        tables["limits"]["queued_max_request_bytes"] = dice.choice((300_000, 2_000_000))
    if dice.random() < 0.15:
        tables["connections"] = {"max_connections_per_ip": dice.choice((3, 8))}
    if dice.random() < 0.2:
        tables["usage"] = {"topics": True}
    clients: list[Client] = []
    quotas: list[dict[str, Any]] = []
    for at in range(dice.randrange(2, 8)):
        clients.append(_honest(dice, at, count, quotas))
    for at in range(dice.choice((0, 0, 1, 1, 2))):
        clients.append(_adversary(dice, at, count, [each.client_id for each in clients]))
    if dice.random() < 0.3:
        key = dice.choice(("producer_byte_rate", "consumer_byte_rate"))
        quotas.append({"default_client_id": True, key: dice.choice((20_000, 200_000))})
    if dice.random() < 0.3:
        quotas.append({"default_client_id": True, "request_percentage": dice.choice((0.1, 1.0, 20.0))})
        if len(quotas) > 1 and quotas[-2].get("default_client_id"):
            quotas[-2:] = [{**quotas[-2], **quotas[-1]}]
    tables["quotas"] = quotas
    seconds = dice.randrange(4, 13)
    faults = []
    for _ in range(dice.choice((0, 0, 1, 2, 3))):
        faults.append(choose(dice, _DRAWN).draw(dice, range(500, seconds * 1_000)))
    _without_power(seed, seconds, count, clients, faults)
    _all_on_one_connection(seed, count, clients, quotas)
    _group_of_administrators(seed, tables, clients, quotas)
    _administrators_in_haste(seed, clients)
    return Plan(
        seed=seed,
        seconds=seconds,
        gateways=gateways,
        tables=tables,
        topics={"a": dice.randrange(1, 4), "b": 2},
        brokers=dice.choice((1, 2, 3)),
        most_delay_ms=dice.choice((1, 2, 20, 60)),
        most_cost_us=dice.choice((20, 60, 400)),
        buffer_bytes=dice.choice((8_192, 65_536, 262_144)),
        clients=tuple(clients),
        faults=tuple(sorted(faults, key=lambda each: each.at_ms)),
    )


def _without_power(
    seed: int, seconds: int, gateways: int, clients: list[Client], faults: list[Fault]
) -> None:
    """In some plans a client or a broker loses power. Has its own random numbers, so other plans stay the same."""
    dice = random.Random(f"power/{seed}")
    drawn = dice.random()
    if drawn < 0.06:
        options = {"pause_ms": dice.choice((300, 1_000))}
        clients.append(Client("vanish", "vanish-0", dice.randrange(gateways) + 1, options))
    elif drawn < 0.12 and all(each.what != "broker-lies" for each in faults):
        # The patient client would wait for the rest of a response that a lying broker never sends.
        faults.append(_BROKER_VANISHES.draw(dice, range(500, seconds * 1_000)))
        # It does not give up by itself before the gateway notices.
        clients.append(
            Client("beat", "beat-patient", 1, {"version": 4, "pause_ms": 300, "timeout_ms": 400_000})
        )


def _all_on_one_connection(
    seed: int, gateways: int, clients: list[Client], quotas: list[dict[str, Any]]
) -> None:
    """In some plans a client uses one connection for everything."""
    dice = random.Random(f"blend/{seed}")
    if dice.random() >= 0.12:
        return
    options: dict[str, Any] = {
        "in_flight": dice.choice((5, 10)),
        "most_bytes": (most := dice.choice((2_000, 50_000))),
        "pause_ms": dice.choice((0, 20, 150)),
        "honours": dice.random() < 0.5,
        "topic": dice.choice("ab"),
        "timeout_ms": 30_000,
    }
    clients.append(Client("blend", "blend-0", dice.randrange(gateways) + 1, options))
    # The client uses up both at about the same time, so a wait begins while another one lasts.
    quota: dict[str, Any] = {
        "client_id": "blend-0",
        "producer_byte_rate": dice.choice((most // 10, most // 3, most)),
        "consumer_byte_rate": dice.choice((most // 3, most)),
    }
    if dice.random() < 0.3:  # one request at a time
        quota["request_percentage"] = dice.choice((0.5, 50.0))
    quotas.append(quota)


def _group_of_administrators(
    seed: int, tables: dict[str, Any], clients: list[Client], quotas: list[dict[str, Any]]
) -> None:
    """In some plans all clients that create topics share a quota, in addition to their own."""
    dice = random.Random(f"group/{seed}")
    if dice.random() < 0.4 and any(each.does in ("administer", "look") for each in clients):
        tables["groups"] = [{"name": "administrators", "client_ids": ["administer-*", "look-*"]}]
        quotas.append({"group": "administrators", "controller_mutation_rate": dice.choice((1.0, 4.0))})


def _administrators_in_haste(seed: int, clients: list[Client]) -> None:
    """In some plans clients that create topics do not wait as they are asked to: the gateway has to hold them."""
    dice = random.Random(f"haste/{seed}")
    for each in clients:
        if each.does in ("administer", "look") and dice.random() < 0.3:
            each.options["honours"] = False


def _honest(dice: random.Random, at: int, gateways: int, quotas: list[dict[str, Any]]) -> Client:
    does = dice.choices(
        ("produce", "consume", "beat", "administer", "look", "alter_quotas"), (10, 10, 2, 5, 2, 2)
    )[0]
    # Two clients with the same client id share a counter.
    client_id = f"{does}-{at % 3 if dice.random() < 0.4 else at}"
    gateway = dice.randrange(gateways) + 1
    options: dict[str, Any] = {}
    known = any(rule.get("client_id") == client_id for rule in quotas)
    if does == "produce":
        options = {
            "version": dice.choice((3, 7, 8, 9, 11, 12)),
            "in_flight": dice.choice((1, 1, 5)),
            "acks": dice.choices((1, -1, 0), (6, 2, 1))[0],
            "most_bytes": dice.choice((200, 2_000, 20_000, 150_000)),
            "pause_ms": dice.choice((0, 20, 150, 600)),
            "honours": dice.random() < 0.7,
            "topic": dice.choice("ab"),
            "each_connection": dice.choice((0, 0, 0, 1, 3)),
            "timeout_ms": dice.choice((3_000, 30_000)),
        }
        if not known and dice.random() < 0.6:
            rate = max(2_000, options["most_bytes"] * dice.choice((1, 3)) // 2)
            quotas.append({"client_id": client_id, "producer_byte_rate": rate})
    elif does == "consume":
        options = {
            "version": dice.choice((4, 6, 7, 10, 11, 12)),
            "in_flight": dice.choice((1, 1, 1, 3)),
            "most_bytes": dice.choice((1_000, 50_000, 1_000_000)),
            "wait_ms": dice.choice((0, 100, 500)),
            "pause_ms": dice.choice((0, 20, 200)),
            "sessions": dice.random() < 0.6,
            "honours": dice.random() < 0.7,
            "topic": dice.choice("ab"),
            "each_connection": dice.choice((0, 0, 0, 2)),
            "timeout_ms": 30_000,
        }
        if not known and dice.random() < 0.6:
            quotas.append(
                {"client_id": client_id, "consumer_byte_rate": dice.choice((10_000, 60_000, 300_000))}
            )
    elif does == "administer":
        options = {
            "strict": dice.random() < 0.6,
            "most_partitions": dice.choice((2, 6)),
            "pause_ms": dice.choice((50, 500)),
        }
        if not known and dice.random() < 0.8:
            quotas.append({"client_id": client_id, "controller_mutation_rate": dice.choice((1.0, 4.0))})
    elif does == "beat":
        options = {"version": dice.choice((1, 3, 4)), "pause_ms": dice.choice((100, 1_000))}
    elif does == "look":
        options = {"version": dice.choice((1, 5, 9, 12)), "pause_ms": 300, "create": dice.random() < 0.5}
        if not known and options["create"] and dice.random() < 0.6:
            quotas.append({"client_id": client_id, "controller_mutation_rate": 2.0})
    else:
        options = {"pause_ms": 1_500}
    return Client(does, client_id, gateway, options)


def _adversary(dice: random.Random, at: int, gateways: int, victims: list[str]) -> Client:
    does = dice.choice(("announce", "drip", "halves", "flood", "junk", "crowd", "leave", "ahead"))
    client_id = dice.choice(victims) if victims and dice.random() < 0.5 else f"adversary-{at}"
    options: dict[str, Any] = {"pause_ms": dice.choice((20, 200, 1_000))}
    if does == "announce":
        options["bytes"] = dice.choice((200_000, 5_000_000, 100_000_000))
        options["sends"] = dice.choice((0, 500, 70_000))
    elif does in ("crowd", "ahead"):
        options["count"] = dice.choice((3, 10, 30))
    return Client(does, client_id, dice.randrange(gateways) + 1, options)


def hour(seed: int = 1) -> Plan:
    """An hour of a fleet of two gateways with two workers each, and 50 clients of all kinds."""
    dice = random.Random(f"hour/{seed}")
    clients = []
    for at in range(50):
        does = ("produce", "consume", "beat", "administer", "look")[at % 5]
        options: dict[str, Any] = {
            "pause_ms": dice.choice((2_000, 4_000, 8_000)),
            "honours": True,
            "timeout_ms": 30_000,
        }
        if does == "produce":
            options |= {
                "version": 9, "in_flight": 5, "acks": 1, "most_bytes": 20_000, "topic": "a", "each_connection": 0
            }  # fmt: skip
        elif does == "consume":
            options |= {
                "version": 12, "in_flight": 1, "most_bytes": 50_000, "wait_ms": 500, "sessions": True, "topic": "b",
                "each_connection": 0,
            }  # fmt: skip
        elif does == "administer":
            options |= {"strict": True, "most_partitions": 3, "pause_ms": 30_000}
        elif does == "look":
            options |= {"version": 12, "create": False, "pause_ms": 20_000}
        else:
            options |= {"version": 4, "pause_ms": 3_000}
        clients.append(Client(does, f"{does}-{at}", at % 2 + 1, options))
    return Plan(
        seed=seed,
        seconds=3_600,
        gateways=(2, 2),
        tables={
            "client_quota": {"scope": "fleet"},
            "quotas": [
                {"default_client_id": True, "producer_byte_rate": 3_000, "consumer_byte_rate": 20_000},
                *(
                    {"client_id": f"administer-{at}", "controller_mutation_rate": 0.2}
                    for at in range(3, 50, 10)
                ),
            ],
        },
        topics={"a": 6, "b": 6},
        brokers=3,
        clients=tuple(clients),
    )
