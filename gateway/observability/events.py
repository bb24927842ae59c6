"""Observable events as method calls, and the fixed lists that are labels of metrics.

The lists are here so that metrics need not import the packages that count with them. The data path calls observers,
so they must be cheap and must not raise. Metrics implement both protocols. Callers know only the protocols.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from protocol.api_keys import ApiKey
from protocol.sasl import Mechanism
from quotas.combine import ThrottledBy
from quotas.connections import AdmissionCause
from quotas.resolution import Rule


class CloseCause(StrEnum):
    """Why a client connection ended: one cause each; `active = opened - sum(closed by cause)` holds at any time."""

    CLIENT_CLOSED = "client_closed"
    CLIENT_UNREACHABLE = "client_unreachable"
    UPSTREAM_CLOSED = "upstream_closed"
    UPSTREAM_REFUSED = "upstream_refused"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_STALLED = "upstream_stalled"
    UPSTREAM_TLS = "upstream_tls"
    UPSTREAM_DESYNC = "upstream_desync"
    UPSTREAM_MALFORMED = "upstream_malformed"
    UNKNOWN_BROKER = "unknown_broker"
    FIRST_FRAME_TIMEOUT = "first_frame_timeout"
    FRAME_TIMEOUT = "frame_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    WRITE_TIMEOUT = "write_timeout"
    MEMORY_FULL = "memory_full"
    EVICTED = "evicted"
    AUTHENTICATION_FAILED = "authentication_failed"
    UNAUTHENTICATED = "unauthenticated"
    USER_CONNECTION_RATE = "user_connection_rate"
    USER_CONNECTION_COUNT = "user_connection_count"
    ILLEGAL_SASL_STATE = "illegal_sasl_state"
    MALFORMED_FRAME = "malformed_frame"
    INVALID_FRAME_SIZE = "invalid_frame_size"
    FRAME_TOO_LARGE = "frame_too_large"
    TOO_MANY_ELEMENTS = "too_many_elements"
    TLS_FAILED = "tls_failed"
    WRONG_SERVER_NAME = "wrong_server_name"
    TLS_ON_PLAINTEXT = "tls_on_plaintext"
    NOT_KAFKA = "not_kafka"
    UNSUPPORTED_REQUEST = "unsupported_request"
    MISROUTED = "misrouted"
    DRAINED = "drained"
    DRAIN_TIMEOUT = "drain_timeout"
    INTERNAL_ERROR = "internal_error"
    WORKER_LOST = "worker_lost"  # its worker was killed; counted by the supervisor


class AuthenticationResult(StrEnum):
    """How a SASL exchange ended."""

    SUCCESS = "success"
    REAUTHENTICATED = "reauthenticated"
    FAILED = "failed"


class TlsFailure(StrEnum):
    """Why a handshake failed."""

    TIMEOUT = "timeout"  # silent, or too slow
    CLOSED = "closed"  # closed by the peer, or by a drain of the gateway
    NOT_TLS = "not_tls"  # Kafka's own frames, HTTP, SSLv2, junk
    PROTOCOL_VERSION = "protocol_version"
    NO_SHARED_CIPHER = "no_shared_cipher"
    NO_CERTIFICATE = "no_certificate"  # the peer sent none, and one is required
    CERTIFICATE_EXPIRED = "certificate_expired"  # or not valid yet
    CERTIFICATE_REVOKED = "certificate_revoked"
    CERTIFICATE_PURPOSE = "certificate_purpose"  # not made for this side (extended key usage)
    CERTIFICATE_HOST = "certificate_host"  # the certificate is for another host
    CERTIFICATE_UNTRUSTED = (
        "certificate_untrusted"  # not signed by a trusted authority, or otherwise not valid
    )
    NO_PRINCIPAL = "no_principal"  # no mapping rule fits the certificate's name
    REJECTED_BY_PEER = "rejected_by_peer"  # the peer sent an alert
    OVERLOADED = "overloaded"  # too many handshakes wait already
    NO_SERVER_NAME = "no_server_name"  # the hello had none, and the listener finds brokers by name
    WRONG_SERVER_NAME = "wrong_server_name"  # the name does not belong to this listener
    UNKNOWN_BROKER = "unknown_broker"  # the name of a node that the cluster does not have
    PROTOCOL = "protocol"  # anything else


class Side(StrEnum):
    """The peer on one side of the gateway."""

    CLIENT = "client"
    UPSTREAM = "upstream"


class AdminOutcome(StrEnum):
    """The outcome of a request about quotas."""

    DONE = "done"
    INVALID = "invalid"  # for at least one entity
    REFUSED = "refused"
    FAILED = "failed"


class AdminRefusal(StrEnum):
    """Why the admin port refused a request."""

    HOST = "host"  # the Host header is not a name of this gateway
    REMOTE = "remote"  # a change from another machine, and there are no keys
    NO_KEY = "no_key"
    TOKEN = "token"  # no key has this token
    CERTIFICATE = "certificate"  # verified, but no key names it
    MALFORMED = "malformed"  # two headers, no token, or another scheme
    ROLE = "role"  # the key is valid and may not do this


class AdminApi(StrEnum):
    """The API of a request about quotas."""

    DESCRIBE_QUOTAS = "describe_client_quotas"
    ALTER_QUOTAS = "alter_client_quotas"
    ALTER_LIMITS = "incremental_alter_configs"


class ReloadResult(StrEnum):
    """The outcome of reloading the configuration file."""

    APPLIED = "applied"  # all differences are in force
    NEEDS_RESTART = "needs_restart"  # some differences are in force, the others need a restart
    INVALID = "invalid"  # nothing has changed
    NO_FILE = "no_file"  # the gateway was started without a file, so there is no fault


class ConnectionObserver(Protocol):
    """Events of listeners: connections that were admitted, delayed, throttled, refused or ended."""

    def connection_opened(self, listener: str) -> None:
        """A client connection was admitted."""

    def connection_closed(self, listener: str, cause: CloseCause) -> None:
        """An admitted client connection has ended; there is exactly one call for each opened connection."""

    def accept_delayed(self, listener: str, cause: AdmissionCause, wait_ms: int) -> None:
        """The listener will accept no connection for this time (KIP-612); 0: until a slot is free."""

    def accept_blocked(self, listener: str, blocked_ms: int) -> None:
        """The listener accepted no connection for this time; Kafka's AcceptorBlockedPercent."""

    def connection_held(self, listener: str, hold_ms: int) -> None:
        """A socket is kept unread, because its address connects too often (KIP-612)."""

    def connection_would_be_held(self, listener: str, hold_ms: int) -> None:
        """A connection was admitted that would be throttled if the rate of its address were enforced."""

    def connection_refused(self, listener: str, cause: AdmissionCause) -> None:
        """A socket was closed that was never admitted."""

    def accept_failed(self, listener: str) -> None:
        """The system had no descriptor or no memory for a connection; accepting is tried again soon."""


class RequestObserver(Protocol):
    """Events of sessions and handlers: decisions of quotas and brokers about requests."""

    def mutations_decided(
        self, api_key: ApiKey, rule: Rule, *, accepted_permits: float, refused_topics: int
    ) -> None:
        """The topics of one request were charged or refused (KIP-599)."""

    def throttled(
        self, api_key: ApiKey, rule: Rule, throttle_time_ms: int, *, by: ThrottledBy, again: bool = False
    ) -> None:
        """A request made its client wait; `again`: more time of a request that was reported before."""

    def authenticated(self, listener: str, mechanism: Mechanism, result: AuthenticationResult) -> None:
        """A SASL exchange has ended with the broker's result."""

    def topics_auto_created(self, count: int) -> None:
        """Topics that Metadata will create were charged to the client that named them."""
