"""Distinguished names in DER, including unusual ones, for tests of principals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from hypothesis import strategies as st

# Object identifier, tag of the value, its bytes.
Attribute: TypeAlias = tuple[str, int, bytes]

COMMON_NAME: Final = "2.5.4.3"
UTF8: Final = 0x0C
PRINTABLE: Final = 0x13
BMP: Final = 0x1E
TAGS: Final = (UTF8, PRINTABLE, 0x14, 0x16, 0x1B, BMP, 0x1C, 0x12, 0x03, 0x04)
OIDS: Final = (
    COMMON_NAME,
    *(f"2.5.4.{last}" for last in (4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 42, 43, 44, 46, 65)),
    "0.9.2342.19200300.100.1.1",
    "0.9.2342.19200300.100.1.25",
    "1.2.840.113549.1.9.1",
    "1.3.6.1.4.1.311.60.2.1.3",
    "2.999.1",
    "1.39.4294967296",
)


def element(tag: int, content: bytes) -> bytes:
    """One element in DER."""
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    size = (length.bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + length.to_bytes(size) + content


def oid(dotted: str) -> bytes:
    """An object identifier."""
    first, second, *others = map(int, dotted.split("."))
    content = b"".join(_base128(number) for number in (first * 40 + second, *others))
    return element(0x06, content)


def _base128(number: int) -> bytes:
    septets = [number & 0x7F]
    while number := number >> 7:
        septets.append(number & 0x7F | 0x80)
    return bytes(reversed(septets))


def name(sets: Sequence[Sequence[Attribute]]) -> bytes:
    """A Name: sets of attributes in the order of the certificate."""
    content = b"".join(
        element(0x31, b"".join(element(0x30, oid(kind) + element(tag, value)) for kind, tag, value in each))
        for each in sets
    )
    return element(0x30, content)


def common_name(text: str) -> bytes:
    """A Name with a common name only."""
    return name([[(COMMON_NAME, UTF8, text.encode())]])


def certificate(subject: bytes, *, version: bool = True) -> bytes:
    """The part of a certificate around the subject, without a signature."""
    fields = [
        element(0xA0, element(0x02, b"\x02")) if version else b"",
        element(0x02, b"\x01"),
        element(0x30, oid("1.2.840.113549.1.1.11") + b"\x05\x00"),
        common_name("the issuer"),
        element(0x30, element(0x17, b"260101000000Z") + element(0x17, b"360101000000Z")),
        subject,
        element(0x30, b""),
    ]
    return element(0x30, element(0x30, b"".join(fields)) + element(0x30, b"") + element(0x03, b"\x00"))


ODD_TEXTS: Final = (
    "", " ", "  a  ", "#a", "a#b", "a b", ',+"\\<>;=', "a\x00b", "\r a \r", "\na\n", "é", "Ünïcode, Inc.", "日本",
    "\U0001f600", "\u0130", "a=b", "\ta", "~!@$%^&*()_-{}|:'?/`", "\u00a0a\u00a0", "\x7f\x80", " # ", "\\", "ς Σ",
)  # fmt: skip

_values = st.one_of(
    st.sampled_from([text.encode() for text in ODD_TEXTS]),
    # Without an alphabet, Hypothesis tries to encode each character there is, which takes seconds.
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(str.encode),
    st.text(alphabet=' ,+"\\<>;=#\r\n\x00a', max_size=8).map(str.encode),
    st.binary(max_size=6),
)
_attributes = st.tuples(st.sampled_from(OIDS), st.sampled_from(TAGS), _values)
names: Final = st.lists(st.lists(_attributes, min_size=1, max_size=3), max_size=4).map(name)
