"""Why a client connection ended: a closed list, the label of the close metric."""

from __future__ import annotations

from enum import StrEnum


class CloseCause(StrEnum):
    """One cause per ended connection; `active = opened - sum(closed by cause)` holds at any time."""

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
    EVICTED = "evicted"
    AUTHENTICATION_FAILED = "authentication_failed"
    UNAUTHENTICATED = "unauthenticated"
    ILLEGAL_SASL_STATE = "illegal_sasl_state"
    MALFORMED_FRAME = "malformed_frame"
    INVALID_FRAME_SIZE = "invalid_frame_size"
    FRAME_TOO_LARGE = "frame_too_large"
    TOO_MANY_ELEMENTS = "too_many_elements"
    TLS_FAILED = "tls_failed"
    TLS_ON_PLAINTEXT = "tls_on_plaintext"
    NOT_KAFKA = "not_kafka"
    UNSUPPORTED_REQUEST = "unsupported_request"
    DRAINED = "drained"
    DRAIN_TIMEOUT = "drain_timeout"
    INTERNAL_ERROR = "internal_error"
