"""The SASL exchange of one connection: where it stands, and which user it ends with. Pure.

The client's messages only make a claim; the broker's replies move it on. `principal` changes with a reply that ends
an exchange successfully and with nothing else. Which reply that is, and which message its name is of, depends on
the mechanism: see `_concluded` and `send`.
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
    """A SASL request where the exchange has no place for it; Kafka closes the connection, so do we."""

    cause = "illegal_sasl_state"


class Unauthenticated(ProtocolError):
    """A request that is not allowed before authentication; its body is not looked at (hazard H10)."""

    cause = "unauthenticated"


@dataclass(frozen=True, slots=True)
class SaslRules:
    """How the principals of one listener are found.

    Attributes:
        unknown_principal: of clients whose name can't be read: GSSAPI, mechanisms unknown here, opaque tokens.
        delegation_token_principal: of clients that log in by a delegation token, since the exchange hides its owner.
        oauth_claim: the claim of an OAuth token that names the user.
    """

    unknown_principal: str = "unknown"
    delegation_token_principal: str = "unknown"
    oauth_claim: str = "sub"


class Progress(Enum):
    """What a broker's reply means for the exchange."""

    CONTINUES = "continues"
    SUCCEEDED = "succeeded"
    UNCLEAR = "unclear"  # the mechanism is not understood: it may be over or continue
    FAILED = "failed"


class _Step(Enum):
    IDLE = "idle"
    HANDSHAKE = "handshake"  # asked for, not answered
    TOKENS = "tokens"


class Authentication:
    """The exchange of one connection.

    Attributes:
        principal: name of the user; None until the broker has accepted one.
        mechanism: of the exchange under way, or of the last one.
        trace: of the exchange under way; None: traces are off, or there was none yet.
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
        """The client asks for an exchange.

        Raises:
            IllegalSaslState: one is under way.
        """
        self._require_over()
        self._step = _Step.HANDSHAKE
        self._claim = NOBODY
        self._messages = 0
        self.mechanism = mechanism

    def refuse_old(self) -> None:
        """The client asks for version 0, which is refused here; once, so that it can continue with a newer one.

        Raises:
            IllegalSaslState: an exchange is under way, or no user has authenticated and it has been refused already:
                brokers take what follows such a handshake for a token, and refuse it as one.
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
        """Whether a token belongs to an exchange; False: to none, which the broker answers by itself.

        Raises:
            IllegalSaslState: there was none yet at all.
        """
        if self._step is _Step.TOKENS:
            return True
        if self.principal is None:
            raise IllegalSaslState("a token without a handshake")
        return False

    def send(self, message: bytes) -> None:
        """The client's next message; nothing of it is kept but the name."""
        self._messages += 1
        # SCRAM proves the name in the first message, and no second one can be begun. Kafka's OAuthBearerSaslServer
        # refuses a token with data and then judges the next one, in the same exchange: only the last one is proven.
        if self._messages == 1 or self.mechanism is Mechanism.OAUTHBEARER:
            self._claim = claimed(self.mechanism, message, oauth_claim=self._rules.oauth_claim)

    # -- the broker ------------------------------------------------------------------------------------------

    def handshake_answered(self, error_code: int) -> Progress:
        """The broker knows the mechanism, or does not want an exchange.

        A refusal ends a connection without an authenticated user; an authenticated one continues as it was.
        """
        if error_code == ErrorCode.NONE:
            self._step = _Step.TOKENS
            return Progress.CONTINUES
        self._step = _Step.IDLE
        return Progress.FAILED if self.principal is None else Progress.CONTINUES

    def answered(self, reply: AuthenticateReply) -> Progress:
        """The broker's reply to a token; afterwards `principal` is right."""
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
            # Data is an error that the client should acknowledge, to be refused for good (RFC 7628, 3.2.2).
            return Progress.CONTINUES if auth_bytes else Progress.SUCCEEDED
        if self.mechanism.scram:
            proven = self._messages == _SCRAM_MESSAGES and auth_bytes.startswith(b"v=")
            return Progress.SUCCEEDED if proven else Progress.CONTINUES
        return Progress.UNCLEAR

    def confirmed(self) -> None:
        """The broker has served something that it serves only after an exchange (mechanisms not understood)."""
        self._step = _Step.IDLE
        self.principal = self._rules.unknown_principal

    def _named(self, claim: Claim) -> str:
        if claim.by_delegation_token:
            return self._rules.delegation_token_principal
        return self._rules.unknown_principal if claim.name is None else claim.name


_SCRAM_MESSAGES: Final = 2
