"""Divides the brokers' capacity among clients once per second, and reports slow brokers. [io]"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from gateway.observability.capacity_notices import Episodes
from gateway.runtime.clock import NowMs
from gateway.runtime.slices import Slices
from gateway.session.client_quotas import ClientQuotas
from quotas.rate_quotas import RateQuotas

_INTERVAL_S: Final = 1.0

_log = structlog.get_logger("gateway.overload")


class DivisionTimer:
    """Runs the steps of `ClientQuotas.divide` in slices; without a configured capacity there are none.

    Attributes:
        episodes: spans of time in which slow brokers reduced the capacity of tiers.
    """

    def __init__(
        self,
        quotas: ClientQuotas,
        divided: Mapping[str, RateQuotas],
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        wall_ms: NowMs,
    ) -> None:
        """Nothing happens before `start`.

        Args:
            quotas: of the gateway.
            divided: the quotas with a capacity, by the word that their metrics begin with.
            loop: the running loop.
            now_ms: the clock.
            wall_ms: the wall clock.
        """
        self._divided = divided
        self._wall_ms = wall_ms
        self.episodes = Episodes()
        self._quotas = quotas
        self._loop = loop
        self._now_ms = now_ms
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._usable = 1.0  # the last reported value

    def start(self) -> None:
        """Divide now and from then on."""
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._divide())
        self._timer = self._loop.call_later(_INTERVAL_S, self.start)

    async def stop(self) -> None:
        """Divide no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _divide(self) -> None:
        slices = Slices()
        for _ in self._quotas.divide(now_ms=self._now_ms()):
            if slices.over:
                await slices.next()
        self._report()

    def _report(self) -> None:
        """Log when brokers become slow, when all of the capacity is usable again, and the episodes of each tier."""
        overload = self._quotas.overload
        for each in self.episodes.follow(overload, self._divided, wall_ms=self._wall_ms()):
            _log.warning(
                "tier_limited" if each.until_ms is None else "tier_restored",
                quota=each.quota,
                tier=each.tier,
                percent=round(each.least_percent, 1),
                mode="enforce" if each.enforced else "observe",
            )
        before, self._usable = self._usable, 1.0 if overload is None else overload.usable
        if overload is None or (before < 1) == (overload.usable < 1):
            return
        _log.warning(
            "brokers_slow" if overload.usable < 1 else "brokers_recovered",
            broker_time_ms=overload.health.time_ms,
            target_ms=overload.target_ms,
            errors=overload.health.errors,
            clients=overload.health.clients,
            usable=round(overload.usable, 3),
            mode="enforce" if overload.enforce else "observe",
        )
