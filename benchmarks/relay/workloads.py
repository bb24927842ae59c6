"""The workloads of the load program. Sizes are whole frames on the wire."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Unit(StrEnum):
    """The unit of a workload's main number."""

    CPU_S_PER_GB = "CPU-s per GB"
    CPU_MS_PER_1000 = "CPU-ms per 1,000 requests"


@dataclass(frozen=True, slots=True)
class Workload:
    """One closed-loop job of the load program over a single connection."""

    key: str
    title: str
    verb: str
    """produce, fetch, or together: produce with all allowed requests in one write."""
    frame_bytes: int
    """Size of the request for produce, of the response for fetch."""
    in_flight: int
    warm_up: int
    requests: int
    unit: Unit
    goal: float | None
    """At most this many times HAProxy's number; None where no goal is set."""

    def half(self) -> "Workload":
        """The same in half the time."""
        return replace(self, requests=self.requests // 2)

    def amount(self, requests: int) -> float:
        """The requests in the unit's denominator, such as thousands of requests or GB."""
        if self.unit is Unit.CPU_MS_PER_1000:
            return requests / 1000
        return requests * self.frame_bytes / 1e9

    def figure(self, cpu_s: float) -> float:
        """The main number of a window that took this many CPU seconds."""
        scale = 1000.0 if self.unit is Unit.CPU_MS_PER_1000 else 1.0
        return scale * cpu_s / self.amount(self.requests)


PER_GB: Final = Unit.CPU_S_PER_GB
PER_1000: Final = Unit.CPU_MS_PER_1000

# The numbers of requests make each window one to two seconds long on the machine the goals were set on.
WORKLOADS: Final = (
    Workload("small_pipelined", "256 B, 64 in flight", "produce", 256, 64, 2_000, 80_000, PER_1000, 0.9),
    Workload("small_single", "256 B, one at a time", "produce", 256, 1, 1_000, 20_000, PER_1000, 1.2),
    Workload("produce_16k", "16 KB produce, 5 in flight", "produce", 16_384, 5, 1_000, 30_000, PER_GB, 1.0),
    Workload("fetch_16k", "16 KB fetch, 5 in flight", "fetch", 16_384, 5, 1_000, 30_000, PER_GB, 1.1),
    Workload("produce_1m", "1 MB produce, 1 in flight", "produce", 1_000_000, 1, 100, 1_000, PER_GB, 0.55),
    Workload("fetch_1m", "1 MB fetch, 1 in flight", "fetch", 1_000_000, 1, 100, 1_000, PER_GB, 0.55),
    # Rows without a goal show how the numbers above would change with another kind of load.
    Workload(
        "produce_1m_deep", "1 MB produce, 5 in flight", "produce", 1_000_000, 5, 100, 1_000, PER_GB, None
    ),
    Workload(
        "small_together",
        "256 B, 64 in flight, shared writes",
        "together",
        256,
        64,
        20_000,
        200_000,
        PER_1000,
        2.5,
    ),
)

LATENCY_FRAME_BYTES: Final = 256
LATENCY_PER_SECOND: Final = 500
LATENCY_WARM_UP: Final = 100
LATENCY_REQUESTS: Final = 1_000

IDLE_CONNECTIONS: Final = 2_000
IDLE_GOAL_BYTES: Final = 8 * 1024
