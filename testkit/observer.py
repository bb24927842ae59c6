"""An observer that records nothing: the base of observers that record for a test."""

from __future__ import annotations

from gateway.observability.events import AuthenticationResult, CloseCause
from protocol.api_keys import ApiKey
from protocol.sasl import Mechanism
from quotas.combine import ThrottledBy
from quotas.connections import AdmissionCause
from quotas.resolution import Rule


class SilentObserver:
    """A `ConnectionObserver` and a `RequestObserver`."""

    def connection_opened(self, listener: str) -> None:
        """See the protocol."""

    def connection_closed(self, listener: str, cause: CloseCause) -> None:
        """See the protocol."""

    def accept_delayed(self, listener: str, cause: AdmissionCause, wait_ms: int) -> None:
        """See the protocol."""

    def accept_blocked(self, listener: str, blocked_ms: int) -> None:
        """See the protocol."""

    def connection_held(self, listener: str, hold_ms: int) -> None:
        """See the protocol."""

    def connection_would_be_held(self, listener: str, hold_ms: int) -> None:
        """See the protocol."""

    def connection_refused(self, listener: str, cause: AdmissionCause) -> None:
        """See the protocol."""

    def accept_failed(self, listener: str) -> None:
        """See the protocol."""

    def mutations_decided(
        self, api_key: ApiKey, rule: Rule, *, accepted_permits: float, refused_topics: int
    ) -> None:
        """See the protocol."""

    def throttled(
        self, api_key: ApiKey, rule: Rule, throttle_time_ms: int, *, by: ThrottledBy, again: bool = False
    ) -> None:
        """See the protocol."""

    def authenticated(self, listener: str, mechanism: Mechanism, result: AuthenticationResult) -> None:
        """See the protocol."""

    def topics_auto_created(self, count: int) -> None:
        """See the protocol."""
