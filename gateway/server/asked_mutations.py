"""Controller mutations in a worker: the supervisor has the counters, so each is charged in one place (KIP-599).

The methods are those of `MutationQuotas`. They block until the supervisor has answered, because the handler's next
step depends on the decision. Calls that touch no counter are not sent. If the supervisor does not answer in time,
this worker counts by itself until the supervisor answers again. A client then has its quota once more, but is not let
through without a quota. If the late answer shows that the supervisor has charged the same, only that charge stays.
Charges that it was not asked for, because it was silent already, stay here. A charge is refunded where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import structlog

from gateway.observability.logging_setup import flooded
from gateway.server.link import BlockingLink, LinkLost
from quotas.limits import Limits
from quotas.mutations import MutationDecision, MutationQuotas, MutationSettings, RequestDecision
from quotas.resolution import TrackerKey
from quotas.trackers import Kind

ASKED: Final = frozenset(
    {"charge", "charge_request", "refund", "throttle_time_ms", "count_throttle", "level"}
)
"""The methods of the supervisor's counters that a worker may call."""

_MOST_KEPT: Final = 10_000
"""Refunds that wait for a supervisor that stands still, and decisions that were made without it."""

_Answer = TypeVar("_Answer")

_log = structlog.get_logger("gateway.mutations")


@dataclass(slots=True)
class _Alone:
    """A decision that was made without the supervisor.

    Attributes:
        decision: it, with its charge.
        refunded: permits that were given back here.
        there: the supervisor's decision about the same, which has the charge now; None: the charge is here.
    """

    decision: MutationDecision
    refunded: float = 0.0
    there: MutationDecision | None = None


