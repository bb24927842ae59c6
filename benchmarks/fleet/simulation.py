"""A large fleet in one process: the cost of the exchange, and how far the sum of all gateways is from each quota.

Every gateway has real counters and a real exchange. Each client id has four connections to as many gateways. In runs
with one gateway all four use it; these show what Kafka's arithmetic alone lets through. Some client ids send more
than their quota, some half of it, the others a twentieth. All messages take 20 ms. CPU is measured at one member,
which gets and decodes every message completely. The other members get only the parts about their own clients: the
rest would take time here and change nothing there.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from gateway.fleet.counters import counters_of
from gateway.fleet.exchange import Exchange, FleetRules
from gateway.fleet.shares import Member, Share, Used, decode_share, encode_share
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings, RequestTimeQuotas

KEY: Final = QuotaKey.PRODUCER_BYTE_RATE
LIMIT: Final = 100_000.0
GATEWAYS_OF_CLIENT: Final = 4
STEP_MS: Final = 10
TICK_STEPS: Final = FleetRules().interval_ms // STEP_MS
DELAY_MS: Final = 20
WARM_UP_S: Final = 33
MEASURED_S: Final = 44
RUNS: Final = (
    (1, 10_000, 0.01, 2.0),
    (1, 10_000, 0.01, 50.0),
    (10, 10_000, 0.01, 2.0),
    (10, 10_000, 0.01, 50.0),
    (30, 10_000, 0.01, 2.0),
    (100, 10_000, 0.001, 2.0),
    (100, 10_000, 0.01, 2.0),
    (100, 10_000, 0.01, 50.0),
    (100, 10_000, 0.05, 2.0),
)
"""Gateways, counters, the part of them above its quota, and how many times its quota that part would send. Ten times
as many send half of their quota."""


@dataclass(slots=True)
class _Client:
    name: str
    wants: float  # multiple of its quota, at each of its gateways
    every: int  # steps from one request to the next
    phase: int  # offset of its requests, in steps
    at: list[int] = field(default_factory=list)
    free_ms: list[int] = field(default_factory=list)
    passed: float = 0.0


@dataclass(slots=True)
class _Gateway:
    exchange: Exchange
    produce: ByteRateQuotas
    woken: bool = False
    not_before_ms: int = 0  # earliest time of the next urgent message
    inbox: deque[tuple[int, Share, bytes | None]] = field(default_factory=deque)

    def wake(self) -> None:
        self.woken = True

    def tell(self, step: int, now_ms: int) -> tuple[list[Share], int]:
        """Messages as `FleetService` and `UrgentMessages` send them, and how many of them are urgent."""
        shares: list[Share] = []
        if self.woken and now_ms >= self.not_before_ms:
            self.woken = False
            self.not_before_ms = now_ms + self.exchange.urgent_after_ms(now_ms=now_ms)
            shares = self.exchange.tell_urgent(now_ms=now_ms)
        urgent = len(shares)
        if step % TICK_STEPS == 0:
            shares += self.exchange.tick(now_ms=now_ms)
        return shares, urgent


def run(output: Path) -> int:
    """All runs, and the page with its plot."""
    rows = []
    for gateways, counters, near, wants in RUNS:
        rows.append(simulate(gateways, counters, near, wants))
        print(rows[-1], flush=True)
        document = {
            "command": "python -m benchmarks.fleet --simulate",
            "machine": describe_machine(),
            "load_average_after": load_average(),
            "rows": rows,
        }
        keep_results(document, page_of(rows), output, "fleet-simulation")
        plot(rows, output / "fleet-simulation.png")
    return int(any(not 0.9 < row["ratio_p50"] < 1.1 for row in rows))


def simulate(
    gateways: int, counters: int, near: float, wants: float, *, seconds: int = MEASURED_S
) -> dict[str, Any]:
    """Simulate one run.

    Args:
        gateways: number of members.
        counters: number of client ids, each with a quota.
        near: the part of them at the limit.
        wants: how many times its quota that part would send.
        seconds: measured seconds, after the warm-up.
    """
    rng = Random(1)
    limits = Limits()
    limits.set(QuotaEntity(client_id=DEFAULT), QuotaKey.PRODUCER_BYTE_RATE, LIMIT)
    now_ms = 1_000_000
    fleet = [_gateway(at, limits, now_ms) for at in range(gateways)]
    clients = _clients(counters, near, wants, gateways, rng)
    for each in clients:  # so that clients do not start in step
        each.free_ms = [now_ms + rng.randrange(11_000)] * GATEWAYS_OF_CLIENT
    serving = {each.name: each.at for each in clients}
    begin_ms = now_ms + WARM_UP_S * 1000
    end_ms = begin_ms + seconds * 1000
    by_phase: dict[int, list[list[_Client]]] = {}
    for each in clients:
        by_phase.setdefault(each.every, [[] for _ in range(each.every)])[each.phase].append(each)
    sent_bytes = sent = sent_urgently = told = 0
    cpu_s = longest_s = 0.0
    probe = fleet[0]
    step = 0
    while now_ms < end_ms:
        now_ms += STEP_MS
        step += 1
        measured = now_ms > begin_ms
        for every, phases in by_phase.items():
            for each in phases[step % every]:
                _demand(each, fleet, now_ms, measured)
        for at, gateway in enumerate(fleet):
            began_s = time.thread_time()
            _receive(gateway, now_ms)
            shares, urgent = gateway.tell(step + at, now_ms)
            messages = [(share, encode_share(share)) for share in shares]
            if gateway is probe and measured:
                took_s = time.thread_time() - began_s
                cpu_s += took_s
                longest_s = max(longest_s, took_s)
            for share, data in messages:
                _deliver(share, data, fleet, serving, now_ms + DELAY_MS)
            if measured:
                sent += len(messages)
                sent_urgently += urgent
                told += sum(share.counters for share, _ in messages)
                sent_bytes += sum(len(data) for _, data in messages)
    ratios = sorted(
        each.passed / (LIMIT * seconds) for each in clients if each.wants * GATEWAYS_OF_CLIENT > 1
    )
    return {
        "gateways": gateways,
        "counters": counters,
        "at_limit": len(ratios),
        "wants": wants,
        "kB_per_s": round(sent_bytes / seconds / 1000, 1),
        "messages_per_s": round(sent / seconds, 1),
        "urgent_per_s": round(sent_urgently / seconds, 1),
        "told_per_s": round(told / seconds),
        "interval_ms": probe.exchange.interval_ms(now_ms=now_ms),
        "cpu_pct": round(100 * cpu_s / seconds, 2),
        "longest_ms": round(1000 * longest_s, 1),
        "ratio_p5": round(ratios[len(ratios) // 20], 3),
        "ratio_p50": round(statistics.median(ratios), 3),
        "ratio_p95": round(ratios[-1 - len(ratios) // 20], 3),
        "ratio_max": round(ratios[-1], 3),
    }


def _gateway(at: int, limits: Limits, now_ms: int) -> _Gateway:
    settings = RateSettings()
    produce = ByteRateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, settings)
    fetch = ByteRateQuotas(limits, QuotaKey.CONSUMER_BYTE_RATE, settings)
    counters = counters_of(produce, fetch, RequestTimeQuotas(limits, settings), None)
    exchange = Exchange(Member(f"gw-{at}", str(at)), counters, FleetRules(), now_ms=now_ms)
    gateway = _Gateway(exchange, produce)
    exchange.on_urgent(gateway.wake)
    return gateway


def _clients(counters: int, near: float, most: float, gateways: int, rng: Random) -> list[_Client]:
    clients = []
    for at in range(counters):
        part = at / counters
        wants, every = (most, 10) if part < near else (0.5, 50) if part < 11 * near else (0.05, 200)
        client = _Client(f"service-{at}", wants / GATEWAYS_OF_CLIENT, every, rng.randrange(every))
        client.at = (
            rng.sample(range(gateways), GATEWAYS_OF_CLIENT) if gateways > 1 else [0] * GATEWAYS_OF_CLIENT
        )
        clients.append(client)
    return clients


def _demand(client: _Client, fleet: list[_Gateway], now_ms: int, measured: bool) -> None:
    size = client.wants * LIMIT * STEP_MS / 1000 * client.every
    for which, at in enumerate(client.at):
        if client.free_ms[which] > now_ms:
            continue
        tracker = fleet[at].produce.tracker("ANONYMOUS", client.name, now_ms=now_ms)
        assert tracker is not None
        connection = (client.name, which)
        if wait_ms := tracker.wait_ms(connection, size, now_ms=now_ms):
            client.free_ms[which] = now_ms + wait_ms
            continue
        client.free_ms[which] = now_ms + tracker.record(size, connection, now_ms=now_ms)
        if measured:
            client.passed += size


def _deliver(
    share: Share, data: bytes, fleet: list[_Gateway], serving: dict[str, list[int]], due_ms: int
) -> None:
    parts: dict[int, list[Used]] = {}
    for used in share.use.get(KEY, ()):
        for at in serving[used[0].tracker_key.client_id]:
            parts.setdefault(at, []).append(used)
    empty = replace(share, use={}, levels={})
    for at, gateway in enumerate(fleet):
        if at == 0:
            gateway.inbox.append((due_ms, share, data))
        else:
            part = replace(empty, use={KEY: parts[at]}) if at in parts else empty
            gateway.inbox.append((due_ms, part, None))


def _receive(gateway: _Gateway, now_ms: int) -> None:
    inbox = gateway.inbox
    while inbox and inbox[0][0] <= now_ms:
        _, share, data = inbox.popleft()
        gateway.exchange.receive(share if data is None else decode_share(data), now_ms=now_ms)


def page_of(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    names = (
        "gateways",
        "counters",
        "at the limit",
        "want, times the quota",
        "kB/s",
        "messages/s",
        "of them urgent",
        "counters sent/s",
        "interval, ms",
        "CPU of a member, %",
        "longest tick, ms",
        "of the quota: p5",
        "median",
        "p95",
        "most",
    )
    lines = [
        "# A large fleet, by simulation",
        "",
        "`python -m benchmarks.fleet --simulate`: real counters and exchanges in one process, each client id with",
        f"four connections to four gateways, {MEASURED_S} s after {WARM_UP_S} s of warm-up; with one gateway, what",
        "Kafka's arithmetic lets through. *At the limit*: client ids that want more than their quota; ten times as",
        "many want half. Bytes are those of all messages before compression, each of which every member reads. CPU:",
        "decoding, receiving, walking the counters and encoding at one member, of one core, as sources; the",
        "longest tick is done in steps. Of the quota: what passed over all gateways, for client ids at the limit.",
        "",
        f"| {' | '.join(names)} |",
        "|" + "---|" * len(names),
    ]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join([*lines, "", "![CPU, bytes and error](fleet-simulation.png)"]) + "\n"


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Plot cost and error over the number of reported counters."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    ordered = sorted(rows, key=lambda row: row["told_per_s"])
    told = [row["told_per_s"] / 1000 for row in ordered]
    for axis, name, label in (
        (axes[0], "kB_per_s", "kB/s, all messages"),
        (axes[1], "cpu_pct", "CPU of a member, % of a core"),
    ):
        axis.plot(told, [row[name] for row in ordered], "o-")
        axis.set_ylabel(label)
    middle = [row["ratio_p50"] for row in ordered]
    axes[2].errorbar(
        told,
        middle,
        yerr=[
            [row["ratio_p50"] - row["ratio_p5"] for row in ordered],
            [row["ratio_p95"] - row["ratio_p50"] for row in ordered],
        ],
        fmt="o",
        capsize=3,
    )
    axes[2].axhline(1, color="grey", linewidth=0.8)
    axes[2].set_ylabel("of the quota: p5, median, p95")
    for axis in axes:
        axis.set_xlabel("thousands of counters sent per s")
        axis.set_xlim(left=0)
    figure.savefig(file, dpi=110)
    plt.close(figure)
