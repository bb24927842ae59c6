"""OAuth tokens of the gateway's own login: which texts are tokens, how long they last, when to get the next one.

No I/O and no clock. A token never becomes part of an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from protocol.sasl import jwt_claims

MOST_RESPONSE_BYTES: Final = 64 * 1024
_MOST_TOKEN_CHARS: Final = 32 * 1024
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, so none of SASL's separators
_LATEST_S: Final = 2.0**40
_UNKNOWN_LIFETIME_S: Final = 300.0
"""The assumed lifetime if an endpoint does not state one."""

# Kafka's defaults of sasl.login.refresh.*
_WINDOW_FACTOR: Final = 0.8
_WINDOW_JITTER: Final = 0.05
_MIN_PERIOD_S: Final = 60.0
_BUFFER_S: Final = 300.0

# All errors of RFC 6749, and one more that servers use. Other texts of an endpoint are not repeated.
_ERRORS: Final = frozenset(
    (
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
        "access_denied",
        "server_error",
        "temporarily_unavailable",
    )
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
        text: the secret.
        expires_s: the end of its validity, in seconds since 1970; None: not known.
    """

    text: str = field(repr=False)
    expires_s: float | None

    def usable(self, now_s: float) -> bool:
        """Whether it has not expired."""
        return self.expires_s is None or now_s < self.expires_s


def token_of(text: str, *, now_s: float) -> Token:
    """The token of a text.

    Raises:
        ValueError: it is no token, or has expired.
    """
    if len(text) > _MOST_TOKEN_CHARS or _TOKEN.fullmatch(text) is None:
        raise ValueError("holds no token: a token has letters, digits and -._~+/= only")
    token = Token(text, _time((jwt_claims(text) or {}).get("exp")))
    if not token.usable(now_s):
        raise ValueError("holds a token that has expired")
    return token


def token_of_response(body: bytes, *, now_s: float) -> Token:
    """The token in a response of a token endpoint (RFC 6749, 5.1).

    Raises:
        ValueError: it has no usable token.
    """
    answer = _json(body)
    text, kind = answer.get("access_token"), answer.get("token_type", "bearer")
    if not isinstance(text, str):
        raise ValueError("its answer is not JSON with an access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ValueError("its token_type is not bearer")
    try:
        token = token_of(text, now_s=now_s)
    except ValueError as exc:
        raise ValueError(f"its answer {exc}") from None
    lifetime_s = _time(answer.get("expires_in"))
    if lifetime_s is None:
        ends = token.expires_s or now_s + _UNKNOWN_LIFETIME_S
    else:
        ends = min(now_s + lifetime_s, token.expires_s or math.inf)
    if ends <= now_s:
        raise ValueError("its answer holds a token that has expired")
    return Token(token.text, ends)


def error_of_response(body: bytes) -> str:
    """The error code of a refusal (RFC 6749, 5.2); "" for an unknown code."""
    error = _json(body).get("error")
    return error if isinstance(error, str) and error in _ERRORS else ""


def refresh_after_s(lifetime_s: float, chance: float) -> float:
    """The seconds until the next token should be requested, by the defaults of Kafka's clients.

    Args:
        lifetime_s: the remaining lifetime.
        chance: from 0 to 1, so that not all gateways ask at the same time.
    """
    if lifetime_s < _MIN_PERIOD_S + _BUFFER_S:
        return lifetime_s * _WINDOW_FACTOR
    after_s = lifetime_s * (_WINDOW_FACTOR + _WINDOW_JITTER * chance)
    return max(_MIN_PERIOD_S, min(after_s, lifetime_s - _BUFFER_S))


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _time(value: object) -> float | None:
    """A number of seconds, which some servers send as text; None: it is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < _LATEST_S else None
