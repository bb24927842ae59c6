"""TLS between a socket's transport and the protocol that uses it, with `ssl` of the standard library.

For the socket's transport this is a protocol, for the channel a transport like any other. It buffers no bytes:
written bytes are encrypted and passed on in the same call, received bytes are decrypted and delivered in the same
call. So back pressure, deadlines and the number of unsent bytes mean the same with TLS and without. uvloop's own TLS
is not used: it has its own buffers and deadlines, and does not support half-closed peers
(docs/decisions/0008-identity.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, Final, Protocol, cast

from gateway.observability.events import TlsFailure
from gateway.runtime.lateness import LATE_MS
from gateway.tls.handshake_steps import HandshakeSteps
from gateway.tls.records import (
    FULL_BYTES,
    RECORD_BYTES,
    SLICE_BYTES,
    Hello,
    HelloWalk,
    ReceiveBuffer,
    RecordWalk,
)

_ALERT_BYTES: Final = 256
_LONGEST_HANDSHAKE_BYTES: Final = 256 * 1024
_LONGEST_BARREN_BYTES: Final = 65_536  # received in a row without any plain byte (hazard H23)
_MOST_BARREN: Final = 128  # records without data, beyond one for each KiB received
_TINY_RECORD_BYTES: Final = 128
_BITE_BYTES: Final = 2_048
_UNFINISHED: Final = ssl.SSLWantReadError()
_FATAL: Final = bytes.fromhex(
    "15 0303 0002 02"
)  # an alert without its last byte, in the form for before a handshake


# OpenSSL's numbers of X509_V_ERR_*.
_VERIFY: Final = {
    9: TlsFailure.CERTIFICATE_EXPIRED,
    10: TlsFailure.CERTIFICATE_EXPIRED,
    23: TlsFailure.CERTIFICATE_REVOKED,
    26: TlsFailure.CERTIFICATE_PURPOSE,
    62: TlsFailure.CERTIFICATE_HOST,
    64: TlsFailure.CERTIFICATE_HOST,
}

_REASONS: Final = {
    "HTTP_REQUEST": TlsFailure.NOT_TLS,
    "HTTPS_PROXY_REQUEST": TlsFailure.NOT_TLS,
    "WRONG_VERSION_NUMBER": TlsFailure.NOT_TLS,
    "UNKNOWN_PROTOCOL": TlsFailure.NOT_TLS,
    "UNSUPPORTED_PROTOCOL": TlsFailure.PROTOCOL_VERSION,
    "VERSION_TOO_LOW": TlsFailure.PROTOCOL_VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": TlsFailure.PROTOCOL_VERSION,
    "NO_SHARED_CIPHER": TlsFailure.NO_SHARED_CIPHER,
    "NO_SUITABLE_SIGNATURE_ALGORITHM": TlsFailure.NO_SHARED_CIPHER,
    "NO_SUITABLE_KEY_SHARE": TlsFailure.NO_SHARED_CIPHER,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": TlsFailure.NO_CERTIFICATE,
}


def _reason_of(error: ssl.SSLError) -> str:
    """OpenSSL's name of an error. It may be None despite the type's stub, and compiled code does not accept None."""
    return cast("Any", error).reason or ""


def failure_of(error: ssl.SSLError) -> TlsFailure:
    """The `TlsFailure` of an error of the `ssl` module."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY.get(error.verify_code, TlsFailure.CERTIFICATE_UNTRUSTED)
    if isinstance(error, ssl.SSLEOFError):
        return TlsFailure.CLOSED
    reason = _reason_of(error)
    known = _REASONS.get(reason)
    if known is not None:
        return known
    return TlsFailure.REJECTED_BY_PEER if "ALERT" in reason else TlsFailure.PROTOCOL


