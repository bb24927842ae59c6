"""Merges the metrics of all processes of a gateway into one page.

Counters and histograms are summed. When a worker dies, its last reported values stay in the sums, so no counter ever
shrinks. Gauges are summed too, with exceptions:

* Gauges of a client's counter show the largest value: workers report their usage to each other, so each knows the
  whole.
* The usable part of the brokers' capacity shows the smallest value.

Metrics that only the supervisor knows (`SUPERVISORS`) are taken from it. Only the metrics of processes have the label
`worker`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
)
"""Beginnings of the names of gauges that show the largest value."""

SMALLEST: Final = ("gateway_produce_usable_capacity_ratio",)
"""Names of gauges that show the smallest value: each worker measures its own clients, the supervisor has none."""

_GROWING: Final = ("counter", "histogram")

_Samples: TypeAlias = "dict[tuple[str, tuple[tuple[str, str], ...]], Any]"


class _Family:
    """A family while it is merged."""

    def __init__(self, family: Metric) -> None:
        self._family = Metric(family.name, family.documentation, family.type)
        largest = family.type == "gauge" and family.name.startswith(LARGEST)
        self._chosen = min if family.name in SMALLEST else max if largest else None
        self._samples: _Samples = {}

    @property
    def grows(self) -> bool:
        return self._family.type in _GROWING

    def add(self, family: Metric) -> None:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            known = self._samples.get(key)
            if known is not None:
                chosen = self._chosen
                value = known.value + sample.value if chosen is None else chosen(known.value, sample.value)
                sample = known._replace(value=value)
            self._samples[key] = sample

    def made(self) -> Metric:
        self._family.samples = list(self._samples.values())
        return self._family


def merged(own: Iterable[Metric], others: Iterable[Iterable[Metric]]) -> list[Metric]:
    """The families of all processes as one list.

    Args:
        own: the supervisor's.
        others: those of each worker.
    """
    found: dict[str, _Family] = {}
    for family in own:
        found.setdefault(family.name, _Family(family)).add(family)
    for families in others:
        for family in families:
            if not family.name.startswith(SUPERVISORS):
                found.setdefault(family.name, _Family(family)).add(family)
    return [family.made() for family in found.values()]


class Departed:
    """The counts of workers that have died."""

    def __init__(self) -> None:
        """No worker has died."""
        self.families: list[Metric] = []
        self._latest: dict[int, list[Metric]] = {}

    def seen(self, by_worker: Mapping[int, list[Metric]]) -> None:
        """Take the present counts of living workers, by number."""
        self._latest.update(by_worker)

    def lost(self, worker: int) -> None:
        """A worker has died: keep its last counts."""
        counted = [family for family in self._latest.pop(worker, ()) if family.type in _GROWING]
        self.families = merged((), [self.families, counted])

    def others(self, answered: Mapping[int, list[Metric]]) -> list[list[Metric]]:
        """What to add to the supervisor's metrics; for a worker that does not answer, its last answer."""
        self.seen(answered)
        return [*self._latest.values(), self.families]


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
