"""Mutations that workers charge at the supervisor, over a link that may answer late."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.server.asked_mutations import ASKED, AskedMutations
from gateway.server.link import BlockingLink, Link
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.resolution import TrackerKey

NOW_MS = 1_000_000
BURST = 11.0
ALICE = TrackerKey("alice", "")


class Both:
    """A worker's part and the supervisor's, which reads the link only once `serve` was called. Time stands still."""

    def __init__(self) -> None:
        limits = Limits()
        limits.put(QuotaEntity(user="alice"), QuotaKey.CONTROLLER_MUTATION_RATE, 1.0)
        self._ours, self._theirs = socket.socketpair()
        self.supervisor = MutationQuotas(limits, MutationSettings())
        self._asking = BlockingLink(self._ours, within_s=0.05)
        self.worker = AskedMutations(limits, MutationSettings(), self._asking)
        self._link = Link({"mutations": self._take}, lambda: None)

    def _take(self, what: str, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        assert what in ASKED
        return getattr(self.supervisor, what)(*values, **named, now_ms=NOW_MS)

    async def serve(self) -> None:
        """The supervisor reads what is in the socket, and answers from now on, however long that takes."""
        self._asking._within_s = 60.0
        await self._link.open(self._theirs)

    async def close(self) -> None:
        """End the link."""
        self._link.close()
        self._ours.close()
        self._theirs.close()

    async def until(self, tokens: float) -> None:
        """Wait until all questions are answered and the supervisor's counter has so many tokens.

        Meanwhile the worker asks, as for clients: it takes late answers before that.
        """
        give_up_s = time.monotonic() + 60
        while True:
            await asyncio.to_thread(self.worker.throttle_time_ms, "alice", "app", now_ms=NOW_MS)
            if self._asking._answered_id == self._asking._last_id and self._tokens(self.supervisor) == tokens:
                return
            assert time.monotonic() < give_up_s, self._tokens(self.supervisor)

    def _tokens(self, quotas: MutationQuotas) -> float | None:
        return MutationQuotas.level(quotas, ALICE, now_ms=NOW_MS)[1]

    @property
    def own_tokens(self) -> float | None:
        """Of the worker's own counter."""
        return self._tokens(self.worker)

    @property
    def charge(self) -> Callable[[float], Any]:
        """Charges a request for one topic, in the worker."""
        return lambda permits: self.worker.charge_request("alice", "app", [permits], strict=True, now_ms=NOW_MS)


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    found = Both()
    yield found
    await found.close()


@pytest.mark.parametrize("refused", ["", "early", "late"])
async def test_a_charge_that_a_worker_decided_alone_moves_to_the_supervisor(both: Both, refused: str) -> None:
    (alone,) = both.charge(8).topics  # there is no answer
    assert alone.accepted
    assert both.own_tokens == BURST - 8
    if refused == "early":
        both.worker.refund(alone, now_ms=NOW_MS)
        assert both.own_tokens == BURST
    await both.serve()
    if refused != "early":
        await both.until(BURST - 8)
    if refused == "late":
        both.worker.refund(alone, now_ms=NOW_MS)
    await both.until(BURST if refused else BURST - 8)
    assert both.own_tokens == BURST


async def test_of_a_charge_that_the_supervisor_refuses_too_late_the_workers_own_stays(both: Both) -> None:
    both.supervisor.charge_request("alice", "app", [100.0], strict=True, now_ms=NOW_MS)
    (alone,) = both.charge(8).topics  # there is no answer
    await both.serve()
    await both.until(BURST - 100)
    assert both.own_tokens == BURST - 8
    both.worker.refund(alone, 5.0, now_ms=NOW_MS)
    both.worker.refund(alone, 3.0, now_ms=NOW_MS)
    await both.until(BURST - 100)
    assert both.own_tokens == BURST


async def test_the_debt_of_a_charge_that_was_asked_for_outlives_the_silence(both: Both) -> None:
    both.charge(100)  # there is no answer
    await both.serve()
    await both.until(BURST - 100)
    (refused,) = (await asyncio.to_thread(both.charge, 1)).topics
    assert not refused.accepted
    assert both.own_tokens == BURST


async def test_a_request_of_more_topics_than_are_kept_is_refunded_where_it_was_charged(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.asked_mutations._MOST_KEPT", 3)
    alone = both.worker.charge_request("alice", "app", [2.0] * 5, strict=True, now_ms=NOW_MS)  # there is no answer
    await both.serve()
    await both.until(BURST - 10)
    for topic in alone.topics:
        both.worker.refund(topic, now_ms=NOW_MS)
    await both.until(BURST)
    assert both.own_tokens == BURST


async def test_a_refund_while_the_supervisor_stands_still_comes_later(both: Both) -> None:
    (charged,) = both.supervisor.charge_request("alice", "app", [8.0], strict=True, now_ms=NOW_MS).topics
    both.charge(1)  # there is no answer
    both.worker.refund(charged, now_ms=NOW_MS)
    assert both.own_tokens == BURST - 1
    await both.serve()
    await both.until(BURST - 1)
    assert both.own_tokens == BURST
