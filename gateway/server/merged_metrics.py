"""Merges the metrics of all processes of a gateway into one page.

Counters and histograms are summed. When a worker dies, its last reported values stay in the sums, so no counter ever
shrinks. The connections that it had open by then count as closed. Gauges are summed too, with exceptions:

* Gauges of a client's counter show the largest value: workers report their usage to each other, so each knows the
  whole.
* The usable part of the brokers' capacity shows the smallest value.

Metrics that only the supervisor knows (`SUPERVISORS`) are taken from it. Only the metrics of processes have the label
`worker`.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.events import CloseCause

SUPERVISORS: Final = (
    "gateway_announced_request_limit_bytes",
    "gateway_config_",
    "gateway_enforcement",
    "gateway_hidden_brokers",
    "gateway_memory_queued_limit_bytes",
    "gateway_quota_store_",
    "gateway_ready",
    "gateway_tls_certificate",
    "gateway_upstream_login_",
    "gateway_connections_limit",
    "gateway_connection_accept_rate",
    "gateway_overall_connection",
    "gateway_ip_connection_accept_rate",
)
"""Beginnings of the names of metrics that are only taken from the supervisor."""

LARGEST: Final = (
    "gateway_produce_",
    "gateway_fetch_",
    "gateway_request_",
    "gateway_controller_mutation_",
    "gateway_group_",
    "gateway_api_",
)
"""Beginnings of the names of gauges that show the largest value."""

SMALLEST: Final = ("gateway_produce_usable_capacity_ratio",)
"""Names of gauges that show the smallest value: each worker measures its own clients, the supervisor has none."""

_GROWING: Final = ("counter", "histogram")

Steps: TypeAlias = Generator[None, None, None]

_Samples: TypeAlias = "dict[tuple[str, tuple[tuple[str, str], ...]], Any]"


class _Family:
    """A family while it is merged."""

    def __init__(self, family: Metric) -> None:
        self._family = Metric(family.name, family.documentation, family.type)
        largest = family.type == "gauge" and family.name.startswith(LARGEST)
        self._chosen = min if family.name in SMALLEST else max if largest else None
        self._samples: _Samples = {}

    def add(self, family: Metric) -> Steps:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            known = self._samples.get(key)
            if known is not None:
                chosen = self._chosen
                value = known.value + sample.value if chosen is None else chosen(known.value, sample.value)
                sample = known._replace(value=value)
            self._samples[key] = sample
            yield

    def made(self) -> Metric:
        self._family.samples = list(self._samples.values())
        return self._family


def merging(own: Iterable[Metric], others: Iterable[Iterable[Metric]]) -> Generator[None, None, list[Metric]]:
    """Makes one list of the families of all processes, in many small steps.

    Args:
        own: the supervisor's.
        others: those of each worker.
    """
    found: dict[str, _Family] = {}
    for family in own:
        yield from found.setdefault(family.name, _Family(family)).add(family)
    for families in others:
        for family in families:
            if not family.name.startswith(SUPERVISORS):
                yield from found.setdefault(family.name, _Family(family)).add(family)
    return [family.made() for family in found.values()]


def merged(own: Iterable[Metric], others: Iterable[Iterable[Metric]]) -> list[Metric]:
    """As `merging`, at once."""
    steps = merging(own, others)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[Metric] = end.value
            return found


_SAMPLES_AT_ONCE: Final = 500


def packing(family: Metric) -> Iterator[bytes]:
    """A family as a worker sends it, in parts: all metrics at once would block its loop for tens of ms."""
    for at in range(0, len(family.samples), _SAMPLES_AT_ONCE) or (0,):
        part = Metric(family.name, family.documentation, family.type)
        part.samples = family.samples[at : at + _SAMPLES_AT_ONCE]
        yield pickle.dumps(part, pickle.HIGHEST_PROTOCOL)


def unpacking(parts: Iterable[bytes]) -> Generator[None, None, list[Metric]]:
    """What a worker has packed, in steps; a family may be in several parts."""
    found: list[Metric] = []
    for part in parts:
        found.append(pickle.loads(part))
        yield
    return found


class Departed:
    """The counts of workers that have died."""

    def __init__(self) -> None:
        """No worker has died."""
        self.families: list[Metric] = []
        self._latest: dict[int, list[Metric]] = {}

    def seen(self, by_worker: Mapping[int, list[Metric]]) -> None:
        """Take the present counts of living workers, by number."""
        self._latest.update(by_worker)

    def lost(self, worker: int, cause: CloseCause) -> None:
        """A worker has ended: keep its last counts. Connections that were open by then count as closed."""
        counted = [family for family in self._latest.pop(worker, ()) if family.type in _GROWING]
        self.families = merged((), [self.families, counted, [_ended(counted, cause)]])

    def others(self, answered: Mapping[int, list[Metric]]) -> list[list[Metric]]:
        """What to add to the supervisor's metrics; for a worker that does not answer, its last answer."""
        self.seen(answered)
        return [*self._latest.values(), self.families]


def _ended(counted: Iterable[Metric], cause: CloseCause) -> Metric:
    """The connections that were open in a worker with these counts, as closed ones."""
    left: Counter[str] = Counter()
    for family in counted:
        sign = {"gateway_connections_opened": 1, "gateway_connections_closed": -1}.get(family.name, 0)
        for sample in family.samples if sign else ():
            left[sample.labels["listener"]] += sign * int(sample.value)
    closed = CounterMetricFamily("gateway_connections_closed", "", labels=["listener", "cause"])
    for listener, count in left.items():
        if count:
            closed.add_metric([listener, cause.value], count)
    return closed


_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def _usage_of(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process; zeros if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    # See proc(5); the part after the name begins with field 3.
    return (int(fields[11]) + int(fields[12])) * _TICK_S, int(fields[21]) * _PAGE_BYTES


class _Pool(Protocol):
    @property
    def restarts(self) -> int: ...
    def processes(self) -> Iterator[tuple[str, int, int]]: ...


class ProcessMetrics(Collector):
    """Metrics of the processes of a gateway: the only ones with the label `worker`."""

    def __init__(self, pool: _Pool) -> None:
        """Show the processes of a pool.

        Args:
            pool: gives name, process id and connections of each process, and how many workers were replaced.
        """
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        cpu = CounterMetricFamily(
            "gateway_worker_cpu_seconds", "CPU time of a process of the gateway.", labels=["worker"]
        )
        connections = GaugeMetricFamily(
            "gateway_worker_connections", "Client connections that a worker serves.", labels=["worker"]
        )
        resident = GaugeMetricFamily(
            "gateway_worker_resident_bytes", "Memory of a process of the gateway.", labels=["worker"]
        )
        for name, pid, count in self._pool.processes():
            cpu_s, resident_bytes = _usage_of(pid)
            cpu.add_metric([name], cpu_s)
            resident.add_metric([name], resident_bytes)
            connections.add_metric([name], count)
        yield from (cpu, connections, resident)
        yield CounterMetricFamily(
            "gateway_worker_restarts", "Workers that died and were replaced.", value=self._pool.restarts
        )
