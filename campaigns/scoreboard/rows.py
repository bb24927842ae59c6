"""The rows of the scoreboard: 39 promises, the results that each needs, and the bounds of its figures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from campaigns.matrix.cells import Cell, Verdict


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a row.

    Attributes:
        what: what the number counts or measures.
        read: gets the number from the data of the row's sources, in their order.
        unit: unit after the number.
        least: lower bound; None if there is none.
        most: upper bound; None if there is none.
        reason: why it is outside its bounds, and the consequence. A miss without a reason is an error.
    """

    what: str
    read: Callable[..., float]
    unit: str = ""
    least: float | None = None
    most: float | None = None
    reason: str = ""

    def holds(self, value: float) -> bool:
        """Whether the value is within the bounds. A value that could not be read is not."""
        if math.isnan(value):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def shown(self, value: float) -> str:
        """The quantity with this value."""
        return f"{self.what}: {self._number(value)}"

    def counted(self, value: float) -> str:
        """The value, followed by what it counts."""
        return f"{self._number(value)} {self.what}"

    @property
    def goal(self) -> str:
        """The bounds in words."""
        if self.least is not None and self.most is not None and self.least != self.most:
            return f"{self.what}: {self._number(self.least)} to {self._number(self.most)}"
        if self.least is not None and self.most is None:
            return f"{self.what}: at least {self._number(self.least)}"
        if self.most:
            return f"{self.what}: at most {self._number(self.most)}"
        return f"{self.what}: {self._number(0)}"

    def _number(self, value: float) -> str:
        if math.isnan(value):
            return "not in the result"
        digits = f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"
        return f"{digits} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class Row:
    """One promise.

    Attributes:
        number: number of the row.
        shows: the claim that holds when the goal is met.
        sources: sources of the figures: files of benchmarks/results (``order.json``) and campaigns (``drain``).
        quantities: quantities that must be within their bounds; empty if the row is not measured yet.
        n: number of trials.
        beside: the same figures of a broker without Sluice, or of another proxy.
        goal: the goal in words, if there are no quantities yet.
        without: the part of the goal that is not measured yet.
    """

    number: str
    shows: str
    sources: tuple[str, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    n: Quantity | None = None
    beside: tuple[Quantity, ...] = ()
    goal: str = ""
    without: str = ""


MADE_BY: Final[Mapping[str, str]] = {
    "accuracy.json": "accuracy",
    "adversary.json": "adversary",
    "alerts.json": "alerts",
    "chaos.json": "chaos",
    "connections-accuracy.json": "connection-rates",
    "connections-slow-consumers.json": "slow-consumers",
    "connections-slowloris.json": "slow-clients",
    "crash.json": "crash",
    "fleet-faults.json": "fleet-faults",
    "matrix.json": "matrix",
    "misrouted.json": "misrouted",
    "order.json": "order",
    "overload.json": "overload",
    "soak.json": "soak",
    "store.json": "store",
    "streams.json": "streams",
    "tls-storm.json": "tls-storm",
    "upgrade.json": "upgrade",
}
"""The campaign that writes each file of benchmarks/results. Other sources are campaigns themselves."""


def number(figure: str, pattern: str, *, otherwise: float = math.nan) -> float:
    """The number in a campaign's figure, from the first group of the pattern."""
    found = re.search(pattern, figure)
    return otherwise if found is None else float(found[1].replace(",", ""))


def _passed(*figures: str) -> float:
    return sum(number(figure, r"(\d+) passed", otherwise=0) for figure in figures)


def _failed(*figures: str) -> float:
    return sum(
        float(found) for figure in figures for found in re.findall(r"(\d+) (?:failed|errors?)", figure)
    )


_TESTS_PASS: Final = Quantity("failed", _failed, most=0)
_TESTS: Final = Quantity("tests", _passed, least=1)
"""Without the bound a selection that is empty by mistake would pass."""


def _of_tests(number: str, shows: str, *campaigns: str, without: str = "") -> Row:
    """A row whose evidence is tests."""
    return Row(number, shows, campaigns, (_TESTS_PASS, _TESTS), n=_TESTS, without=without)


def _back_s(figure: str, clients: str) -> tuple[float, float]:
    """Seconds until clients worked again, through a gateway and directly."""
    return (
        number(figure, rf"{clients} ([\d.]+) s"),
        number(figure, rf"{clients} [\d.]+ s, directly ([\d.]+) s"),
    )


def _least_chance(figure: str, faults: str) -> float:
    """The smaller of two probabilities: of the excess of repeated records, and of late records, for these faults."""
    compared = re.search(rf"{faults}: ([^;]+)", figure)
    found = [float(each) for each in re.findall(r"\(([\d.]+)\)", compared[1])] if compared else []
    return min(found) if len(found) == 2 else math.nan


def _doubled(figure: str, faults: str) -> tuple[float, float]:
    """Repeated records of producers without idempotence, through a gateway and without it."""
    before = rf"{faults}: doubled"
    return number(figure, rf"{before} ([\d,]+)"), number(figure, rf"{before} [\d,]+ to ([\d,]+)")


def _rows(data: Any, **values: Any) -> list[dict[str, Any]]:
    return [row for row in data["rows"] if all(row[name] == value for name, value in values.items())]


def _total(data: Any, name: str) -> float:
    return sum(row[name] for row in data["rows"])


def _violations(chaos: Any, *_: Any) -> float:
    return sum(len(row["violations"]) for row in chaos["rows"])


def _faults(chaos: Any, name: str) -> float:
    return sum(row["faults"].get(name, 0) for row in chaos["rows"])


def _byte_ratios(accuracy: Any, side: str) -> list[float]:
    return [row["ratio"] for row in _rows(accuracy, side=side)]


def _connection_ratios(accuracy: Any, *, sluice: bool) -> list[float]:
    rows = [row for row in _rows(accuracy, window_num=2) if (row["name"] == "Sluice") == sluice]
    return [ratio for row in rows for ratio in row["ratios"]]


def _lateness(slowloris: Any) -> float:
    late: Mapping[str, Mapping[str, float]] = slowloris["summary"]["late_s"]
    return max(max(abs(each["earliest"]), each["latest"]) for each in late.values())


def _slow_consumer_kib(consumers: Any) -> float:
    return max(phase["most"] for core in consumers["cores"].values() for phase in core["kib_each"].values())


def _freed_late_s(consumers: Any) -> float:
    freed_s = [core.get("freed_s", math.nan) for core in consumers["cores"].values()]
    return max(freed_s) - consumers.get("write_timeout_s", math.nan)


def _worse_through(matrix: Any) -> float:
    return sum(Cell(**row).verdict is Verdict.FAILS_THROUGH for row in matrix["rows"])


def _not_answered(upgrade: Any) -> float:
    connects: Mapping[str, int] = upgrade["connects"]
    return 1 - connects.get("answered", 0) / sum(connects.values())


def _ghosts_s(storm: Any) -> float:
    silent: list[Mapping[str, float]] = storm["summary"]["silent"]
    return max(abs(each[name] - 10) for each in silent for name in ("first_s", "last_s"))


def _recovered_s(overload: Any) -> float:
    seconds = overload.get("recovered_s")
    return math.nan if seconds is None else seconds


_FUZZ: Final = (
    "fuzz-sasl",
    "fuzz-proxy-protocol",
    "fuzz-principals",
    "fuzz-mapping-rules",
    "fuzz-client-quotas",
)


def _executions(*figures: str) -> float:
    return sum(number(each, r"(\d+) executions") for each in figures[: len(_FUZZ)])


ROWS: Final = (
    Row(
        "R1",
        "no bytes from a peer raise an unexpected error or hang a decoder",
        (*_FUZZ, "properties"),
        (
            Quantity("executions", _executions, least=2_000_000),
            Quantity("property tests failed", lambda *figures: _failed(figures[-1]), most=0),
        ),
        n=Quantity("executions", _executions),
    ),
    _of_tests(
        "R2", "what is passed on stays byte for byte; what is rewritten changes only there", "same-bytes"
    ),
    Row(
        "R3",
        "the largest legal body of any API holds the loop only briefly",
        ("limits",),
        (
            Quantity("above 20 ms", lambda figure: number(figure, r"([\d,]+) above"), "cases", most=0),
            Quantity(
                "memory",
                lambda figure: number(figure, r"([\d.]+) times"),
                "times the frame",
                most=10,
                reason="Small elements become objects of Python of 50 to 100 bytes each. Their number is bounded, "
                "so the worst body takes 15 MiB.",
            ),
        ),
        n=Quantity("bodies", lambda figure: number(figure, r"^([\d,]+) cases")),
        without="CPU of attacker and gateway",
    ),
    _of_tests("R4", "each hostile frame is answered or refused as documented", "hostile-frames"),
    Row(
        "R5",
        "5,000 slow clients are closed at their deadlines, and a good client beside them notices little",
        ("connections-slowloris.json",),
        (
            Quantity("from the deadline", _lateness, "s", most=1),
            Quantity(
                "p99 of a good client",
                lambda slow: slow["summary"]["p99_us"][1] / slow["summary"]["p99_us"][0],
                "times",
                most=1.2,
                reason="It waits some 0.6 ms longer while 400 connections end and begin each second: such an end or "
                "beginning takes 0.4 ms of CPU time. The ratio is large where the client alone is quick.",
            ),
            Quantity(
                "memory",
                lambda slow: slow["summary"]["rss_mib"][1] - slow["summary"]["rss_mib"][0],
                "MiB more",
                most=100,
            ),
        ),
        n=Quantity("clients at a time", lambda slow: slow["summary"]["clients"]),
    ),
    Row(
        "R6",
        "a client that does not read costs less than its answer, and is closed at its deadline",
        ("connections-slow-consumers.json",),
        (
            Quantity("memory of each", _slow_consumer_kib, "KiB", most=1_024),
            Quantity(
                "closed after the deadline",
                _freed_late_s,
                "s",
                most=2,
            ),
            Quantity("clients", lambda consumers: consumers["consumers"], least=500),
            Quantity(
                "with TLS", lambda consumers: sum("TLS" in core for core in consumers["cores"]), least=1
            ),
        ),
        n=Quantity("clients at a time", lambda consumers: consumers["consumers"]),
    ),
    Row(
        "R7",
        "without descriptors clients wait, none is lost, and serving continues",
        ("descriptors", "no-descriptors"),
        (
            Quantity("tests failed", lambda tests, _: _failed(tests), most=0),
            Quantity(
                "accepts again after", lambda _, figure: number(figure, r"at most ([\d.]+) s"), "s", most=1
            ),
            Quantity(
                "CPU meanwhile", lambda _, figure: number(figure, r"([\d.]+) % of"), "% of a core", most=50
            ),
            Quantity("times not counted", lambda _, figure: number(figure, r"([\d,]+) not counted"), most=0),
            Quantity(
                "established clients not answered",
                lambda _, figure: number(figure, r"([\d,]+) not answered"),
                most=0,
            ),
        ),
        n=Quantity("times without", lambda _, figure: number(figure, r"^([\d,]+) times")),
    ),
    Row(
        "R8",
        "connection rates per address, listener and gateway are kept",
        ("connections-accuracy.json",),
        (
            Quantity(
                "accepted to limit, lowest",
                lambda found: min(_connection_ratios(found, sluice=True)),
                least=0.90,
            ),
            Quantity("highest", lambda found: max(_connection_ratios(found, sluice=True)), most=1.05),
        ),
        n=Quantity("runs of 30 s", lambda found: len(_connection_ratios(found, sluice=True))),
        beside=(
            Quantity("Kafka 4.3.1, lowest", lambda found: min(_connection_ratios(found, sluice=False))),
            Quantity("highest", lambda found: max(_connection_ratios(found, sluice=False))),
        ),
    ),
    Row(
        "R9",
        "byte rates of four client families, and of a client that ignores throttles, are kept",
        ("accuracy.json",),
        (
            Quantity("rate to quota, lowest", lambda found: min(_byte_ratios(found, "gateway")), least=0.90),
            Quantity("highest", lambda found: max(_byte_ratios(found, "gateway")), most=1.05),
        ),
        n=Quantity("runs of 60 s", lambda found: len(_byte_ratios(found, "gateway"))),
        beside=(
            Quantity("Kafka's own quota, lowest", lambda found: min(_byte_ratios(found, "kafka"))),
            Quantity("highest", lambda found: max(_byte_ratios(found, "kafka"))),
        ),
    ),
    Row(
        "R10",
        "mutation quotas let applications through as Kafka does, and random clients find no way around them",
        ("streams.json", "adversary.json", "mutations"),
        (
            Quantity(
                "applications that failed",
                lambda streams, *_: sum(bool(row["failure"]) for row in _rows(streams, path="gateway")),
                most=0,
            ),
            Quantity(
                "more than the bound",
                lambda _, adversary, *__: sum(
                    each["kind"] != "stall" for row in adversary["rows"] for each in row["findings"]
                ),
                "times",
                most=0,
            ),
            Quantity("tests failed", lambda *found: _failed(found[-1]), most=0),
        ),
        n=Quantity("random clients", lambda _, adversary, *__: _total(adversary, "episodes")),
        beside=(
            Quantity(
                "direct, applications that failed",
                lambda streams, *_: sum(bool(row["failure"]) for row in _rows(streams, path="direct")),
            ),
        ),
    ),
    _of_tests("R11", "what a throttled client holds is free soon after it has left", "gone-while-muted"),
    Row(
        "R12",
        "each answer is that of its request, in order and unchanged",
        ("order.json",),
        (
            Quantity("out of order", lambda order: order["out_of_order"], most=0),
            Quantity("lost or changed", lambda order: len(order["faults"]), most=0),
            Quantity("requests", lambda order: order["requests"], least=5_000_000),
        ),
        n=Quantity("requests", lambda order: order["requests"]),
    ),
    Row(
        "R13",
        "acknowledged records survive kills of gateways and brokers: none lost, doubled or reordered",
        ("chaos.json", "upgrade.json", "at-least-once"),
        (
            Quantity("violations", _violations, most=0),
            Quantity("rounds", lambda chaos, *_: _total(chaos, "rounds"), least=30),
            Quantity(
                "lost or doubled in upgrades",
                lambda _, upgrade, __: upgrade["records_missing"] + upgrade["records_twice"],
                most=0,
            ),
            Quantity("lost without idempotence", lambda *data: number(data[-1], r"([\d,]+) lost"), most=0),
            Quantity(
                "faults of brokers, and as many of gateways, without idempotence",
                lambda *data: min(
                    number(data[-1], r"(\d+) broker faults"), number(data[-1], r"(\d+) gateway kills")
                ),
                least=30,
            ),
            Quantity(
                "chance of so many doubled or late at faults of brokers",
                lambda *data: _least_chance(data[-1], "broker faults"),
                least=0.01,
            ),
            Quantity(
                "chance of so many at kills of gateways",
                lambda *data: _least_chance(data[-1], "gateway kills"),
                least=0.01,
                reason="A killed gateway doubles more than a killed HAProxy. Probably because the kernel needs "
                "longer to end a larger process: the broker still takes what it received on these connections.",
            ),
        ),
        n=Quantity(
            "records",
            lambda chaos, upgrade, figure: (
                _total(chaos, "records") + upgrade["records_sent"] + number(figure, r"([\d,]+) records")
            ),
        ),
        beside=(
            Quantity("Sluice, doubled by brokers", lambda *data: _doubled(data[-1], "broker faults")[0]),
            Quantity("direct", lambda *data: _doubled(data[-1], "broker faults")[1]),
            Quantity(
                "Sluice, doubled when it is killed", lambda *data: _doubled(data[-1], "gateway kills")[0]
            ),
            Quantity("HAProxy", lambda *data: _doubled(data[-1], "gateway kills")[1]),
        ),
    ),
    Row(
        "R14",
        "transactions show no more anomalies than without Sluice",
        ("transactions",),
        (
            Quantity("chance of so many", lambda figure: number(figure, r"so many ([\d.]+)"), least=0.01),
            Quantity("rounds", lambda figure: number(figure, r"through ([\d,]+) rounds"), least=20),
        ),
        n=Quantity("transactions", lambda figure: number(figure, r"^([\d,]+) transactions")),
        beside=(
            Quantity("Sluice, anomalies", lambda figure: number(figure, r": ([\d,]+) anomalies")),
            Quantity("direct, anomalies", lambda figure: number(figure, r"directly: ([\d,]+)")),
            Quantity("direct, transactions", lambda figure: number(figure, r"([\d,]+) directly")),
            Quantity("HAProxy, anomalies", lambda figure: number(figure, r"HAProxy: ([\d,]+)")),
            Quantity("HAProxy, transactions", lambda figure: number(figure, r"([\d,]+) by HAProxy")),
        ),
    ),
    Row(
        "R15",
        "clients are back soon after a broker's restart",
        ("broker-restart",),
        (
            Quantity("p95 of producers", lambda figure: _back_s(figure, "producers")[0], "s", most=2),
            Quantity("p95 of consumers", lambda figure: _back_s(figure, "consumers")[0], "s", most=2),
            Quantity(
                "more than direct",
                lambda figure: max(
                    through - direct
                    for through, direct in (_back_s(figure, each) for each in ("producers", "consumers"))
                ),
                "s",
                most=0.5,
            ),
        ),
        n=Quantity("restarts", lambda figure: number(figure, r"^([\d,]+) restarts")),
        beside=(
            Quantity("direct, producers", lambda figure: _back_s(figure, "producers")[1], "s"),
            Quantity("direct, consumers", lambda figure: _back_s(figure, "consumers")[1], "s"),
        ),
    ),
    Row(
        "R16",
        "a broker that does not answer closes its clients soon and touches no others",
        ("dead-broker",),
        (
            Quantity("closed after", lambda figure: number(figure, r"at most ([\d.]+) s"), "s", most=5),
            Quantity("refused after", lambda figure: number(figure, r"([\d.]+) s refused"), "s", most=5),
            Quantity("others not answered", lambda figure: number(figure, r"([\d,]+) not answered"), most=0),
        ),
        n=Quantity("clients", lambda figure: number(figure, r"^([\d,]+) clients")),
    ),
    Row(
        "R17",
        "no byte to a client has the address of a broker",
        ("matrix.json", "misrouted.json"),
        (
            Quantity(
                "leaks",
                lambda matrix, misrouted: len(matrix["leaks"]) + _total(misrouted, "leaks"),
                most=0,
            ),
        ),
        n=Quantity("steps of clients", lambda matrix, _: len(matrix["rows"])),
    ),
    Row(
        "R18",
        "brokers that come, go or move are followed, and so are partitions that move between real brokers",
        ("moving-brokers", "reassigned"),
        (
            Quantity(
                "all reached after", lambda moving, _: number(moving, r"at most ([\d.]+) s"), "s", most=1
            ),
            Quantity(
                "a new leader reached after", lambda _, real: number(real, r"at most ([\d.]+) s"), "s", most=1
            ),
            Quantity(
                "at a wrong broker",
                lambda moving, real: (
                    number(moving, r"([\d,]+) at a wrong") + number(real, r"([\d,]+) of [\d,]+ at a wrong")
                ),
                most=0,
            ),
            Quantity(
                "records lost or doubled",
                lambda _, real: number(real, r"(-?[\d,]+) records lost"),
                least=0,
                most=0,
            ),
        ),
        n=Quantity(
            "changes",
            lambda moving, real: number(moving, r"^([\d,]+) changes") + number(real, r"^([\d,]+) reass"),
        ),
        beside=(
            Quantity(
                "direct, a new leader reached after",
                lambda _, real: number(real, r"directly ([\d.]+) s"),
                "s",
            ),
        ),
    ),
    Row(
        "R19",
        "a drain loses no answer of a request that was carried out, and ends in time",
        ("chaos.json", "drain"),
        (
            Quantity("violations", _violations, most=0),
            Quantity("drains", lambda chaos, _: _faults(chaos, "terminate"), least=50),
            Quantity("tests failed", lambda *found: _failed(found[-1]), most=0),
        ),
        n=Quantity("requests carried out at drains", lambda chaos, _: _total(chaos, "drained")),
    ),
    Row(
        "R20",
        "no client notices reloads and upgrades",
        ("upgrade.json",),
        (
            Quantity("connects that failed", _not_answered, most=0.0001),
            Quantity("reloads", lambda upgrade: upgrade["reloads"], least=100),
            Quantity("records lost", lambda upgrade: upgrade["records_missing"], most=0),
        ),
        n=Quantity("connects", lambda upgrade: sum(upgrade["connects"].values())),
    ),
    Row(
        "R21",
        "a worker that is killed takes only its own connections along",
        ("fleet-faults.json", "workers", "worker-kills"),
        (
            Quantity("lost by others of a fleet", lambda faults, *_: _total(faults, "lost"), most=0),
            Quantity("tests failed", lambda _, tests, __: _failed(tests), most=0),
            Quantity(
                "the new one serves after", lambda *found: number(found[-1], r"most ([\d.]+) s"), "s", most=2
            ),
            Quantity(
                "requests to others not answered",
                lambda *found: number(found[-1], r"([\d,]+) not answered"),
                most=0,
            ),
            Quantity("kills", lambda *found: number(found[-1], r"^([\d,]+) kills"), least=20),
        ),
        n=Quantity(
            "requests to others", lambda *found: number(found[-1], r"([\d,]+) requests to other workers")
        ),
    ),
    Row(
        "R22",
        "a start is quick, also with a hundred thousand quotas",
        ("store.json",),
        (
            Quantity(
                "ready without quotas, median",
                lambda store: median(each for row in store["rows"] for each in row["ready_empty_s"]),
                "s",
                most=1.5,
            ),
            Quantity("with 100,000", lambda store: median(store["rows"][-1]["ready_s"]), "s", most=2.5),
        ),
        n=Quantity("starts", lambda store: sum(len(row["ready_empty_s"]) for row in store["rows"])),
    ),
    Row(
        "R23",
        "the quota store is the old or the new one after any kill, failing call or power cut",
        ("crash.json",),
        (
            Quantity("stores torn or lost", lambda crash: len(crash["faults"]), most=0),
            Quantity("kills", lambda crash: crash["kills"]["ended there"], least=500),
        ),
        n=Quantity(
            "kills, failing calls and disks",
            lambda crash: (
                crash["kills"]["ended there"] + crash["failures"]["points"] + crash["power"]["images"]
            ),
        ),
    ),
    Row(
        "R24",
        "a quota is soon in force in every gateway, and in every worker of one",
        ("store.json", "worker-quotas"),
        (
            Quantity(
                "p99 with 100,000 quotas",
                lambda store, _: store["topic"][-1]["everywhere_ms"]["p99"],
                "ms",
                most=1_000,
            ),
            Quantity(
                "p99 in workers", lambda _, figure: number(figure, r"p99 ([\d,.]+) ms"), "ms", most=1_000
            ),
        ),
        n=Quantity("changes in workers", lambda _, figure: number(figure, r"^([\d,]+) changes")),
    ),
    _of_tests("R25", "clocks that jump and processes that stand still grant at most one burst", "clocks"),
    Row(
        "R26",
        "a million client ids and a million addresses cost bounded memory and series, and forgive no debt",
        ("crowd",),
        (
            Quantity("memory", lambda figure: number(figure, r"([\d.]+) MiB"), "MiB more", most=200),
            Quantity("series", lambda figure: number(figure, r"([\d,]+) series"), most=10_000),
            Quantity("a scrape", lambda figure: number(figure, r"([\d.]+) ms of CPU"), "ms of CPU", most=250),
            Quantity("debts forgiven", lambda figure: number(figure, r"forgiven: ([\d,]+)"), most=0),
            Quantity("client ids", lambda figure: number(figure, r"^([\d,]+) client"), least=1_000_000),
            Quantity("addresses", lambda figure: number(figure, r"and ([\d,]+) addresses"), least=1_000_000),
        ),
        n=Quantity("client ids", lambda figure: number(figure, r"^([\d,]+) client")),
    ),
    Row(
        "R27",
        "a hundred scrapers at a time get their answers, and clients theirs",
        ("scrapers",),
        (
            Quantity("failed", lambda figure: number(figure, r"([\d,]+) failed"), "scrapes", most=0),
            Quantity("clients not answered", lambda figure: number(figure, r"([\d,]+) not answered"), most=0),
            Quantity(
                "p99 of a client at one scrape a second",
                lambda figure: number(figure, r"p99 (-?[\d.]+) ms more"),
                "ms more",
                most=5,
            ),
        ),
        n=Quantity("scrapes", lambda figure: number(figure, r"^([\d,]+) scrapes")),
    ),
    Row(
        "R28",
        "a flood of bad connections does not flood the log, and lines that are left out are counted",
        ("log-flood",),
        (
            Quantity("in a second", lambda figure: number(figure, r"most ([\d,]+) lines"), "lines", most=20),
            Quantity(
                "not counted", lambda figure: number(figure, r"(-?[\d,]+) not counted"), least=0, most=0
            ),
            Quantity(
                "in the log alone, a second",
                lambda figure: number(figure, r"alone ([\d,]+) a second"),
                "lines",
                least=10_000,
            ),
        ),
        n=Quantity("bad connections", lambda figure: number(figure, r"^([\d,]+) bad")),
    ),
    _of_tests("R29", "no secret reaches a log, a metric, an answer or a file", "secrets"),
    Row(
        "R30",
        "usage records that cannot be delivered are counted, to the line",
        ("usage-outage",),
        (
            Quantity(
                "made, not in the topic and not dropped",
                lambda figure: number(figure, r"(-?[\d,]+) left"),
                least=0,
                most=0,
            ),
            Quantity("twice in the topic", lambda figure: number(figure, r"([\d,]+) twice"), most=0),
            Quantity(
                "p99 of a client beside it",
                lambda figure: number(figure, r"([\d.]+) times"),
                "times",
                most=1.05,
            ),
        ),
        n=Quantity("lines", lambda figure: number(figure, r"^([\d,]+) lines")),
    ),
    Row(
        "R31",
        "begun TLS handshakes end at their deadline, and a storm of them disturbs no established client",
        ("tls-storm.json", "tls-cases"),
        (
            Quantity("from the deadline", lambda storm, _: _ghosts_s(storm), "s", most=1),
            Quantity(
                "p99 in the storm", lambda storm, _: storm["summary"]["Sluice"]["ratio"], "times", most=1.5
            ),
            Quantity("tests failed", lambda *found: _failed(found[-1]), most=0),
        ),
        n=Quantity("handshakes", lambda storm, _: storm["summary"]["Sluice"]["done"]),
        beside=(
            Quantity(
                "HAProxy, p99 in the storm",
                lambda storm, _: storm["summary"]["HAProxy TLS"]["ratio"],
                "times",
            ),
        ),
    ),
    _of_tests("R32", "a client is who the broker says it is, in every mechanism and outcome", "identity"),
    _of_tests("R33", "no client does what its rights do not allow", "privilege"),
    Row(
        "R34",
        "what clients of many versions do at the brokers they do through Sluice",
        ("matrix.json",),
        (
            Quantity("worse than direct", _worse_through, "steps", most=0),
            Quantity(
                "records lost or doubled in rolling upgrades",
                lambda matrix: sum(each["missing"] + each["twice"] for each in matrix["mixed"]),
                most=0,
            ),
        ),
        n=Quantity("steps", lambda matrix: len(matrix["rows"])),
        beside=(
            Quantity(
                "direct, steps that work",
                lambda matrix: sum(row["direct"] == "ok" for row in matrix["rows"]),
            ),
        ),
    ),
    Row(
        "R35",
        "after an hour with faults memory, descriptors and tasks are what they were",
        ("soak.json",),
        (
            Quantity(
                "memory in 10 minutes",
                lambda soak: soak["summary"]["rss_mib_in_10_minutes"],
                "MiB more",
                most=1,
            ),
            Quantity("descriptors more", lambda soak: soak["summary"]["descriptors_more"], most=0),
            Quantity("tasks more", lambda soak: soak["summary"]["tasks_more"], most=0),
            Quantity(
                "connections not accounted for",
                lambda soak: soak["summary"]["connections_not_accounted"],
                most=0,
            ),
            Quantity("minutes", lambda soak: len(soak["rows"]), least=59),
        ),
        n=Quantity("connections", lambda soak: soak["summary"]["opened"]),
    ),
    Row(
        "R36",
        "random and hostile clients never hold the loop for long",
        ("adversary.json",),
        (
            Quantity(
                "longest event",
                lambda adversary: max(row["most_event_cpu_ms"] for row in adversary["rows"]),
                "ms of CPU",
                most=50,
            ),
            Quantity(
                "longest turn",
                lambda adversary: max(row["most_turn_cpu_ms"] for row in adversary["rows"]),
                "ms of CPU",
                most=50,
            ),
            Quantity(
                "turns above 20 ms",
                lambda adversary: _total(adversary, "long_turns") / _total(adversary, "turns"),
                most=0.001,
            ),
        ),
        n=Quantity("requests", lambda adversary: _total(adversary, "requests")),
    ),
    Row(
        "R37",
        "each fault, attack and client quirk of the catalogue has a test",
        ("catalogue",),
        (
            Quantity(
                "without a test",
                lambda figure: number(figure, r"([\d,]+) without"),
                "of the catalogue",
                most=0,
            ),
        ),
        n=Quantity("entries", lambda figure: number(figure, r"of ([\d,]+)")),
    ),
    Row(
        "R38",
        "each fault moves a documented counter, and each alert fires and stops",
        ("observed", "alerts.json"),
        (
            Quantity("tests failed", lambda *found: _failed(found[0]), most=0),
            Quantity(
                "alerts that did not fire or stop",
                lambda _, alerts: sum(
                    row["fired_s"] is None or row["stopped_s"] is None for row in alerts["rows"]
                ),
                most=0,
            ),
        ),
        n=Quantity("alerts", lambda _, alerts: len(alerts["rows"])),
        without="15 s for each fault of the catalogue",
    ),
    Row(
        "R39",
        "all attacks at once in 512 MiB end no process and leave honest clients answered",
        ("overload.json",),
        (
            Quantity("ended for want of memory", lambda overload: overload["killed"], most=0),
            Quantity("memory", lambda overload: overload["most_mib"], "MiB", most=512),
            Quantity(
                "honest requests not answered", lambda overload: len(overload["during"]["faults"]), most=0
            ),
            Quantity("all is as before after", _recovered_s, "s", most=10),
            Quantity(
                "refused since", lambda overload: overload.get("refused", math.nan), "connections", most=0
            ),
        ),
        n=Quantity("honest requests", lambda overload: overload["during"]["requests"]),
    ),
)
"""In the order of the page."""


def campaigns_of(row: Row) -> tuple[str, ...]:
    """The campaigns that make the row's sources."""
    return tuple(dict.fromkeys(MADE_BY.get(source, source) for source in row.sources))
