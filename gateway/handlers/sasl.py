"""SaslHandshake and SaslAuthenticate: relayed one at a time, and read to learn the user.

The client is not read between its message and the broker's reply, so no request that it sends ahead is handled with
the wrong identity. Frames are forwarded unchanged and not kept; the gateway keeps only the user name. After a failure
the reply and the close come together, after the delay of KIP-306 counted from the client's message.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.auth.authentication import Authentication, Progress, Unauthenticated
from gateway.observability.events import AuthenticationResult, CloseCause, RequestObserver
from gateway.session.mute import MuteReason
from gateway.session.response_queue import CollectedAnswer, OnReply
from gateway.session.routes import MAX_SASL_BYTES, HeadDecision, RequestHandler, RequestHead, Route, Session
from protocol import codec, sasl
from protocol.api_keys import Api, ApiKey
from protocol.error_codes import ErrorCode
from protocol.headers import correlation_id_of
from protocol.primitives import read_int16

_ERROR_AT: Final = 8
"""Offset of the error code in ApiVersions responses of every version."""


CLIENT_ID: Final = "sluice-confirmation"

LOGIN: Final = "login"
"""The name of these traces."""


class _SaslHandler:
    """The common part of the handlers for handshakes and tokens."""

    max_request_bytes = MAX_SASL_BYTES

    def __init__(self, observer: RequestObserver) -> None:
        self._observer = observer

    @staticmethod
    def _ask(session: Session, frame: bytes, api: Api, on_reply: OnReply, *, phase: str, now_ms: int) -> None:
        session.mute(MuteReason.AWAITING_REPLY)
        if (trace := _exchange(session).trace) is not None:
            trace.phase(phase, now_ms=now_ms)
        session.forward(frame, api, CollectedAnswer(on_reply))

    def _go_on(
        self, session: Session, progress: Progress, asked_ms: int, frame: bytes, now_ms: int
    ) -> bytes | None:
        trace = _exchange(session).trace
        if trace is not None:
            trace.phase(None, now_ms=now_ms)
        if progress is not Progress.FAILED:
            session.release(MuteReason.AWAITING_REPLY)
            return frame
        if trace is not None:
            trace.end("the broker refused it", now_ms=now_ms)
        self._observer.authenticated(
            session.listener, _exchange(session).mechanism, AuthenticationResult.FAILED
        )
        delay_ms = max(0, asked_ms + session.failed_authentication_delay_ms - now_ms)
        session.fail_later(frame, CloseCause.AUTHENTICATION_FAILED, delay_ms, now_ms=now_ms)
        return None


class HandshakeHandler(_SaslHandler):
    """SaslHandshake: selects the mechanism."""

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        if route.api.version == 0:
            _exchange(session).refuse_old()
            session.answer(sasl.handshake_v0_refusal(correlation_id_of(frame)), now_ms=now_ms)
            return
        exchange = _exchange(session)
        exchange.begin(sasl.read_mechanism(frame, route.api))
        exchange.trace = session.begin_trace(LOGIN, now_ms=now_ms)
        if exchange.trace is not None:
            exchange.trace.attributes["sluice.mechanism"] = exchange.mechanism.value
        on_reply = partial(self._on_reply, session, now_ms)
        self._ask(session, frame, route.api, on_reply, phase="handshake", now_ms=now_ms)

    def _on_reply(self, session: Session, asked_ms: int, frame: bytes, now_ms: int) -> bytes | None:
        progress = _exchange(session).handshake_answered(sasl.read_handshake_error(frame))
        return self._go_on(session, progress, asked_ms, frame, now_ms)


class AuthenticateHandler(_SaslHandler):
    """SaslAuthenticate: a message of the mechanism."""

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        exchange = _exchange(session)
        if not exchange.takes_tokens():
            session.forward(frame, route.api)  # the broker answers ILLEGAL_SASL_STATE
            return
        exchange.send(sasl.read_auth_bytes(frame, route.api))
        on_reply = partial(self._on_reply, session, route.api, now_ms)
        self._ask(session, frame, route.api, on_reply, phase="authenticate", now_ms=now_ms)

    def _on_reply(self, session: Session, api: Api, asked_ms: int, frame: bytes, now_ms: int) -> bytes | None:
        exchange = _exchange(session)
        known = exchange.principal is not None
        progress = exchange.answered(sasl.read_authenticate_reply(frame, api))
        if progress is Progress.SUCCEEDED:
            session.authenticated(now_ms=now_ms)
            result = AuthenticationResult.REAUTHENTICATED if known else AuthenticationResult.SUCCESS
            self._observer.authenticated(session.listener, exchange.mechanism, result)
            _end_trace(session, result, now_ms)
        elif progress is Progress.UNCLEAR and not known:
            session.confirm_next()
        return self._go_on(session, progress, asked_ms, frame, now_ms)


class ConfirmHandler:
    """Lets the broker confirm a login whose end the gateway cannot see, at the first request that is not SASL."""

    def __init__(self, observer: RequestObserver) -> None:
        self._observer = observer

    def on_head(
        self,
        session: Session,
        route: Route,
        head: RequestHead,
        data: bytes,
        at: int,
        *,
        now_ms: int,
    ) -> HeadDecision:
        """See `HeadHandler`."""
        session.mute(MuteReason.AWAITING_REPLY)
        question = sasl.api_versions_question(codec.OWN_CORRELATION_ID, CLIENT_ID)
        session.ask_upstream(question, codec.OWN_CORRELATION_ID, partial(self._on_reply, session))
        return HeadDecision.WAIT

    def _on_reply(self, session: Session, frame: bytes, now_ms: int) -> None:
        if read_int16(frame, _ERROR_AT)[0] != ErrorCode.NONE:
            session.refuse(Unauthenticated("a request in the middle of an exchange"))
            return
        _exchange(session).confirmed()
        session.authenticated(now_ms=now_ms)
        self._observer.authenticated(
            session.listener, _exchange(session).mechanism, AuthenticationResult.SUCCESS
        )
        _end_trace(session, AuthenticationResult.SUCCESS, now_ms)
        session.release(MuteReason.AWAITING_REPLY)


def _exchange(session: Session) -> Authentication:
    assert session.authentication is not None, "a listener without SASL has none of these handlers"
    return session.authentication


def _end_trace(session: Session, result: AuthenticationResult, now_ms: int) -> None:
    if (trace := _exchange(session).trace) is not None:
        trace.attributes["enduser.id"] = session.user
        trace.end(now_ms=now_ms, result=result.value)


def sasl_handlers(observer: RequestObserver) -> dict[ApiKey, RequestHandler]:
    """The handlers of a listener with SASL."""
    return {
        ApiKey.SASL_HANDSHAKE: HandshakeHandler(observer),
        ApiKey.SASL_AUTHENTICATE: AuthenticateHandler(observer),
    }
