"""The request quota of one connection (KIP-124): measures time, and adds its wait to the next reply.

Pure: the shell adds the nanoseconds it measured. If two quotas want the client to wait for one request, the longer
wait counts. As in Kafka, it is recorded under the API's own quota only if that wait is strictly longer
(`quotas.combine`).
"""

from __future__ import annotations

import itertools
from typing import Final

from gateway.session.client_quotas import ClientQuotas
from gateway.session.response_queue import TimedRequest
from gateway.usage.row import UsageRow
from protocol import throttle
from protocol.api_keys import Api
from quotas.combine import ThrottledBy, combine
from quotas.trackers import Kind

_SERIALS: Final = itertools.count(1)
_NOT_THROTTLED: Final = ThrottledBy.NONE


class RequestMeter:
    """Measures one connection's requests.

    Attributes:
        quotas: the counters, shared by all connections.
        on: whether any request_percentage is set; updated once per received chunk.
        busy_ns: CPU time spent on this connection and not yet counted; the shell adds to it.
        event_ns: when the event being handled began; set by the shell while `on`.
        request_ms: how long the request quota wants the reply being sent to make its client wait.
        specific_ms, specific_by: the same for the API's own quota, and that quota's family.
        serial: a unique number of the connection.
        row: the usage record's row of the last request's time; None if no usage records are kept.
    """

    __slots__ = (
        "_address",
        "_client_id",
        "_listener",
        "busy_ns",
        "event_ns",
        "exempt_event",
        "on",
        "quotas",
        "request_ms",
        "row",
        "serial",
        "specific_by",
        "specific_ms",
        "timed_event",
    )

    def __init__(self, quotas: ClientQuotas, listener: str = "", address: str = "") -> None:
        self.serial = next(_SERIALS)
        self.quotas: Final = quotas
        self._listener = listener
        self._address = address
        self._client_id = ""  # of the last request
        self.row: UsageRow | None = None
        self.on = quotas.times_requests
        self.busy_ns = 0
        self.event_ns = 0
        self.exempt_event = False
        self.timed_event = False
        self.request_ms = 0
        self.specific_ms = 0
        self.specific_by = _NOT_THROTTLED

    def start(self, api: Api, client_id: str) -> TimedRequest:
        """Start the time of a forwarded request."""
        self.timed_event = True
        self._client_id = client_id
        return TimedRequest(api, client_id, self.event_ns)

    def take_up(self, api: Api, client_id: str) -> TimedRequest:
        """Start the time of a collected request. The gateway may answer it itself, so the event is not exempt."""
        self.timed_event = True
        return TimedRequest(api, client_id, self.event_ns)

    def spend(self, now_ns: int) -> None:
        """Add the CPU time of an event that is over. If all its requests were exempt (acks=0), so is the event."""
        elapsed_ns, self.event_ns = now_ns - self.event_ns, 0
        if elapsed_ns == now_ns:
            return  # the quota was set during this event
        timed, self.timed_event = self.timed_event, False
        exempt, self.exempt_event = self.exempt_event, False
        if exempt and not timed:
            self.quotas.request_time.record_exempt(elapsed_ns)
        else:
            self.busy_ns += elapsed_ns

    def answered(
        self, user: str, timed: TimedRequest, broker_id: int | None, *, kind: Kind, now_ms: int
    ) -> None:
        """Count the time of a request whose reply has arrived, and note how long the client has to wait."""
        self.timed_event = True
        self._client_id = timed.client_id
        busy_ns, self.busy_ns = self.busy_ns, 0
        self.specific_ms, self.specific_by = 0, _NOT_THROTTLED
        self.row = self.quotas.request_row(
            self._listener, user, timed.client_id, broker_id, kind=kind, now_ms=now_ms
        )
        self.request_ms = self.quotas.record_request_time(
            user,
            timed,
            broker_id,
            busy_ns=busy_ns,
            answered_ns=self.event_ns,
            kind=kind,
            address=self._address,
            now_ms=now_ms,
            row=self.row,
            connection=self.serial,
        )

    def not_measured(self) -> None:
        """Note the reply of a request whose time is not counted."""
        self.request_ms = 0

    def add_steps(
        self, user: str, timed: TimedRequest, broker_id: int | None, *, kind: Kind, now_ms: int
    ) -> None:
        """Count the time of a reply's further steps, and note again how long the client has to wait."""
        busy_ns, self.busy_ns = self.busy_ns, 0
        self.request_ms = self.quotas.record_more_time(
            user,
            timed.client_id,
            broker_id,
            busy_ns=busy_ns,
            kind=kind,
            address=self._address,
            now_ms=now_ms,
            row=self.row,
        )

    def left(self, user: str, broker_id: int | None, *, kind: Kind, now_ms: int) -> None:
        """Count the time since the last reply when the connection has ended."""
        if self.busy_ns and self.quotas.times_requests:
            self.quotas.record_more_time(
                user,
                self._client_id,
                broker_id,
                busy_ns=self.busy_ns,
                kind=kind,
                address=self._address,
                now_ms=now_ms,
            )

    def claim(self, by: ThrottledBy, wanted_ms: int, final_ms: int) -> bool:
        """Note the wait for an API's own quota in the current reply. True: the wait is recorded under that quota.

        Args:
            by: that quota's family.
            wanted_ms: the wait for that quota.
            final_ms: the throttle time in the reply, with the broker's own taken into account.
        """
        self.specific_ms, self.specific_by = wanted_ms, by
        return combine(by, wanted_ms, request_ms=self.request_ms, upstream_ms=final_ms).by is by

    def seal(
        self,
        user: str,
        timed: TimedRequest,
        broker_id: int | None,
        reply: bytearray,
        *,
        kind: Kind,
        now_ms: int,
    ) -> int:
        """Raise throttle_time_ms of the reply for which `answered` was called, and record the wait.

        Args:
            user: the principal's name.
            timed: the request.
            broker_id: the broker it went to.
            reply: the frame, or its head if that contains the field.
            kind: see `quotas.trackers`.
            now_ms: the time.

        Returns:
            How long the client has to wait, in ms; 0 if this quota requires no wait.
        """
        wanted_ms, self.request_ms = self.request_ms, 0
        if wanted_ms <= 0:
            return 0
        final_ms = throttle.patch(reply, timed.api, wanted_ms)
        longest = combine(self.specific_by, self.specific_ms, request_ms=wanted_ms, upstream_ms=final_ms)
        if longest.by is ThrottledBy.REQUEST:
            self.quotas.record_request_throttle(
                user,
                timed,
                broker_id,
                wanted_ms,
                kind=kind,
                address=self._address,
                now_ms=now_ms,
                row=self.row,
            )
        return final_ms
