"""SASL in conversations: a listener that requires it, messages of clients in an exchange, and brokers' responses."""

from __future__ import annotations

import base64
import json
from typing import Any, Final, Self

from gateway.auth.authentication import SaslRules
from gateway.handlers.sasl import ConfirmHandler
from gateway.observability.events import AuthenticationResult, CloseCause
from gateway.session.routes import build_routes, sasl_listener
from gateway.session.session import ClientSession
from protocol.sasl import Mechanism
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import GatewayCore
from testkit.observer import SilentObserver

SCRAM_FIRST: Final = b"n,,n=alice,r=cnonce"
SCRAM_CHALLENGE: Final = b"r=cnoncesnonce,s=c2FsdA==,i=4096"
SCRAM_PROOF: Final = b"c=biws,r=cnoncesnonce,p=cHJvb2Y="
SCRAM_SIGNATURE: Final = b"v=c2lnbmF0dXJl"
PLAIN_ALICE: Final = b"\0alice\0canary-secret"


def oauth(subject: str, claim: str = "sub") -> bytes:
    """An OAUTHBEARER message with a token for this subject."""
    payload = base64.urlsafe_b64encode(json.dumps({claim: subject}).encode()).rstrip(b"=").decode()
    return f"n,,\x01auth=Bearer e30.{payload}.canary-secret\x01\x01".encode()


EXCHANGES: Final[dict[str, list[tuple[bytes, bytes]]]] = {
    "PLAIN": [(PLAIN_ALICE, b"")],
    "SCRAM-SHA-256": [(SCRAM_FIRST, SCRAM_CHALLENGE), (SCRAM_PROOF, SCRAM_SIGNATURE)],
    "SCRAM-SHA-512": [(SCRAM_FIRST, SCRAM_CHALLENGE), (SCRAM_PROOF, SCRAM_SIGNATURE)],
    "OAUTHBEARER": [(oauth("alice"), b"")],
}
"""Messages of alice and responses of a broker by mechanism, round by round."""


class _Observer(SilentObserver):
    def __init__(self) -> None:
        self.authentications: list[tuple[Mechanism, AuthenticationResult]] = []

    def authenticated(self, listener: str, mechanism: Mechanism, result: AuthenticationResult) -> None:
        self.authentications.append((mechanism, result))


class SaslCore(GatewayCore):
    """A listener whose clients have to authenticate.

    Attributes:
        authentications: (mechanism, result) of the exchanges that ended.
    """

    def __init__(self, *, rules: SaslRules | None = None, **settings: Any) -> None:
        """Builds the parts.

        Args:
            rules: how principals are found.
            settings: see `GatewayCore`; `user` is the user of its quotas.
        """
        super().__init__(**{"user": "alice", **settings})
        observer = _Observer()
        self.authentications = observer.authentications
        collecting, of_heads = self.handlers(sasl=True)
        for handler in collecting.values():
            if hasattr(handler, "_observer"):
                handler._observer = observer
        self.routes = build_routes(collecting, of_heads, max_frame_bytes=self.settings.max_frame_bytes)
        self._sasl = sasl_listener(rules or SaslRules(), self.routes, ConfirmHandler(observer))

    def new_session(self) -> ClientSession:
        """The session of a client that has connected."""
        return ClientSession(
            self.routes,
            self.settings,
            listener="tests",
            peer="192.0.2.1:40000",
            quotas=self.client_quotas,
            sasl=self._sasl,
            traces=self.traces,
            users=self.users,
            now_ms=self.clock.now_ms,
        )


class SaslConversation(Conversation):
    """One client of a listener with SASL."""

    core: SaslCore

    def __init__(
        self, *, rules: SaslRules | None = None, core: SaslCore | None = None, **settings: Any
    ) -> None:
        """Begin; see `Conversation` and `SaslCore`."""
        super().__init__(core=core or SaslCore(rules=rules, **settings))
        self._correlation_id = 1_000

    @property
    def user(self) -> str:
        """The present user of the connection."""
        return self.session.user

    def shakes_hands(self, mechanism: str, *, error_code: int = 0, version: int = 1) -> Self:
        """The client requests a mechanism, and the broker answers."""
        asked, answered = handshake(mechanism, self._next(), error_code=error_code, version=version)
        self.client_sends(asked).upstream_sees(asked).upstream_answers(answered)
        if error_code == 0:
            self.client_sees(answered)
        return self

    def sends_token(self, message: bytes, *, version: int = 1) -> bytes:
        """The client sends a message of the mechanism, and the broker receives it. Returns the frame."""
        frame = token(message, self._next(), version=version)
        self.client_sends(frame).upstream_sees(frame)
        return frame

    def round(self, message: bytes, answer: bytes = b"", *, error_code: int = 0, version: int = 1) -> Self:
        """A message of the mechanism and the broker's response, which the client receives unless it is an error."""
        self.sends_token(message, version=version)
        reply = token_reply(self._correlation_id, answer, error_code=error_code, version=version)
        self.upstream_answers(reply)
        if error_code == 0:
            self.client_sees(reply)
        return self

    def authenticates(self, mechanism: str = "PLAIN", *, version: int = 1) -> Self:
        """A whole exchange of alice, which the broker accepts."""
        self.shakes_hands(mechanism)
        for message, answer in EXCHANGES[mechanism]:
            self.round(message, answer, version=version)
        return self

    def refused(self, cause: CloseCause) -> Self:
        """Checks that the connection has ended for this cause, and that the client's last bytes were not relayed."""
        self.upstream_sees().closed(cause)
        return self

    def _next(self) -> int:
        self._correlation_id += 1
        return self._correlation_id


def handshake(
    mechanism: str, correlation_id: int, *, error_code: int = 0, version: int = 1
) -> tuple[bytes, bytes]:
    """A SaslHandshake request and its response."""
    return (
        wire.request("SaslHandshake", version, correlation_id=correlation_id, mechanism=mechanism),
        wire.response(
            "SaslHandshake",
            version,
            correlation_id=correlation_id,
            error_code=error_code,
            mechanisms=list(EXCHANGES),
        ),
    )


def token(message: bytes, correlation_id: int, *, version: int = 1) -> bytes:
    """A SaslAuthenticate request."""
    return wire.request("SaslAuthenticate", version, correlation_id=correlation_id, auth_bytes=message)


def token_reply(
    correlation_id: int,
    answer: bytes = b"",
    *,
    error_code: int = 0,
    version: int = 1,
    session_lifetime_ms: int = 0,
) -> bytes:
    """A SaslAuthenticate response."""
    fields: dict[str, Any] = {"session_lifetime_ms": session_lifetime_ms} if version else {}
    return wire.response(
        "SaslAuthenticate",
        version,
        correlation_id=correlation_id,
        error_code=error_code,
        error_message="Authentication failed" if error_code else None,
        auth_bytes=answer,
        **fields,
    )
