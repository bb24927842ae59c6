"""The same exchanges, by hand, to a real broker and through the gateway: the same answers and the same ends.

What differs on purpose is in `DIFFERENT`, and in docs/reference/sasl.md.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import pytest

from testkit.secure_kafka import PASSWORDS, SecureKafka, unsecured_token
from testkit.tap import Tap
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import own_user

pytestmark = pytest.mark.integration

Step: TypeAlias = tuple[str, int, dict[str, Any]]
CLOSED: Final = "closed"


def handshake(mechanism: str, version: int = 1) -> Step:
    return "SaslHandshake", version, {"mechanism": mechanism}


def token(message: bytes, version: int = 2) -> Step:
    return "SaslAuthenticate", version, {"auth_bytes": message}


VERSIONS: Final[Step] = ("ApiVersions", 3, {"client_software_name": "a", "client_software_version": "1"})
METADATA: Final[Step] = ("Metadata", 4, {"topics": [], "allow_auto_topic_creation": False})
PLAIN: Final = handshake("PLAIN")
ALICE: Final = b"\0alice\0" + PASSWORDS["alice"].encode()
NAMELESS: Final = b"n,,\x01auth=Bearer %s\x01\x01" % unsecured_token("alice", claim="other").encode()
OAUTH_ALICE: Final = b"n,,\x01auth=Bearer %s\x01\x01" % unsecured_token("alice").encode()
EXPIRED_OF_BOB: Final = b"n,,\x01auth=Bearer %s\x01\x01" % unsecured_token("bob", lifetime_s=-3_600).encode()

SAME: Final[dict[str, Sequence[Step]]] = {
    "an ordinary login": [VERSIONS, PLAIN, token(ALICE), METADATA],
    "token v0": [PLAIN, token(ALICE, 0), METADATA],
    "token v1": [PLAIN, token(ALICE, 1), METADATA],
    "another request first": [METADATA],
    "another request after ApiVersions": [VERSIONS, METADATA],
    "a token first": [token(ALICE)],
    "ApiVersions twice": [VERSIONS, VERSIONS],
    "an unknown mechanism": [handshake("NOPE")],
    "a mechanism that is not enabled": [handshake("GSSAPI")],
    "a token after the exchange": [PLAIN, token(ALICE), token(b"\0bob\0x"), METADATA],
    "a handshake after it, where sessions do not end": [PLAIN, token(ALICE), PLAIN, METADATA],
    "a wrong password": [PLAIN, token(b"\0alice\0x")],
    "another authorization id": [PLAIN, token(b"bob" + ALICE)],
    "its own authorization id": [PLAIN, token(b"alice" + ALICE), METADATA],
    "two NULs": [PLAIN, token(b"\0\0")],
    "1,000 NULs": [PLAIN, token(b"\0" * 1000)],
    "an empty user": [PLAIN, token(b"\0\0secret")],
    "no UTF-8": [PLAIN, token(b"\0\xff\xfe\0secret")],
    "an empty token": [PLAIN, token(b"")],
    "SCRAM: unicode": [handshake("SCRAM-SHA-256"), token("n,,n=ünï,r=abc".encode())],
    "SCRAM: junk": [handshake("SCRAM-SHA-512"), token(b"x")],
    "SCRAM: a user who is not there": [handshake("SCRAM-SHA-512"), token(b"n,,n=nobody,r=abc")],
    "OAUTHBEARER: junk": [handshake("OAUTHBEARER"), token(b"x")],
    "OAUTHBEARER: refused in two rounds": [handshake("OAUTHBEARER"), token(NAMELESS), token(b"\x01")],
    "OAUTHBEARER: another token after a refused one": [
        handshake("OAUTHBEARER"),
        token(EXPIRED_OF_BOB),
        token(OAUTH_ALICE),
        METADATA,
    ],
}

DIFFERENT: Final[dict[str, tuple[Sequence[Step], int | str, int | str]]] = {
    "a handshake in an exchange": ([PLAIN, PLAIN], 34, CLOSED),
    "another request in an exchange": ([PLAIN, METADATA], 0, CLOSED),
    "handshake v0": ([handshake("PLAIN", 0)], 0, 35),
}
"""Steps, and the error code of the last answer, or the end: a broker's and the gateway's."""


def answers(address: tuple[str, int], steps: Sequence[Step]) -> list[Any]:
    """The error codes of the answers, and how it ended."""
    found: list[Any] = []
    with WireClient(address, timeout_s=10) as client:
        try:
            for name, version, fields in steps:
                found.append(getattr(client.ask(name, version, **fields).body, "error_code", None))
        except ConnectionEnded:
            found.append(CLOSED)
            return found
        if found[-1] not in (None, 0):
            try:
                client.ask(*METADATA[:2], **METADATA[2])
                found.append("open")
            except ConnectionEnded:
                found.append(CLOSED)
    return found


@pytest.fixture(scope="module")
def sides(
    secure_kafka: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Where a broker is, and where the gateway is."""
    options = GatewayOptions(upstream=own_user(secure_kafka), listener='security_protocol = "SASL_PLAINTEXT"')
    folder = tmp_path_factory.mktemp("sasl-sides")
    gateway = GatewayProcess(folder, secure_kafka.addresses("SASL").values(), tap, options)
    gateway.start()
    yield secure_kafka.addresses("SASL")[1], gateway.bootstrap
    gateway.stop()


@pytest.mark.parametrize("case", SAME)
def test_h04_h14_gateway_answers_and_ends_as_the_broker_does(
    sides: tuple[tuple[str, int], tuple[str, int]], case: str
) -> None:
    broker, gateway = sides
    expected = answers(broker, SAME[case])
    assert len(expected) >= len(SAME[case])
    assert answers(gateway, SAME[case]) == expected


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_known(sides: tuple[tuple[str, int], tuple[str, int]], case: str) -> None:
    steps, of_broker, of_gateway = DIFFERENT[case]
    found = [answers(side, steps)[len(steps) - 1] for side in sides]
    assert found == [of_broker, of_gateway]
