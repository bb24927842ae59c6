"""Controller mutations in a worker: the supervisor has the counters, so each is charged in one place (KIP-599).

The methods are those of `MutationQuotas`. They block until the supervisor has answered, because the handler's next
step depends on the decision. Calls that touch no counter are not sent. If the supervisor does not answer in time,
this worker counts by itself until the supervisor answers again. A client then has its quota once more, but is not let
through without a quota. What the supervisor charges for a late question is refunded there, since this worker has
decided, and refunds of such decisions stay here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
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

_MOST_REFUNDS: Final = 10_000
"""Refunds that wait for a supervisor that stands still."""

_Answer = TypeVar("_Answer")

_log = structlog.get_logger("gateway.mutations")


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
        self._refunds: deque[tuple[MutationDecision, float | None]] = deque(maxlen=_MOST_REFUNDS)

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
        if permits > 0 and self.enabled:
            with suppress(LinkLost):
                return self._ask(
                    MutationDecision,
                    "charge",
                    user,
                    client_id,
                    permits,
                    strict=strict,
                    kind=kind,
                    address=address,
                    if_late=lambda late: self._refund_there([late]),
                )
        alone = super().charge(
            user, client_id, permits, strict=strict, kind=kind, address=address, now_ms=now_ms
        )
        return replace(alone, alone=True)

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
        if any(permits) and self.enabled:
            named = {"strict": strict, "validate_only": validate_only, "kind": kind, "address": address}
            with suppress(LinkLost):
                return self._ask(
                    RequestDecision,
                    "charge_request",
                    user,
                    client_id,
                    list(permits),
                    **named,
                    if_late=lambda late: self._refund_there(late.topics),
                )
        alone = super().charge_request(
            user,
            client_id,
            permits,
            strict=strict,
            validate_only=validate_only,
            kind=kind,
            address=address,
            now_ms=now_ms,
        )
        return replace(alone, topics=tuple(replace(each, alone=True) for each in alone.topics))

    def refund(self, decision: MutationDecision, permits: float | None = None, *, now_ms: int) -> None:
        """See `MutationQuotas`."""
        if decision.alone:
            super().refund(decision, permits, now_ms=now_ms)
        elif permits is None or permits > 0:
            self._refund_there([decision], permits)

    def _refund_there(self, decisions: Iterable[MutationDecision], permits: float | None = None) -> None:
        self._refunds += [(each, permits) for each in decisions if each.charged > 0]
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
