"""The errors of a peer on the wire. Each closes the connection that it came from."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer's bytes cannot be trusted any more: the gateway counts it, logs one line and closes the channel.

    Attributes:
        cause: a word of a closed list, used as the label of the close-cause metric.
    """

    cause = "protocol_error"


class Truncated(ProtocolError):
    """A field reaches past the end of its frame."""

    cause = "malformed_frame"


class MalformedBody(ProtocolError):
    """A whole frame whose body does not follow its API's layout."""

    cause = "malformed_frame"


class TooManyElements(MalformedBody):
    """An array above the bound; the peer may try to exhaust memory."""

    cause = "too_many_elements"


class FrameTooLarge(ProtocolError):
    """The announced size is above the limit for this API or listener."""

    cause = "frame_too_large"


class InvalidFrameSize(ProtocolError):
    """The announced size is negative or too small to hold a header."""

    cause = "invalid_frame_size"


class TlsOnPlaintext(ProtocolError):
    """The first bytes are a TLS record; the client wants TLS on a plaintext listener."""

    cause = "tls_on_plaintext"


class NotKafka(ProtocolError):
    """The first bytes belong to another protocol (HTTP, SSH, PROXY, ...)."""

    cause = "not_kafka"


class Misrouted(ProtocolError):
    """A client that named another node or cluster than the one behind its connection (KIP-1242)."""

    cause = "misrouted"


class UnsupportedRequest(ProtocolError):
    """An api key or version that is not offered here; the gateway closes the connection, as Kafka does."""

    cause = "unsupported_request"


class UpstreamDesync(ProtocolError):
    """The broker's responses do not match the requests: the gateway closes both connections and never guesses."""

    cause = "upstream_desync"
