"""SASL inside Kafka's frames: SaslHandshake, SaslAuthenticate, and the name in a client's message.

Names are read with the grammar of Kafka's own PlainSaslServer, ScramMessages and OAuthBearerClientInitialResponse
(RFC 4616, 5802, 7628). A text that a broker would refuse or read as another name must not become a name here.
Passwords, proofs and signatures are never copied out of the message. Tokens are copied only while a claim is read. A
name is a claim until the broker's final response confirms it (`gateway.auth.authentication`).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from protocol.api_keys import Api, ApiKey
from protocol.error_codes import ErrorCode
from protocol.errors import MalformedBody
from protocol.headers import body_offset
from protocol.primitives import (
    framed,
    read_int16,
    read_int32,
    read_nullable_string,
    read_string,
    read_uvarint,
    skip,
    skip_tags,
    write_array_length,
    write_int16,
    write_int32,
    write_nullable_string,
)

MAX_NAME_CHARS: Final = 1_024
"""The longest name that is used; names are kept in counters, logs and series."""

_REPLY_HEADER_AT: Final = 8
_SEPARATOR: Final = "\x01"
_FORBIDDEN_IN_SASLNAME: Final = re.compile(r"[^\x01-\x7f]|=(?!2C|3D)")
_PRINTABLE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_EXTENSION: Final = re.compile(r"[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+")
_OAUTH_PAIR: Final = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]+)")
_TRIMMED: Final = "".join(map(chr, range(0x21)))  # the characters that Java's String.trim removes
# JSON can contain half of a surrogate pair, but that is no valid text: metrics with it in a label can't be written.
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_OAUTH_TOKEN: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([-_.a-zA-Z0-9]+)")


class Mechanism(StrEnum):
    """Mechanisms whose exchange the gateway understands; all others are OTHER."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    OTHER = "other"

    @property
    def scram(self) -> bool:
        """Whether this is SCRAM: two rounds, in the second of which the broker proves that it knows the password."""
        return self in (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


@dataclass(frozen=True, slots=True)
class Claim:
    """The identity that a client claims.

    Attributes:
        name: the user; None when the message does not follow the grammar, so that no broker can read a name in it.
        by_delegation_token: the name is the id of a token, whose owner only the broker knows.
    """

    name: str | None
    by_delegation_token: bool = False


NOBODY: Final = Claim(None)


@dataclass(frozen=True, slots=True)
class AuthenticateReply:
    """A SaslAuthenticate response: error code, and the mechanism's own bytes."""

    error_code: int
    auth_bytes: bytes


# -- frames --------------------------------------------------------------------------------------------------


def read_mechanism(frame: bytes, api: Api) -> Mechanism:
    """The mechanism in a SaslHandshake request.

    Raises:
        ProtocolError: the request cannot be read.
    """
    name, _ = read_string(frame, body_offset(frame, flexible=api.flexible), compact=api.flexible)
    try:
        return Mechanism(name.decode("ascii"))
    except ValueError:
        return Mechanism.OTHER


def read_auth_bytes(frame: bytes, api: Api) -> bytes:
    """The mechanism's bytes in a SaslAuthenticate request.

    Raises:
        ProtocolError: the request cannot be read.
    """
    return _read_bytes(frame, body_offset(frame, flexible=api.flexible), compact=api.flexible)


def read_handshake_error(frame: bytes) -> int:
    """The error code of a SaslHandshake response.

    Raises:
        ProtocolError: the response cannot be read.
    """
    return read_int16(frame, _REPLY_HEADER_AT)[0]


def read_authenticate_reply(frame: bytes, api: Api) -> AuthenticateReply:
    """A SaslAuthenticate response.

    Raises:
        ProtocolError: the response cannot be read.
    """
    at = skip_tags(frame, _REPLY_HEADER_AT) if api.flexible else _REPLY_HEADER_AT
    error_code, at = read_int16(frame, at)
    _message, at = read_nullable_string(frame, at, compact=api.flexible)
    return AuthenticateReply(error_code, _read_bytes(frame, at, compact=api.flexible))


def read_error_message(frame: bytes, api: Api) -> str:
    """The error message of a SaslAuthenticate response; "" if there is none.

    Raises:
        ProtocolError: the response cannot be read.
    """
    at = skip_tags(frame, _REPLY_HEADER_AT) if api.flexible else _REPLY_HEADER_AT
    message, _ = read_nullable_string(frame, at + 2, compact=api.flexible)
    return (message or b"").decode("utf-8", "replace")


def handshake_v0_refusal(correlation_id: int) -> bytes:
    """The response to SaslHandshake v0: error 35, no mechanisms. Tokens after v0 would have no request head."""
    out = bytearray()
    write_int32(out, correlation_id)
    write_int16(out, ErrorCode.UNSUPPORTED_VERSION)
    write_array_length(out, 0, compact=False)
    return framed(out)


def handshake_request(mechanism: Mechanism, correlation_id: int, client_id: str) -> bytes:
    """A SaslHandshake v1 request of the gateway's own."""
    out = _own_head(ApiKey.SASL_HANDSHAKE, 1, correlation_id, client_id)
    write_nullable_string(out, mechanism.encode(), compact=False)
    return framed(out)


def authenticate_request(auth_bytes: bytes, correlation_id: int, client_id: str) -> bytes:
    """A SaslAuthenticate v1 request of the gateway's own."""
    out = _own_head(ApiKey.SASL_AUTHENTICATE, 1, correlation_id, client_id)
    write_int32(out, len(auth_bytes))
    return framed(out + auth_bytes)


def api_versions_question(correlation_id: int, client_id: str) -> bytes:
    """The gateway's own ApiVersions v0 request. Brokers accept it after an exchange and refuse it during one."""
    return framed(_own_head(ApiKey.API_VERSIONS, 0, correlation_id, client_id))


def _own_head(key: ApiKey, version: int, correlation_id: int, client_id: str) -> bytearray:
    out = bytearray()
    write_int16(out, key)
    write_int16(out, version)
    write_int32(out, correlation_id)
    write_nullable_string(out, client_id.encode(), compact=False)
    return out


def _read_bytes(frame: bytes, at: int, *, compact: bool) -> bytes:
    if compact:
        length, at = read_uvarint(frame, at)
        length -= 1
    else:
        length, at = read_int32(frame, at)
    if length < 0:
        raise MalformedBody("null where bytes are required")
    return frame[at : skip(frame, at, length)]


# -- names ---------------------------------------------------------------------------------------------------


def claimed(mechanism: Mechanism, message: bytes, *, oauth_claim: str) -> Claim:
    """The identity that a message of an exchange claims; `gateway.auth.authentication` decides which claim counts.

    Args:
        mechanism: the mechanism of the exchange.
        message: the client's first message; with OAUTHBEARER any message.
        oauth_claim: the claim of an OAuth token that names the user; the brokers' sasl.oauthbearer.sub.claim.name.
    """
    if mechanism is Mechanism.PLAIN:
        return Claim(_bounded(plain_name(message)))
    if mechanism.scram:
        claim = scram_claim(message)
        return Claim(_bounded(claim.name), claim.by_delegation_token)
    if mechanism is Mechanism.OAUTHBEARER:
        return Claim(_bounded(oauth_name(message, oauth_claim)))
    return NOBODY


def _bounded(name: str | None) -> str | None:
    return name if name and len(name) <= MAX_NAME_CHARS else None


def plain_name(message: bytes) -> str | None:
    """The user of ``[authzid] NUL authcid NUL password``: the authcid. A broker refuses another authzid."""
    first = message.find(b"\0")
    second = message.find(b"\0", first + 1)
    if first < 0 or second < 0 or message.find(b"\0", second + 1) >= 0 or second + 1 == len(message):
        return None
    authzid, authcid = message[:first], message[first + 1 : second]
    if not authcid or (authzid and authzid != authcid):
        return None
    # Java decodes bytes in the same way. Such a user exists only if it was created with replacement characters.
    return authcid.decode("utf-8", "replace")


def scram_claim(message: bytes) -> Claim:
    """The user of ``n,[a=authzid],[m=...,]n=user,r=nonce[,extensions]``; with tokenauth=true the id of a token."""
    try:
        parts = message.decode("utf-8").split(",")
    except UnicodeDecodeError:
        return NOBODY
    if len(parts) < 4 or parts[0] != "n":
        return NOBODY
    authzid, rest = parts[1], parts[2:]
    if authzid and (not authzid.startswith("a=") or not _is_saslname(authzid[2:])):
        return NOBODY
    if rest[0].startswith("m=") and len(rest[0]) > 2:
        rest = rest[1:]
    if len(rest) < 2 or not rest[0].startswith("n=") or not rest[1].startswith("r="):
        return NOBODY
    name, nonce, extensions = rest[0][2:], rest[1][2:], rest[2:]
    if not _is_saslname(name) or not _PRINTABLE.fullmatch(nonce):
        return NOBODY
    if not all(_EXTENSION.fullmatch(extension) for extension in extensions):
        return NOBODY
    # Of two extensions with this key the later one counts, and only in this spelling, as in ScramExtensions.
    said = dict(extension.split("=", 1) for extension in extensions)
    by_token = said.get("tokenauth", "").lower() == "true"
    return Claim(_unescaped(name), by_token)


def oauth_name(message: bytes, claim: str) -> str | None:
    """The user of ``n,[a=authzid],^Aauth=Bearer token^A[key=value^A]^A``: a claim in the token's payload.

    The broker checks the signature. Tokens whose payload is not JSON (opaque or encrypted ones) have no name.

    Args:
        message: a message with a token.
        claim: name of the claim, whose value must be a string.
    """
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        return None
    header, *pairs = text.split(_SEPARATOR)
    parts = header.split(",")
    if len(parts) != 3 or parts[0] != "n" or parts[2]:
        return None
    if parts[1] and (not parts[1].startswith("a=") or not _is_saslname(parts[1][2:])):
        return None
    if len(pairs) < 2 or pairs[-2:] != ["", ""]:
        return None
    found: dict[str, str] = {}
    for pair in pairs[:-2]:
        match = _OAUTH_PAIR.fullmatch(pair)
        if match is None:
            return None
        found[match[1]] = match[2]
    bearer = _OAUTH_TOKEN.fullmatch(found.get("auth", ""))
    return None if bearer is None else _claim_in(bearer[1], claim)


def jwt_claims(token: str) -> dict[str, Any] | None:
    """The claims of a JWT; its signature is not checked. None: it is no JWT with readable claims."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    payload = parts[1]
    try:
        claims = json.loads(base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_"))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def _claim_in(token: str, claim: str) -> str | None:
    value = (jwt_claims(token) or {}).get(claim)
    if not isinstance(value, str) or _HALF_PAIR.search(value) is not None:
        return None
    # As ClaimValidationUtils.validateSubject. Only Kafka's validator of unsecured tokens does not strip spaces.
    return value.strip(_TRIMMED) or None


def _is_saslname(text: str) -> bool:
    return bool(text) and _FORBIDDEN_IN_SASLNAME.search(text) is None


def _unescaped(saslname: str) -> str:
    return saslname.replace("=2C", ",").replace("=3D", "=")
