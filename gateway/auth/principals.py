"""The principal name that Kafka gives a client with a TLS certificate.

Kafka's DefaultKafkaPrincipalBuilder takes the subject as Java's X500Principal.getName() writes it, and applies
ssl.principal.mapping.rules. Java writes RFC 2253 with some deviations. Quotas on the brokers name exactly that text,
so this module writes the same text. It reads the certificate's bytes, since libraries sort or decode the names first.
The certificate has been verified before. A subject that cannot be read is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from config.mapping_rules import DEFAULT_RULES, MappingRules, NoRuleMatches

__all__ = [
    "DEFAULT_RULES",
    "MappingRules",
    "NoRuleMatches",
    "UnreadableName",
    "principal_name",
    "rfc2253_name",
]

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_VERSION: Final = 0xA0
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString; and the encoding of each kind.
_TEXTS: Final = {
    0x0C: "utf-8",
    0x13: "latin-1",
    0x14: "latin-1",
    0x16: "latin-1",
    0x1B: "latin-1",
    0x1E: "utf-16-be",
}
_BMP: Final = 0x1E
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = {ord(char): f"\\{char}" for char in ',=+<>#;"\\'} | {0: "\\00"}
_BLANKS: Final = " \r"


class UnreadableName(ValueError):
    """A certificate's subject cannot be read, so its client has no name."""


def principal_name(certificate: bytes, rules: MappingRules = DEFAULT_RULES, *, all_utf8: bool = False) -> str:
    """The name of the principal, without Kafka's prefix ``User:``.

    Args:
        certificate: in DER, from `ssl.SSLObject.getpeercert(binary_form=True)`.
        rules: map the subject's name to the principal's.
        all_utf8: see `rfc2253_name`.

    Raises:
        UnreadableName: the subject cannot be read.
        NoRuleMatches: no rule matches the subject.
    """
    return rules.name(rfc2253_name(_subject(certificate), all_utf8=all_utf8))


def rfc2253_name(name: bytes, *, all_utf8: bool = False) -> str:
    """A distinguished name as Java's X500Principal.getName() writes it.

    Args:
        name: the Name in DER: SEQUENCE OF SET OF SEQUENCE { OBJECT IDENTIFIER, value }.
        all_utf8: texts of every kind are UTF-8, as for Java before its security updates of 2026 (17.0.15 does so;
            25.0.3 decodes each kind by its own encoding). It matters for values in BMPString, and for letters beyond
            ASCII in all kinds except UTF8String.

    Raises:
        UnreadableName: it is not such a name.
    """
    sets = [_attributes(content, all_utf8) for content in _all(_only(name, _SEQUENCE), _SET)]
    return ",".join("+".join(attributes) for attributes in reversed(sets))


def _subject(certificate: bytes) -> bytes:
    """The subject's bytes: Certificate { TBSCertificate { [0] version?, 4 fields, subject ... } ... }."""
    body = _only(certificate, _SEQUENCE)
    tag, start, end = _element(body, 0)
    if tag != _SEQUENCE:
        raise UnreadableName("not a certificate")
    fields = body[start:end]
    at = 0
    if fields[:1] == bytes([_VERSION]):
        _, _, at = _element(fields, at)
    for _ in ("serial number", "signature algorithm", "issuer", "validity"):
        _, _, at = _element(fields, at)
    _, _, end = _element(fields, at)
    return fields[at:end]


def _attributes(content: bytes, all_utf8: bool) -> list[str]:
    """``TYPE=value`` of each attribute of one set, in the order of the certificate."""
    texts = [_attribute(each, all_utf8) for each in _all(content, _SEQUENCE)]
    if not texts:
        raise UnreadableName("a set without attributes")
    return texts


def _attribute(content: bytes, all_utf8: bool) -> str:
    tag, start, end = _element(content, 0)
    if tag != _OID:
        raise UnreadableName("an attribute without a type")
    oid = _dotted(content[start:end])
    value = content[end:]
    value_tag, start, end = _element(value, 0)
    if end != len(value):
        raise UnreadableName("an attribute with more than one value")
    if value_tag == _BMP and not all_utf8 and any(0xD8 <= high <= 0xDF for high in value[start:end:2]):
        raise UnreadableName("a BMPString with letters that it cannot have")
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value_tag not in _TEXTS:
        return f"{keyword or oid}=#{value.hex()}"
    text = value[start:end].decode("utf-8" if all_utf8 else _TEXTS[value_tag], "replace")
    return f"{keyword}={_escaped(text)}"


def _escaped(text: str) -> str:
    escaped = text.translate(_ESCAPED)
    inner = escaped.lstrip(_BLANKS)
    leading = escaped[: len(escaped) - len(inner)]
    middle = inner.rstrip(_BLANKS)
    trailing = inner[len(middle) :]
    return "".join([*(f"\\{blank}" for blank in leading), middle, *(f"\\{blank}" for blank in trailing)])


def _dotted(content: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers or content[-1] & 0x80:
        raise UnreadableName("a broken object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(str(each) for each in (first, numbers[0] - first * 40, *numbers[1:]))


# -- DER: tag, length, content ----------------------------------------------------------------------------------


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the element at `at`, where its content starts, and where it ends."""
    if at + 2 > len(data):
        raise UnreadableName("cut short")
    tag, length = data[at], data[at + 1]
    start = at + 2
    if length & 0x80:
        count = length & 0x7F
        if not 1 <= count <= 4 or start + count > len(data):
            raise UnreadableName("a length that is none")
        length = int.from_bytes(data[start : start + count])
        start += count
    if start + length > len(data):
        raise UnreadableName("cut short")
    return tag, start, start + length


def _only(data: bytes, wanted: int) -> bytes:
    """The content of an element that must fill all of `data`."""
    tag, start, end = _element(data, 0)
    if tag != wanted or end != len(data):
        raise UnreadableName("not the structure of a name")
    return data[start:end]


def _all(data: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of consecutive elements of one kind."""
    at = 0
    while at < len(data):
        tag, start, end = _element(data, at)
        if tag != wanted:
            raise UnreadableName("not the structure of a name")
        yield data[start:end]
        at = end
