"""Watches one gateway: it must not report that it is ready while its quotas are out of date."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from campaigns.chaos.clients import BASE, QuotaWriter
from campaigns.chaos.gateways import ChaosGateway

STALE_S = 5.0
_EVERY_S = 0.2


class ReadinessWatch(threading.Thread):
    """See the module.

    Attributes:
        looks, green: how often readiness was checked, and how often the gateway was ready.
        excused: whether an operator made the gateway start without the quotas that were in force.
        not_ready_from_s: from this time on it must not be ready; None if it may be.
        stopped: set to end the thread.
    """

    def __init__(
        self, gateway: ChaosGateway, writers: Sequence[QuotaWriter], violated: Callable[[str], None]
    ) -> None:
        """Prepare the watch without checking anything.

        Args:
            gateway: the gateway to watch.
            writers: the writers whose quotas it must have.
            violated: called once each time a violation begins.
        """
        super().__init__(daemon=True)
        self._gateway, self._writers, self._violated = gateway, writers, violated
        self.looks = self.green = 0
        self.excused = False
        self.not_ready_from_s: float | None = None
        self.stopped = threading.Event()
        self._told = False

    def run(self) -> None:
        while not self.stopped.wait(_EVERY_S):
            began_s = time.monotonic()
            steady_s, not_ready_from_s = self._gateway.steady_since_s, self.not_ready_from_s
            self.looks += 1
            if self._gateway.why_not_ready() is not None:
                self._told = False
                continue
            try:
                quotas = self._gateway.quotas()
            except OSError:
                continue
            if self._gateway.why_not_ready() is not None:
                continue
            self.green += 1
            wrong = self._wrong(quotas, began_s, not_ready_from_s)
            if steady_s != self._gateway.steady_since_s or began_s < steady_s + STALE_S or self.excused:
                continue
            if wrong is not None and not self._told:
                self._violated(f"L01: {self._gateway.folder.name} is ready though {wrong}")
            self._told = wrong is not None

    def _wrong(self, quotas: dict[str, float], began_s: float, not_ready_from_s: float | None) -> str | None:
        if not_ready_from_s is not None and began_s > not_ready_from_s:
            return "its topic is gone or another one"
        for writer in self._writers:
            needed = writer.acknowledged_by(began_s - STALE_S)
            if (found := quotas.get(writer.user, BASE) - BASE) < needed:
                return f"{writer.user} has {found}, and {needed} was acknowledged {STALE_S:.0f} s before"
        return None