class AskedMutations(MutationQuotas):
    """See the module."""

    def __init__(self, limits: Limits, settings: MutationSettings, asking: BlockingLink) -> None:
        """Nothing is sent yet.

        Args:
            limits, settings: as for `MutationQuotas`; the same as the supervisor's.
            asking: the link to the supervisor.
        """
        super().__init__(limits, settings)
        self._asking = asking
        self._refunds: deque[tuple[MutationDecision, float | None]] = deque(maxlen=_MOST_KEPT)
        self._alone: dict[int, _Alone] = {}
        self._last_alone = 0
        self._decides_alone = False
        self._now_ms = 0

    def charge(
        self,
        user: str,
        client_id: str,
        permits: float,
        *,
        strict: bool,
        kind: Kind | None = None,
        address: str = "",
        now_ms: int,
    ) -> MutationDecision:
        """See `MutationQuotas`."""
        named: dict[str, Any] = {"strict": strict, "kind": kind, "address": address}
        if self._decides_alone or permits <= 0 or not self.enabled:
            return super().charge(user, client_id, permits, **named, now_ms=now_ms)
        made: list[_Alone] = []
        self._now_ms = now_ms
        try:
            return self._ask(
                MutationDecision,
                "charge",
                user,
                client_id,
                permits,
                **named,
                if_late=lambda late: self._settle(made, [late]),
            )
        except LinkLost:
            decided = super().charge(user, client_id, permits, **named, now_ms=now_ms)
            return self._note_alone([decided], made)[0]

    def charge_request(
        self,
        user: str,
        client_id: str,
        permits: Sequence[float],
        *,
        strict: bool,
        validate_only: bool = False,
        kind: Kind | None = None,
        address: str = "",
        now_ms: int,
    ) -> RequestDecision:
        """See `MutationQuotas`."""
        named: dict[str, Any] = {
            "strict": strict,
            "validate_only": validate_only,
            "kind": kind,
            "address": address,
        }
        if not any(permits) or not self.enabled:
            return super().charge_request(user, client_id, permits, **named, now_ms=now_ms)
        made: list[_Alone] = []
        self._now_ms = now_ms
        try:
            return self._ask(
                RequestDecision,
                "charge_request",
                user,
                client_id,
                list(permits),
                **named,
                if_late=lambda late: self._settle(made, late.topics),
            )
        except LinkLost:
            self._decides_alone = True  # for each topic
            try:
                decided = super().charge_request(user, client_id, permits, **named, now_ms=now_ms)
            finally:
                self._decides_alone = False
            return replace(decided, topics=tuple(self._note_alone(decided.topics, made)))

    def _note_alone(self, decided: Iterable[MutationDecision], made: list[_Alone]) -> list[MutationDecision]:
        """Number decisions that were made without the supervisor, and keep them in `made` for its late answer."""
        numbered = []
        decided = list(decided)
        while self._alone and len(self._alone) + len(decided) > _MOST_KEPT:
            del self._alone[next(iter(self._alone))]
        for each in decided:
            self._last_alone += 1
            self._alone[self._last_alone] = alone = _Alone(each)
            made.append(alone)
            numbered.append(replace(each, alone=self._last_alone))
        return numbered

    def _settle(self, made: Sequence[_Alone], late: Sequence[MutationDecision]) -> None:
        """The supervisor has decided the same too late: let each topic be charged in one place."""
        for alone, there in zip(made, late, strict=True):
            if there.charged <= 0:
                continue
            if not alone.decision.accepted:
                self._refunds.append((there, None))
                continue
            left = alone.decision.charged - alone.refunded
            super().refund(alone.decision, left, now_ms=self._now_ms)
            alone.there = there
            if alone.refunded:
                self._refunds.append((there, alone.refunded))
        self._send_refunds()

    def refund(self, decision: MutationDecision, permits: float | None = None, *, now_ms: int) -> None:
        """See `MutationQuotas`."""
        amount = decision.charged if permits is None else min(permits, decision.charged)
        if amount <= 0:
            return
        alone = self._alone.get(decision.alone)
        if decision.alone and (alone is None or alone.there is None):
            super().refund(decision, amount, now_ms=now_ms)
            if alone is not None:
                alone.refunded += amount
            return
        self._refunds.append((decision if alone is None or alone.there is None else alone.there, amount))
        self._send_refunds()

    def _send_refunds(self) -> None:
        while self._refunds:
            refund = self._refunds.popleft()  # before it is sent: a late answer may add others meanwhile
            try:
                self._tell("refund", *refund)
            except LinkLost:  # sent before the next question
                self._refunds.appendleft(refund)
                return

    def throttle_time_ms(
        self, user: str, client_id: str, *, kind: Kind | None = None, address: str = "", now_ms: int
    ) -> int:
        """See `MutationQuotas`."""
        if not self.is_limited(user, client_id, address):
            return 0
        with suppress(LinkLost):
            return self._ask(int, "throttle_time_ms", user, client_id, kind=kind, address=address)
        return super().throttle_time_ms(user, client_id, kind=kind, address=address, now_ms=now_ms)

    def count_throttle(
        self,
        user: str,
        client_id: str,
        throttle_time_ms: int,
        *,
        kind: Kind | None = None,
        group: str = "",
        now_ms: int,
    ) -> None:
        """See `MutationQuotas`."""
        try:
            self._tell("count_throttle", user, client_id, throttle_time_ms, kind=kind, group=group)
        except LinkLost:
            super().count_throttle(user, client_id, throttle_time_ms, kind=kind, group=group, now_ms=now_ms)

    def level(
        self, tracker_key: TrackerKey, group: str = "", *, now_ms: int
    ) -> tuple[float | None, float | None, bool]:
        """See `MutationQuotas`."""
        with suppress(LinkLost):
            limit, tokens, observe = self._ask(tuple, "level", tracker_key, group)
            return limit, tokens, observe
        return super().level(tracker_key, group, now_ms=now_ms)

    def _ask(
        self,
        answer: type[_Answer],
        what: str,
        *values: Any,
        if_late: Callable[[Any], None] | None = None,
        **named: Any,
    ) -> _Answer:
        self._send_refunds()
        try:
            value = self._asking.ask("mutations", what, values, named, if_late=if_late)
        except LinkLost as exc:
            _complain(what, exc)
            raise
        assert isinstance(value, answer)
        return value

    def _tell(self, what: str, *values: Any, **named: Any) -> None:
        try:
            self._asking.tell("mutations", what, values, named)
        except LinkLost as exc:
            _complain(what, exc)
            raise


def _complain(what: str, exc: LinkLost) -> None:
    if not flooded("supervisor_silent"):
        _log.error("supervisor_silent", question=what, error=str(exc))
