import contextlib
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from config.mapping_rules import MappingRules, NoRuleMatches
from gateway.auth.principals import UnreadableName, principal_name, rfc2253_name
from testkit import names


def signed(subject: x509.Name) -> bytes:
    """A certificate as an authority makes it."""
    key = ec.generate_private_key(ec.SECP256R1())
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), 7, start, start.replace(year=2036))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def test_subject_is_written_last_part_first_sets_in_order_and_unknown_types_by_number() -> None:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc."),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "a=b"),
            x509.NameAttribute(NameOID.COMMON_NAME, " alice"),
        ]
    )
    assert principal_name(signed(subject)) == r"CN=\ alice,OU=a\=b,O=Example\, Inc.,C=DE"
    name = names.name([[("2.5.4.11", names.UTF8, b"z"), (names.COMMON_NAME, names.UTF8, b"a")]])
    assert rfc2253_name(name) == "OU=z+CN=a"
    assert rfc2253_name(names.name([[("1.2.840.113549.1.9.1", 0x16, b"a@b")]])) == (
        "1.2.840.113549.1.9.1=#1603614062"
    )
    assert rfc2253_name(names.name([[(names.COMMON_NAME, 0x03, b"\x00a")]])) == "CN=#03020061"
    assert principal_name(names.certificate(names.name([]))) == ""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Alice")])
    assert principal_name(signed(subject), MappingRules.parse("RULE:CN=(.*)/$1/L")) == "alice"
    with pytest.raises(NoRuleMatches):
        principal_name(signed(subject), MappingRules.parse("RULE:CN=bob/bob/"))


@pytest.mark.parametrize(
    ("tag", "value", "by_kind", "utf8"),
    [
        (0x0C, "é".encode(), "é", "é"),
        (0x13, "é".encode(), "Ã©", "é"),
        (0x14, b"\xe9", "é", "\ufffd"),
        (0x16, b"a,b", r"a\,b", r"a\,b"),
        (names.BMP, "Zoë".encode("utf-16-be"), "Zoë", "\\00Z\\00o\\00\ufffd"),
    ],
)
def test_texts_are_read_by_kind_as_new_java_does_or_all_as_utf8(
    tag: int, value: bytes, by_kind: str, utf8: str
) -> None:
    name = names.name([[(names.COMMON_NAME, tag, value)]])
    assert rfc2253_name(name) == f"CN={by_kind}"
    assert rfc2253_name(name, all_utf8=True) == f"CN={utf8}"


def test_bmp_string_with_halves_of_letters_is_refused_as_new_java_does() -> None:
    name = names.name([[("2.5.4.5", names.BMP, "\U0001f600".encode("utf-16-be"))]])
    with pytest.raises(UnreadableName):
        rfc2253_name(name)
    assert rfc2253_name(name, all_utf8=True) == "2.5.4.5=#1e04d83dde00"


@pytest.mark.parametrize("version", [True, False])
def test_certificates_of_the_first_version_have_a_subject_too(version: bool) -> None:
    der = names.certificate(names.common_name("a"), version=version)
    assert principal_name(der) == "CN=a"


@pytest.mark.parametrize(
    "name",
    [b"", b"\x30", b"\x30\x80\x00\x00", b"\x30\x85\x00\x00\x00\x00\x00", b"\x30\x02\x31\x00", b"\x31\x00",
     b"\x30\x00\x00",
     names.element(0x30, names.element(0x31, names.element(0x30, b"\x06\x00\x0c\x00"))),
     names.element(0x30, names.element(0x31, names.element(0x30, b"\x06\x01\x80\x0c\x00"))),
     names.element(0x30, names.element(0x31, names.element(0x30, names.oid("2.5.4.3") + b"\x0c\x00\x0c\x00"))),
     names.element(0x30, names.element(0x31, names.element(0x30, b"\x0c\x00\x0c\x00")))],
)  # fmt: skip
def test_bytes_that_are_no_name_are_refused(name: bytes) -> None:
    with pytest.raises(UnreadableName):
        rfc2253_name(name)


@given(st.binary(max_size=60), names.names, st.integers(0, 200), st.integers(0, 255))
def test_broken_certificates_are_refused_and_nothing_else_happens(
    junk: bytes, name: bytes, at: int, byte: int
) -> None:
    der = bytearray(names.certificate(name))
    der[at % len(der)] = byte
    for broken in (junk, bytes(der), bytes(der[: at % len(der)])):
        with contextlib.suppress(UnreadableName, NoRuleMatches):
            assert isinstance(principal_name(broken), str)
