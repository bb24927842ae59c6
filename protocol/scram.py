"""The client's side of SCRAM (RFC 5802), for the gateway's own connections. Pure: the nonce is an argument.

Names and passwords are used as they are, without SASLprep, as Kafka uses them. No channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from protocol.errors import MalformedBody
from protocol.sasl import Mechanism

MOST_ITERATIONS: Final = 1_000_000
"""A broker that asks for more is after our time: a second of it, here."""

_HASHES: Final = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}
_GS2_HEADER: Final = "n,,"


class ScramClient:
    """One exchange: `first`, then `final` with the broker's answer, then `verify` with its last one."""

    def __init__(self, mechanism: Mechanism, user: str, password: str, *, nonce: str) -> None:
        """Begin.

        Args:
            mechanism: SCRAM_SHA_256 or SCRAM_SHA_512.
            user: whom to log in.
            password: kept until the exchange is over.
            nonce: printable, without a comma, never used before.
        """
        self._hash = _HASHES[mechanism]
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={name},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """The first message."""
        return (_GS2_HEADER + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The message with the proof.

        Args:
            server_first: ``r=nonce,s=salt,i=iterations``.

        Raises:
            MalformedBody: it cannot be read, is not about our nonce, or asks for too much work.
        """
        fields = _fields(server_first)
        nonce, iterations = fields.get("r", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise MalformedBody("SCRAM: the server's nonce does not continue ours")
        # Nine digits at most: int() refuses thousands of them in its own way.
        digits = iterations if iterations.isascii() and iterations.isdigit() else "0"
        if len(digits) > 9 or not 1 <= int(digits) <= MOST_ITERATIONS:
            raise MalformedBody(f"SCRAM: iterations not in 1..{MOST_ITERATIONS}")
        salted = hashlib.pbkdf2_hmac(
            self._hash, self._password, _decoded(fields.get("s", "")), int(iterations)
        )
        without_proof = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        signed = b",".join((self._bare.encode(), server_first, without_proof.encode()))
        client_key = self._mac(salted, b"Client Key")
        stored_key = self._digest(client_key)
        proof = bytes(a ^ b for a, b in zip(client_key, self._mac(stored_key, signed), strict=True))
        self._server_signature = self._mac(self._mac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """See whether the broker knows the password too.

        Args:
            server_final: ``v=signature``.

        Raises:
            MalformedBody: it does not.
        """
        signature = _decoded(_fields(server_final).get("v", ""))
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise MalformedBody("SCRAM: the server could not prove that it knows the password")

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)

    def _digest(self, message: bytes) -> bytes:
        return hashlib.new(self._hash, message).digest()


def _fields(message: bytes) -> dict[str, str]:
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError as exc:
        raise MalformedBody("SCRAM: not ASCII") from exc
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise MalformedBody("SCRAM: bad base64") from exc