class HandshakeRefused(Exception):
    """The handshake is complete, but the peer is refused.

    Attributes:
        failure: for the metric.
        detail: for the log.
    """

    def __init__(self, failure: TlsFailure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.detail = detail


class StreamProtocol(Protocol):
    """The methods of `asyncio.Protocol` that a transport calls, without its base class.

    uvloop's own transports do not need `eof_received`; this one does.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class TlsUser(Protocol):
    """The owner of a transport. Exactly one of `secured` and `failed` is called, once."""

    def hello(self, transport: TlsTransport, hello: bytes) -> None:
        """Handle a client's complete hello: call `refuse`, or `proceed` at once or later."""

    def secured(self, transport: TlsTransport) -> StreamProtocol:
        """Handle the end of the handshake. Returns the protocol that gets the bytes, or raises `HandshakeRefused`."""

    def failed(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """Handle a failed handshake; the socket is closed."""

    def broken(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """Handle a TLS error after the handshake. In TLS 1.3 this may be the refusal of a client's certificate."""


class _State(Enum):
    SILENT = auto()  # the hello is not complete yet
    WAITING = auto()  # the hello is complete, and the handshake may not begin yet
    SHAKING_HANDS = auto()
    OPEN = auto()
    OVER = auto()  # the handshake has failed


class TlsTransport:
    """One connection with TLS: a protocol to its socket (`asyncio.BufferedProtocol`), a transport to its user.

    It has no base classes of asyncio, which uvloop does not need. So it can be compiled, and has no dictionary.
    """

    __slots__ = (
        "_answered",
        "_barren_bytes",
        "_barren_records",
        "_bites",
        "_buffer",
        "_closing",
        "_deadline",
        "_deadline_s",
        "_decrypt",
        "_deliver",
        "_due",
        "_ended",
        "_fin",
        "_handshake_bytes",
        "_held",
        "_hello",
        "_hello_walk",
        "_incoming",
        "_late",
        "_loop",
        "_outcome",
        "_outgoing",
        "_owner",
        "_paused",
        "_records",
        "_socket",
        "_state",
        "_steps",
        "_timeout_s",
        "_tls",
        "_user",
        "_view",
    )

    def __init__(
        self,
        context: ssl.SSLContext,
        owner: TlsUser,
        *,
        loop: asyncio.AbstractEventLoop,
        buffer: ReceiveBuffer,
        steps: HandshakeSteps,
        timeout_ms: int | None,
        server_name: str | None = None,
    ) -> None:
        """Create a transport; `connection_made` begins its work.

        Args:
            context: of a server, or of a client.
            owner: decides when the handshake begins, and which protocol uses the connection.
            loop: provides the timer.
            buffer, steps: of this loop.
            timeout_ms: for the whole handshake and the wait for the rate limiter; None: the caller has a deadline.
            server_name: the server's name, expected by this client; None: this is a server.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._decrypt: Any = self._tls.read  # can read into a buffer, which the type's stub lacks
        self._owner = owner
        self._loop, self._steps = loop, steps
        self._buffer, self._view = buffer, buffer.hello
        self._socket: asyncio.Transport | None = None
        self._user: StreamProtocol | None = None
        self._deliver: Any = None
        self._state = _State.SILENT
        self._paused = self._ended = self._closing = self._due = self._held = self._fin = False
        self._answered = False  # a server has sent its certificate, a client its hello
        self._barren_bytes = self._barren_records = self._handshake_bytes = 0
        self._late = b""  # received while a step was due, or left of many tiny records
        self._outcome: ssl.SSLError | None = _UNFINISHED
        self._records = RecordWalk()
        self._bites: RecordWalk | None = None  # the walk through a chunk of tiny records
        self._hello = b""
        self._hello_walk = HelloWalk() if server_name is None else None  # until the hello is complete
        self._deadline_s = math.inf if timeout_ms is None else loop.time() + timeout_ms / 1000
        self._deadline: asyncio.TimerHandle | None = None
        self._timeout_s = math.inf if timeout_ms is None else timeout_ms / 1000
        if timeout_ms is not None:
            self._deadline = loop.call_later(self._timeout_s, self._timed_out)

    # -- a protocol, to the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the socket's transport. A client sends its hello first."""
        self._socket = cast("asyncio.Transport", transport)
        if self._state is _State.OVER:
            self._socket.abort()
        elif not self._tls.server_side:
            self.proceed()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next read, which is small before the handshake is done."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt and deliver the bytes that were read, or continue the handshake with them."""
        if self._closing or self._ended:
            return
        received = self._view[:nbytes]
        records = self._records.count(received)
        if self._deliver is not None:
            if self._late:
                self._late += received
            elif records > nbytes // _TINY_RECORD_BYTES + 2:
                self._bites = RecordWalk(self._records.first)
                self._take_in_bites(received)
            else:
                self._barren_records += records
                self._incoming.write(received)
                if not self._paused:
                    self._read(nbytes)
            return
        self._handshake_bytes += nbytes
        if self._state is _State.SILENT:
            self._take_hello(received)
        else:
            if self._due:
                self._late += received
            else:
                self._incoming.write(received)
            if self._handshake_bytes > _LONGEST_HANDSHAKE_BYTES:
                self._give_up(TlsFailure.PROTOCOL)
            elif self._state is _State.SHAKING_HANDS and not self._due:
                self._submit()
        if self._socket is not None and (self._late or self._state is _State.WAITING):
            self._held = True  # until then further bytes stay in the kernel
            self._socket.pause_reading()

    def eof_received(self) -> bool:
        """Handle a FIN, also one without TLS's close_notify: Kafka's frames have their own lengths."""
        if self._state is _State.OPEN and self._incoming.pending and not self._paused and not self._ended:
            self._read(0)
        waits = self._paused or self._late
        if self._due or (waits and not self._closing):  # it follows bytes that are not handled yet
            self._fin = True
            return True
        if self._state is not _State.OPEN:
            self._give_up(TlsFailure.CLOSED)
            return False
        return self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection after its socket has closed."""
        self._socket, self._closing = None, True
        if self._state is _State.OPEN and self._user is not None:
            self._user.connection_lost(exc)
        self._give_up(TlsFailure.CLOSED)

    def pause_writing(self) -> None:
        """Pass on back pressure: the peer reads too slowly."""
        if self._user is not None:
            self._user.pause_writing()

    def resume_writing(self) -> None:
        """Pass on the end of back pressure."""
        if self._user is not None:
            self._user.resume_writing()

    # -- handshake -------------------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """The time left for the handshake."""
        return self._deadline_s - self._loop.time()

    def _timed_out(self) -> None:
        now_s = self._loop.time()
        if (now_s - self._deadline_s) * 1000 >= LATE_MS:
            self._deadline_s = now_s + self._timeout_s
            self._deadline = self._loop.call_later(self._timeout_s, self._timed_out)
        else:
            self._give_up(TlsFailure.TIMEOUT)

    def _take_hello(self, received: memoryview) -> None:
        walk = self._hello_walk
        assert walk is not None
        self._hello += received
        hello = walk.look(self._hello)
        if hello is Hello.WHOLE:
            whole, self._hello, self._hello_walk = self._hello, b"", None
            self._incoming.write(whole)
            self._state = _State.WAITING
            self._owner.hello(self, whole)
        elif hello is not Hello.PART:
            self._hello = b""
            self._give_up(TlsFailure.NOT_TLS if hello is Hello.NOT_TLS else TlsFailure.PROTOCOL)

    def use(self, context: ssl.SSLContext) -> None:
        """Use the context of another certificate. Call it before `proceed`."""
        if self._tls.context is not context:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._decrypt = self._tls.read

    def proceed(self) -> None:
        """Begin the handshake; see `TlsUser.hello`."""
        if self._state in (_State.SILENT, _State.WAITING):
            self._state = _State.SHAKING_HANDS
            self._submit()

    def _submit(self) -> None:
        self._due = True
        # Long: a server's first flight, which has the signature; a client's steps after its hello, which verify it.
        self._steps.submit(self, long=self._answered is not self._tls.server_side)

    def compute(self) -> None:
        """See `Step`. It may run in a thread, so until `conclude` no other code may use OpenSSL's objects."""
        if self._state is _State.SHAKING_HANDS:
            try:
                self._tls.do_handshake()
            except ssl.SSLError as exc:
                self._outcome = exc
            else:
                self._outcome = None

    def conclude(self) -> None:
        """See `Step`."""
        self._due = False
        # Not kept: an exception refers to its frames, and they refer to this object.
        outcome, self._outcome = self._outcome, _UNFINISHED
        if self._state is not _State.SHAKING_HANDS:
            return
        if self._outgoing.pending > (_ALERT_BYTES if self._tls.server_side else 0):
            self._answered = True
        self._flush()  # also an alert that reports the error to the peer
        if self._late:
            self._incoming.write(self._late)
        if outcome is None:
            self._open()
        elif not isinstance(outcome, ssl.SSLWantReadError):
            self._give_up(failure_of(outcome), detail=_reason_of(outcome))
        elif self._late:
            self._submit()
        self._late = b""
        if self._held and self._socket is not None and not self._paused:
            self._socket.resume_reading()
        self._held = False
        if self._fin:
            self.eof_received()

    def _open(self) -> None:
        try:
            user = self._owner.secured(self)
        except HandshakeRefused as exc:
            self._give_up(exc.failure, detail=exc.detail)
            return
        if self._state is not _State.SHAKING_HANDS:
            return
        self._state = _State.OPEN
        self._view = self._buffer.whole
        self._stop_deadline()
        self._user, self._deliver = user, user.data_received
        user.connection_made(cast("asyncio.BaseTransport", self))
        if self._incoming.pending and not self._paused and not self._closing:
            self._read(0)

    def refuse(self, failure: TlsFailure, detail: str = "", *, alert: int | None = None) -> None:
        """End the connection before the handshake, without cryptography.

        Args:
            failure: see `TlsUser.failed`.
            detail: for the log.
            alert: number of the alert for the client; None: no alert.
        """
        if alert is not None and self._socket is not None:
            self._socket.write(_FATAL + bytes((alert,)))
        self._give_up(failure, detail)

    def _give_up(self, failure: TlsFailure, detail: str = "") -> None:
        if self._state in (_State.OVER, _State.OPEN):
            return
        self._state = _State.OVER
        self._ended = True
        self._stop_deadline()
        if self._socket is not None:
            if failure in (TlsFailure.TIMEOUT, TlsFailure.OVERLOADED):
                self._socket.abort()
            else:
                self._socket.close()
        self._owner.failed(self, failure, detail)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- receiving -------------------------------------------------------------------------------------------

    def _read(self, received_bytes: int) -> None:
        read, incoming, plain = self._decrypt, self._incoming, self._buffer.plain
        size, records, count = 0, 0, 1
        broken: ssl.SSLError | None = None
        try:
            while count and size <= FULL_BYTES:
                # The buffer always has space for a whole record.
                count = read(RECORD_BYTES, plain[size:] if size else plain)
                size += count
                records += 1
                if not incoming.pending:
                    break
            else:
                if count:
                    self._loop.call_soon(self._read_on)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as exc:
            broken = exc
        if self._outgoing.pending:
            self._flush()  # an answer to a key update, or an alert that reports the error to the peer
        # The allowance grows with the received bytes, so that a little data between key updates does not hide them.
        barren = self._barren_records - records - (received_bytes >> 10)
        self._barren_records = barren if barren > 0 else 0
        self._barren_bytes = 0 if size else self._barren_bytes + received_bytes
        if size:
            self._deliver(bytes(plain[:size]))
        if (barren > _MOST_BARREN and not incoming.pending) or self._barren_bytes > _LONGEST_BARREN_BYTES:
            self.abort()
        if broken is not None:
            self._closing = True
            if self._socket is not None:
                self._socket.close() if self.get_write_buffer_size() <= _ALERT_BYTES else self._socket.abort()
            self._owner.broken(self, failure_of(broken), _reason_of(broken))
        elif not count:
            self._end()

    def _take_in_bites(self, received: memoryview) -> None:
        bites = self._bites
        assert bites is not None
        for at in range(0, len(received), _BITE_BYTES):
            if self._paused:  # kept outside OpenSSL, which would handle all key updates at once
                self._late = bytes(received[at:])
                return
            bite = received[at : at + _BITE_BYTES]
            self._barren_records += bites.count(bite)
            self._incoming.write(bite)
            self._read(len(bite))
            if self._closing or self._ended:
                return

    def _read_on(self) -> None:
        if self._late and not self._paused and not self._ended and not self._closing:
            late, self._late = self._late, b""
            self._take_in_bites(memoryview(late))
        if self._fin and not self._closing:
            self.eof_received()
        elif self._incoming.pending and not self._paused and not self._ended and not self._closing:
            self._read(0)

    def _end(self) -> bool:
        """End the peer's side, after close_notify or FIN. Outstanding replies can still be sent."""
        if not self._ended:
            self._ended = True
            assert self._user is not None
            if not self._user.eof_received():
                self.close()
        return not self._closing

    # -- a transport, to the user ----------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._closing or self._socket is None:
            return
        tls, outgoing = self._tls, self._outgoing
        try:
            if len(data) <= SLICE_BYTES:
                tls.write(data)
                self._socket.write(outgoing.read())
                return
            view = memoryview(data)
            for at in range(0, len(view), SLICE_BYTES):
                tls.write(view[at : at + SLICE_BYTES])
                self._socket.write(outgoing.read())
        except ssl.SSLError:  # after the peer has closed its side, TLS may allow no further writes
            self.abort()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send all of them, in as few records as possible."""
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def close(self) -> None:
        """Send close_notify, and close once all bytes have left, without waiting for the peer's close_notify."""
        if self._closing:
            return
        self._closing = True
        if self._state is not _State.OPEN:
            self._give_up(TlsFailure.CLOSED)
            return
        with contextlib.suppress(ssl.SSLError):  # raised instead of waiting for the peer's close_notify
            self._tls.unwrap()
        self._flush()
        if self._socket is not None:
            self._socket.close()

    def write_eof(self) -> None:
        """Send close_notify and no more bytes. Received bytes are dropped from now on, until the peer closes."""
        if self._closing or self._state is not _State.OPEN:
            self.close()
            return
        self._closing = True
        with contextlib.suppress(ssl.SSLError):  # raised instead of waiting for the peer's close_notify
            self._tls.unwrap()
        self._flush()
        if self._socket is not None:
            self._socket.write_eof()

    def can_write_eof(self) -> bool:
        """Whether `write_eof` is supported: always."""
        return True

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that gets the decrypted bytes."""
        return cast("asyncio.BaseProtocol", self._user)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Deliver to another protocol from now on."""
        self._user = user = cast("StreamProtocol", protocol)
        self._deliver = user.data_received

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._give_up(TlsFailure.CLOSED)
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        """Whether no more bytes can be written."""
        return self._closing or self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        """Stop delivering. At most one slice has been received already."""
        self._paused = True
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again."""
        self._paused = False
        if self._socket is not None and not self._ended:
            if not self._fin:
                self._socket.resume_reading()
            if self._incoming.pending or self._fin or self._late:
                # In the next turn, since the caller may be in the middle of an operation.
                self._loop.call_soon(self._read_on)

    def get_write_buffer_size(self) -> int:
        """Number of encrypted bytes that have not left."""
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The extra information of the socket's transport, and `ssl_object`."""
        if name == "ssl_object":
            return self._tls
        return default if self._socket is None else self._socket.get_extra_info(name, default)
