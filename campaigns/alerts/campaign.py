"""Rounds of faults: each alert has to fire during its own fault and to stop after it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from campaigns.alerts.faults import Fault
from campaigns.alerts.prometheus import Prometheus

FIRES_WITHIN_S: Final = 150.0
STOPS_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.2


class Outcome(NamedTuple):
    """Behaviour of one alert.

    Attributes:
        alert: its name.
        what: the fault.
        fired_s: seconds from the fault to the alert; None if it did not fire.
        stopped_s: seconds from the end of the fault to the end of the alert; None if it did not stop.
        labels: labels of the alert.
        others: other alerts that fired meanwhile and belong to no fault of the round.
    """

    alert: str
    what: str
    fired_s: float | None
    stopped_s: float | None
    labels: str
    others: tuple[str, ...]

    @property
    def held(self) -> bool:
        """Whether the alert fired and stopped as it should."""
        return self.fired_s is not None and self.stopped_s is not None


def play(prometheus: Prometheus, faults: Sequence[Fault]) -> list[Outcome]:
    """Begin these faults at once, wait for their alerts, end the faults, and wait for the end of the alerts.

    Raises:
        AssertionError: one of the alerts fires before the faults.
    """
    waited_for = [alert for fault in faults for alert in fault.alerts]
    _await_quiet(prometheus, set(waited_for))
    began: dict[str, float] = {}
    fired: dict[str, float] = {}
    labels: dict[str, str] = {}
    stopped: dict[str, float] = {}
    others: set[str] = set()
    for fault in faults:
        began |= dict.fromkeys(fault.alerts, time.monotonic())
        fault.begin()
    last = time.monotonic()
    while len(fired) < len(waited_for) and time.monotonic() - last < FIRES_WITHIN_S:
        now = prometheus.firing()
        others |= now.keys() - set(waited_for)
        for alert in now.keys() & (set(waited_for) - fired.keys()):
            fired[alert] = time.monotonic() - began[alert]
            labels[alert] = ", ".join(
                f"{name} {value}" for name, value in now[alert].items() if name not in _ALWAYS and value
            )
        time.sleep(_POLL_S)
    ended: dict[str, float] = {}
    for fault in faults:
        ended |= dict.fromkeys(fault.alerts, time.monotonic())
        fault.end()
    last = time.monotonic()
    while len(stopped) < len(waited_for) and time.monotonic() - last < STOPS_WITHIN_S:
        now = prometheus.firing()
        for alert in set(waited_for) - stopped.keys() - now.keys():
            stopped[alert] = time.monotonic() - ended[alert]
        time.sleep(_POLL_S)
    return [
        Outcome(
            alert,
            fault.what,
            fired.get(alert),
            stopped.get(alert),
            labels.get(alert, ""),
            tuple(sorted(others)),
        )
        for fault in faults
        for alert in fault.alerts
    ]


_ALWAYS: Final = frozenset({"alertname", "instance", "job", "severity"})


def _await_quiet(prometheus: Prometheus, alerts: set[str]) -> None:
    deadline = time.monotonic() + STOPS_WITHIN_S
    while early := prometheus.firing().keys() & alerts:
        assert time.monotonic() < deadline, f"{sorted(early)} fire without a fault"
        time.sleep(_POLL_S)
