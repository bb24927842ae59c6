"""What happened, as calls. Metrics and usage records listen; nothing here knows who does.

Calls come from the data path: they must be cheap and must not raise.
"""

from __future__ import annotations

from typing import Protocol

from gateway.auth.authentication import Result
from gateway.observability.close_cause import CloseCause
from protocol.api_keys import ApiKey
from protocol.sasl import Mechanism
from quotas.combine import ThrottledBy
from quotas.connections import AdmissionCause
from quotas.resolution import Rule


class Observer(Protocol):
    """Everything that is told about the data path."""

    def connection_opened(self, listener: str) -> None:
        """A client connection was let in."""

    def connection_closed(self, listener: str, cause: CloseCause) -> None:
        """A client connection that was let in has ended; exactly one call for each opened one."""

    def accept_delayed(self, listener: str, cause: AdmissionCause, wait_ms: int) -> None:
        """The listener accepts nobody for so long (KIP-612); 0: until a slot is free."""

    def accept_blocked(self, listener: str, blocked_ms: int) -> None:
        """The listener accepted nobody for so long; Kafka's AcceptorBlockedPercent."""

    def connection_held(self, listener: str, hold_ms: int) -> None:
        """A socket is kept unread: its address connects too often (KIP-612)."""

    def connection_would_be_held(self, listener: str, hold_ms: int) -> None:
        """A connection was let in that would be held if the rate of its address were not only observed."""

    def connection_refused(self, listener: str, cause: AdmissionCause) -> None:
        """A socket was closed that was never let in."""

    def accept_failed(self, listener: str) -> None:
        """The system had no descriptor or no memory for a connection; accepting is tried again soon."""

    def mutations_decided(
        self, api_key: ApiKey, rule: Rule, *, accepted_permits: float, refused_topics: int
    ) -> None:
        """The topics of one request were charged or refused (KIP-599)."""

    def throttled(self, api_key: ApiKey, rule: Rule, throttle_time_ms: int, *, by: ThrottledBy) -> None:
        """A request made its client wait."""

    def authenticated(self, listener: str, mechanism: Mechanism, result: Result) -> None:
        """A SASL exchange has ended, as the broker said."""

    def topics_auto_created(self, count: int) -> None:
        """Topics that Metadata will create were charged to the client that named them."""


class SilentObserver:
    """Listens to nothing; for tests and tools."""

    def connection_opened(self, listener: str) -> None:
        """See `Observer`."""

    def connection_closed(self, listener: str, cause: CloseCause) -> None:
        """See `Observer`."""

    def accept_delayed(self, listener: str, cause: AdmissionCause, wait_ms: int) -> None:
        """See `Observer`."""

    def accept_blocked(self, listener: str, blocked_ms: int) -> None:
        """See `Observer`."""

    def connection_held(self, listener: str, hold_ms: int) -> None:
        """See `Observer`."""

    def connection_would_be_held(self, listener: str, hold_ms: int) -> None:
        """See `Observer`."""

    def connection_refused(self, listener: str, cause: AdmissionCause) -> None:
        """See `Observer`."""

    def accept_failed(self, listener: str) -> None:
        """See `Observer`."""

    def mutations_decided(
        self, api_key: ApiKey, rule: Rule, *, accepted_permits: float, refused_topics: int
    ) -> None:
        """See `Observer`."""

    def throttled(self, api_key: ApiKey, rule: Rule, throttle_time_ms: int, *, by: ThrottledBy) -> None:
        """See `Observer`."""

    def authenticated(self, listener: str, mechanism: Mechanism, result: Result) -> None:
        """See `Observer`."""

    def topics_auto_created(self, count: int) -> None:
        """See `Observer`."""
