"""Authentication: the state of one connection's SASL exchange, and its user. Pure.

The client's messages only claim a name. The broker's replies advance the exchange. `principal` changes only with a
reply that ends an exchange successfully. The mechanism decides which reply ends it (`_concluded`) and which message
contains the name (`send`).
Source: SaslServerAuthenticator; KIP-152 (tokens in SaslAuthenticate), KIP-368 (again, on an open connection).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.observability.traces import Trace
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError
from protocol.sasl import NOBODY, AuthenticateReply, Claim, Mechanism, claimed


class IllegalSaslState(ProtocolError):
    """A SASL request that the state of the exchange does not allow. Like Kafka, the gateway closes the connection."""

    cause = "illegal_sasl_state"


class Unauthenticated(ProtocolError):
    """A request that is not allowed before authentication; its body is not parsed (hazard H10)."""

    cause = "unauthenticated"


@dataclass(frozen=True, slots=True)
class SaslRules:
    """How the principals of one listener are found.

    Attributes:
        unknown_principal: for clients whose name cannot be read: GSSAPI, unknown mechanisms, opaque tokens.
        delegation_token_principal: for clients that log in with a delegation token, whose owner the exchange hides.
        oauth_claim: the claim of an OAuth token that names the user.
    """

    unknown_principal: str = "unknown"
    delegation_token_principal: str = "unknown"
    oauth_claim: str = "sub"


class Progress(Enum):
    """The meaning of a broker's reply for the exchange."""

    CONTINUES = "continues"
    SUCCEEDED = "succeeded"
    UNCLEAR = "unclear"  # unknown mechanism: the exchange may be over or continue
    FAILED = "failed"


class _Step(Enum):
    IDLE = "idle"
    HANDSHAKE = "handshake"  # requested, not answered
    TOKENS = "tokens"


class Authentication:
    """The exchange of one connection.

    Attributes:
        principal: name of the user; None until the broker has accepted one.
        mechanism: of the current exchange, or of the last one.
        trace: of the current exchange; None: traces are off, or no exchange has begun.
    """

    __slots__ = ("_claim", "_messages", "_rules", "_step", "_told_old", "mechanism", "principal", "trace")

    def __init__(self, rules: SaslRules) -> None:
        self.principal: str | None = None
        self.mechanism = Mechanism.OTHER
        self.trace: Trace | None = None
        self._rules = rules
        self._step = _Step.IDLE
        self._claim = NOBODY
        self._messages = 0
        self._told_old = False

    # -- the client ------------------------------------------------------------------------------------------

    def begin(self, mechanism: Mechanism) -> None:
        """Begin an exchange that the client requests.

        Raises:
            IllegalSaslState: another exchange is in progress.
        """
        self._require_over()
        self._step = _Step.HANDSHAKE
        self._claim = NOBODY
        self._messages = 0
        self.mechanism = mechanism

    def refuse_old(self) -> None:
        """Note that a handshake of version 0 is refused. The client can continue with a newer version.

        Raises:
            IllegalSaslState: an exchange is in progress, or it is the second such handshake without an authenticated
                user. Brokers take the bytes after such a handshake for a token, and refuse the token.
        """
        self._require_over()
        if self.principal is None and self._told_old:
            raise IllegalSaslState("a second handshake of version 0")
        self._told_old = True

    def _require_over(self) -> None:
        # Only the broker knows whether an exchange of an unknown mechanism is over.
        over = self._step is _Step.IDLE or (self.mechanism is Mechanism.OTHER and self._messages > 0)
        if not over:
            raise IllegalSaslState(f"a handshake in step {self._step.value}")

    def takes_tokens(self) -> bool:
        """Whether a token belongs to an exchange. If not, the broker answers the error.

        Raises:
            IllegalSaslState: no exchange has begun on this connection.
        """
        if self._step is _Step.TOKENS:
            return True
        if self.principal is None:
            raise IllegalSaslState("a token without a handshake")
        return False

    def send(self, message: bytes) -> None:
        """Take the client's next message. Only the name in it is kept."""
        self._messages += 1
        # SCRAM proves the name in the first message, and an exchange has no second one. Kafka's OAuthBearerSaslServer
        # refuses a token with data, and then checks the next token of the same exchange: only the last is proven.
        if self._messages == 1 or self.mechanism is Mechanism.OAUTHBEARER:
            self._claim = claimed(self.mechanism, message, oauth_claim=self._rules.oauth_claim)

    # -- the broker ------------------------------------------------------------------------------------------

    def handshake_answered(self, error_code: int) -> Progress:
        """Take the broker's answer to a handshake: it accepts or refuses the mechanism.

        After a refusal a connection without an authenticated user fails. With a user it continues unchanged.
        """
        if error_code == ErrorCode.NONE:
            self._step = _Step.TOKENS
            return Progress.CONTINUES
        self._step = _Step.IDLE
        return Progress.FAILED if self.principal is None else Progress.CONTINUES

    def answered(self, reply: AuthenticateReply) -> Progress:
        """Take the broker's reply to a token. If it ends the exchange successfully, `principal` is set."""
        if reply.error_code != ErrorCode.NONE:
            self._step = _Step.IDLE
            return Progress.FAILED
        progress = self._concluded(reply.auth_bytes)
        if progress is Progress.SUCCEEDED:
            self._step = _Step.IDLE
            self.principal = self._named(self._claim)
        return progress

    def _concluded(self, auth_bytes: bytes) -> Progress:
        """Whether a reply without an error ends the exchange."""
        if self.mechanism is Mechanism.PLAIN:
            return Progress.SUCCEEDED
        if self.mechanism is Mechanism.OAUTHBEARER:
            # Data is an error. The client should acknowledge it, and is then refused (RFC 7628, 3.2.2).
            return Progress.CONTINUES if auth_bytes else Progress.SUCCEEDED
        if self.mechanism.scram:
            proven = self._messages == _SCRAM_MESSAGES and auth_bytes.startswith(b"v=")
            return Progress.SUCCEEDED if proven else Progress.CONTINUES
        return Progress.UNCLEAR

    def confirmed(self) -> None:
        """End an exchange of an unknown mechanism, after the broker has served a request that needs a login."""
        self._step = _Step.IDLE
        self.principal = self._rules.unknown_principal

    def _named(self, claim: Claim) -> str:
        if claim.by_delegation_token:
            return self._rules.delegation_token_principal
        return self._rules.unknown_principal if claim.name is None else claim.name


_SCRAM_MESSAGES: Final = 2
