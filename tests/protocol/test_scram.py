"""The client's side of SCRAM, checked with the example of RFC 7677."""

from __future__ import annotations

import pytest

from protocol.errors import MalformedBody
from protocol.sasl import Mechanism, scram_claim
from protocol.scram import MOST_ITERATIONS, ScramClient

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client() -> ScramClient:
    return ScramClient(Mechanism.SCRAM_SHA_256, "user", "pencil", nonce=NONCE)


def test_exchange_of_the_rfc() -> None:
    scram = client()
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.final(SERVER_FIRST) == CLIENT_FINAL
    scram.verify(SERVER_FINAL)


def test_broker_that_does_not_know_the_password_is_found_out() -> None:
    scram = client()
    scram.final(SERVER_FIRST)
    for lie in (b"v=" + b"A" * 43 + b"=", b"v=", b"", b"e=other-error", b"v=!!"):
        with pytest.raises(MalformedBody):
            scram.verify(lie)


def test_broker_cannot_skip_the_second_round() -> None:
    with pytest.raises(MalformedBody):
        client().verify(b"v=")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"4096", b"0"),
        SERVER_FIRST.replace(b"4096", b"x"),
        SERVER_FIRST.replace(b"4096", b"%d" % (MOST_ITERATIONS + 1)),
        SERVER_FIRST.replace(b"4096", b"9" * 5_000),
        SERVER_FIRST.replace(b"W22", b"W22!"),
        b"\xff" + SERVER_FIRST,
    ],
)
def test_challenge_that_makes_no_sense_is_refused(first: bytes) -> None:
    with pytest.raises(MalformedBody):
        client().final(first)


def test_name_is_escaped_as_brokers_read_it() -> None:
    first = ScramClient(Mechanism.SCRAM_SHA_512, "carol, the 2nd=", "p", nonce="n").first()
    assert scram_claim(first).name == "carol, the 2nd="
