"""Every error of the `ssl` module has a place in a closed list."""

import ssl

import pytest

from gateway.observability.events import TlsFailure
from gateway.tls.transport import failure_of


def error(reason: str) -> ssl.SSLError:
    made = ssl.SSLError(1, f"[SSL: {reason}] text")
    made.reason = reason
    return made


def untrusted(code: int) -> ssl.SSLCertVerificationError:
    made = ssl.SSLCertVerificationError(1, "text")
    made.verify_code = code
    return made


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        ("WRONG_VERSION_NUMBER", TlsFailure.NOT_TLS),
        ("UNSUPPORTED_PROTOCOL", TlsFailure.PROTOCOL_VERSION),
        ("NO_SHARED_CIPHER", TlsFailure.NO_SHARED_CIPHER),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", TlsFailure.NO_CERTIFICATE),
        ("TLSV1_ALERT_UNKNOWN_CA", TlsFailure.REJECTED_BY_PEER),
        ("SOMETHING_OF_A_LATER_OPENSSL", TlsFailure.PROTOCOL),
    ],
)
def test_reasons_of_openssl(reason: str, failure: TlsFailure) -> None:
    assert failure_of(error(reason)) is failure


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (10, TlsFailure.CERTIFICATE_EXPIRED),
        (23, TlsFailure.CERTIFICATE_REVOKED),
        (26, TlsFailure.CERTIFICATE_PURPOSE),
        (62, TlsFailure.CERTIFICATE_HOST),
        (18, TlsFailure.CERTIFICATE_UNTRUSTED),
        (99, TlsFailure.CERTIFICATE_UNTRUSTED),
    ],
)
def test_faults_of_certificates(code: int, failure: TlsFailure) -> None:
    assert failure_of(untrusted(code)) is failure


def test_a_peer_that_goes_away_is_no_error_of_the_protocol() -> None:
    assert failure_of(ssl.SSLEOFError(8, "text")) is TlsFailure.CLOSED
