"""SASL frames, names and our side of SCRAM: kafka-python writes the frames; RFC 7677 has the example."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey, describe
from protocol.errors import MalformedBody, ProtocolError
from protocol.sasl import (
    MAX_NAME_CHARS,
    NOBODY,
    AuthenticateReply,
    Claim,
    Mechanism,
    authenticate_request,
    claimed,
    handshake_request,
    handshake_v0_refusal,
    oauth_name,
    plain_name,
    read_auth_bytes,
    read_authenticate_reply,
    read_error_message,
    read_handshake_error,
    read_mechanism,
    scram_claim,
)
from protocol.scram import MOST_ITERATIONS, ScramClient
from testkit import wire


def token(payload: object, *, parts: int = 3) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b"=").decode()
    return ".".join(["e30", encoded, "c2ln"][:parts])


def oauth(bearer: str, *, head: str = "n,,", more: str = "") -> bytes:
    return f"{head}\x01auth=Bearer {bearer}\x01{more}\x01".encode()


# -- frames ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("name", "mechanism"), [
    ("PLAIN", Mechanism.PLAIN), ("SCRAM-SHA-512", Mechanism.SCRAM_SHA_512), ("GSSAPI", Mechanism.OTHER),
    ("plain", Mechanism.OTHER), ("other", Mechanism.OTHER), ("é", Mechanism.OTHER),
])  # fmt: skip
def test_handshake_tells_the_mechanism(version: int, name: str, mechanism: Mechanism) -> None:
    frame = wire.request("SaslHandshake", version, mechanism=name)
    assert read_mechanism(frame, describe(ApiKey.SASL_HANDSHAKE, version)) is mechanism


def test_requests_of_our_own_are_what_a_broker_reads() -> None:
    own = handshake_request(Mechanism.PLAIN, 7, "gateway")
    assert own == wire.request("SaslHandshake", 1, correlation_id=7, client_id="gateway", mechanism="PLAIN")
    own = authenticate_request(b"\0a\0b", 8, "gateway")
    assert own == wire.request("SaslAuthenticate", 1, correlation_id=8, client_id="gateway", auth_bytes=b"\0a\0b")


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("message", [b"", b"\0a\0b", bytes(range(256)) * 300])
def test_authenticate_request_carries_the_mechanisms_bytes(version: int, message: bytes) -> None:
    frame = wire.request("SaslAuthenticate", version, auth_bytes=message)
    assert read_auth_bytes(frame, describe(ApiKey.SASL_AUTHENTICATE, version)) == message


@pytest.mark.parametrize("version", range(3))
def test_authenticate_reply_tells_error_and_bytes(version: int) -> None:
    api = describe(ApiKey.SASL_AUTHENTICATE, version)
    lifetime: dict[str, Any] = {"session_lifetime_ms": 5} if version else {}
    good = wire.response("SaslAuthenticate", version, error_code=0, error_message=None, auth_bytes=b"v=x", **lifetime)
    bad = wire.response("SaslAuthenticate", version, error_code=58, error_message="no", auth_bytes=b"", **lifetime)
    assert read_authenticate_reply(good, api) == AuthenticateReply(0, b"v=x")
    assert read_authenticate_reply(bad, api) == AuthenticateReply(58, b"")
    assert (read_error_message(good, api), read_error_message(bad, api)) == ("", "no")


@pytest.mark.parametrize("version", [0, 1])
def test_handshake_reply_tells_the_error(version: int) -> None:
    assert read_handshake_error(wire.response("SaslHandshake", version, error_code=33, mechanisms=["PLAIN"])) == 33


def test_refusal_of_v0_is_what_a_client_can_read_and_null_bytes_are_an_error() -> None:
    reply = wire.decode_response("SaslHandshake", 0, handshake_v0_refusal(7))
    assert (reply.error_code, list(reply.mechanisms)) == (35, [])
    frame = wire.framed(wire.head(36, 0, flexible=False) + b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError):
        read_auth_bytes(frame, describe(ApiKey.SASL_AUTHENTICATE, 0))


@pytest.mark.parametrize("version", range(3))
def test_cut_frames_are_protocol_errors(version: int) -> None:
    frame = wire.request("SaslAuthenticate", version, auth_bytes=b"\0alice\0secret")
    api = describe(ApiKey.SASL_AUTHENTICATE, version)
    for end in range(14, len(frame) - 1 - (version == 2)):
        with pytest.raises(ProtocolError):
            read_auth_bytes(frame[:end], api)


# -- PLAIN -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("message", "name"), [
    (b"\0alice\0secret", "alice"), (b"alice\0alice\0secret", "alice"), ("\0ünï\0s".encode(), "ünï"),
    (b"\0\xff\0s", "\ufffd"), (b"\0 a:b,c=d \0s", " a:b,c=d "), (b"bob\0alice\0secret", None),
    (b"\0\0secret", None), (b"\0alice\0", None), (b"\0alice", None), (b"alice", None), (b"", None),
    (b"\0", None), (b"\0\0", None), (b"\0\0\0", None), (b"\0alice\0secret\0", None), (b"\0" * 1000, None),
    (b"\0a\0" + b"x" * 524_288, "a"),
])  # fmt: skip
def test_h03_h04_plain_name_is_authcid_where_broker_would_read_one(message: bytes, name: str | None) -> None:
    assert plain_name(message) == name


# -- SCRAM -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("message", "claim"), [
    ("n,,n=alice,r=abc", Claim("alice")), ("n,a=alice,n=alice,r=abc", Claim("alice")),
    ("n,,m=x,n=alice,r=abc", Claim("alice")), ("n,,n=a=2Cb=3D=2C,r=abc", Claim("a,b=,")),
    ("n,,n==3D2C,r=abc", Claim("=2C")), ("n,,n=token-id,r=abc,tokenauth=true", Claim("token-id", True)),
    ("n,,n=token-id,r=abc,x=y,tokenauth=TRUE", Claim("token-id", True)),
    ("n,,n=alice,r=abc,tokenauth=true,tokenauth=false", Claim("alice")),
    ("n,,n=alice,r=abc,tokenauth=yes", Claim("alice")), ("n,,n=alice,r=abc,TokenAuth=true", Claim("alice")),
    ("n,,n=alice,r=a=b=", Claim("alice")), ("n,,n=alice=2c,r=abc", NOBODY), ("n,,n=al=ice,r=abc", NOBODY),
    ("n,,n=,r=abc", NOBODY), ("n,,n=alice,r=", NOBODY), ("n,,n=alice", NOBODY),
    ("n,,r=abc,n=alice", NOBODY), ("y,,n=alice,r=abc", NOBODY), ("p=tls-unique,,n=alice,r=abc", NOBODY),
    ("n,b=x,n=alice,r=abc", NOBODY), ("n,,m=,n=alice,r=abc", NOBODY), ("n,,n=alice,r=abc,", NOBODY),
    ("n,,n=alice,r=abc,9=x", NOBODY), ("n,,n=ünï,r=abc", NOBODY), ("n,,n=a\0b,r=abc", NOBODY), ("", NOBODY),
])  # fmt: skip
def test_h05_h06_scram_name_is_unescaped_and_a_token_is_not_a_user(message: str, claim: Claim) -> None:
    assert scram_claim(message.encode()) == claim


# -- OAUTHBEARER -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("message", "name"), [
    (oauth(token({"sub": "alice"})), "alice"), (oauth(token({"sub": "alice"}), head="n,a=alice,"), "alice"),
    (oauth(token({"sub": "alice"}), more="trace=1\x01"), "alice"), (oauth(token({"sub": "ünï"})), "ünï"),
    (oauth(token({"client_id": "alice"})), None), (oauth(token({"sub": 7})), None),
    (oauth(token({"sub": " "})), None), (oauth(token({"sub": " alice\t"})), "alice"),
    (oauth(token({"sub": "half of a pair: \ud800"})), None),
    (oauth(token({"sub": "a pair: \U0001f600"})), "a pair: \U0001f600"), (oauth(token(["sub"])), None),
    (oauth(token({"sub": "alice"}, parts=2)), None), (oauth("opaque"), None), (oauth("a.!!!.c"), None),
    (oauth("a.eyJz.c"), None), (oauth(token({"sub": "alice"}), head="y,,"), None),
    (oauth(token({"sub": "alice"}), head="n,"), None),
    (oauth(token({"sub": "alice"}), more="bad\x01"), None), (oauth(token({"sub": "alice"}))[:-1], None),
    (b"n,,\x01auth=Basic abc\x01\x01", None), (b"n,,\x01x=y\x01\x01", None),
    (b"n,,\x01auth=Bearer \xff\x01\x01", None), (b"\x01", None), (b"", None),
])  # fmt: skip
def test_h07_oauth_name_is_a_claim_of_the_token(message: bytes, name: str | None) -> None:
    assert oauth_name(message, "sub") == name


def test_h07_what_is_not_understood_names_nobody() -> None:
    message = oauth(token({"sub": "nobody", "preferred_username": "alice"}))
    assert oauth_name(message, "preferred_username") == "alice"
    payload = base64.urlsafe_b64encode(b"[" * 100_000).rstrip(b"=").decode()
    assert oauth_name(oauth(f"e30.{payload}.x"), "sub") is None
    assert claimed(Mechanism.OTHER, b"\0alice\0secret", oauth_claim="sub") == NOBODY
    assert scram_claim(b"n,,n=\xff,r=abc") == NOBODY


# -- all of them -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [MAX_NAME_CHARS, MAX_NAME_CHARS + 1])
def test_names_have_a_longest_one(length: int) -> None:
    claim = claimed(Mechanism.PLAIN, b"\0" + b"a" * length + b"\0p", oauth_claim="sub")
    assert claim.name == ("a" * length if length == MAX_NAME_CHARS else None)


@given(st.sampled_from(list(Mechanism)), st.binary(max_size=200))
def test_any_bytes_give_a_claim(mechanism: Mechanism, message: bytes) -> None:
    claim = claimed(mechanism, message, oauth_claim="sub")
    assert claim.name is None or 0 < len(claim.name) <= MAX_NAME_CHARS


# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client() -> ScramClient:
    return ScramClient(Mechanism.SCRAM_SHA_256, "user", "pencil", nonce=NONCE)


def test_exchange_of_the_rfc_and_of_no_other_broker() -> None:
    scram = client()
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.final(SERVER_FIRST) == CLIENT_FINAL
    scram.verify(SERVER_FINAL)
    with pytest.raises(MalformedBody):
        client().verify(b"v=")
    scram = client()
    scram.final(SERVER_FIRST)
    for lie in (b"v=" + b"A" * 43 + b"=", b"v=", b"", b"e=other-error", b"v=!!"):
        with pytest.raises(MalformedBody):
            scram.verify(lie)
    first = ScramClient(Mechanism.SCRAM_SHA_512, "carol, the 2nd=", "p", nonce="n").first()
    assert scram_claim(first).name == "carol, the 2nd="


@pytest.mark.parametrize("first", [
    b"", b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", SERVER_FIRST.replace(b"4096", b"0"),
    SERVER_FIRST.replace(b"4096", b"x"), SERVER_FIRST.replace(b"4096", b"%d" % (MOST_ITERATIONS + 1)),
    SERVER_FIRST.replace(b"4096", b"9" * 5_000), SERVER_FIRST.replace(b"W22", b"W22!"),
    b"\xff" + SERVER_FIRST,
])  # fmt: skip
def test_challenge_that_makes_no_sense_is_refused(first: bytes) -> None:
    with pytest.raises(MalformedBody):
        client().final(first)
