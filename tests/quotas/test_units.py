"""Amounts with units: exact in both directions, and a wrong unit is named with those that are allowed."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import QuotaKey
from quotas.units import KINDS, Kind, UnitError, amount_of, amount_text, has_unit

FACTORS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
           "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip


@given(st.decimals(0, 10**6, places=3), st.sampled_from(sorted(FACTORS)), st.sampled_from(["", " "]))
def test_an_amount_is_what_decimal_arithmetic_says(number: Decimal, unit: str, space: str) -> None:
    exact = number * FACTORS[unit]
    text = f"{number:f}{space}{unit}"
    if exact % 1:
        with pytest.raises(UnitError, match="no whole number"):
            amount_of(text, Kind.SIZE)
    else:
        assert amount_of(text, Kind.SIZE) == int(exact)
        assert isinstance(amount_of(text, Kind.SIZE), int)
        assert amount_of(f"{text}/s", Kind.BYTE_RATE) == int(exact)


@given(st.sampled_from(QuotaKey), st.one_of(st.integers(1, 2**62).map(float), st.floats(5e-324, 1e308)))
def test_every_value_is_written_so_that_it_comes_back(key: QuotaKey, value: float) -> None:
    text = amount_text(key, value)
    assert (float(amount_of(text, KINDS[key])) if has_unit(text) else float(text)) == value


@pytest.mark.parametrize(("value", "text"), [
    (500, "500"), (1000, "1kB"), (1024, "1KiB"), (1048576, "1MiB"), (10_000_000, "10MB"), (1_500_000, "1500kB"),
    (512_000, "512kB"), (10 * 2**20, "10MiB"), (1_048_577, "1048577"), (10**15, "1000TB"),
    (2**62, "4611686018427387904"),
])  # fmt: skip
def test_byte_rates_are_written_as_a_person_would(value: int, text: str) -> None:
    assert amount_text(QuotaKey.PRODUCER_BYTE_RATE, float(value)) == text


@pytest.mark.parametrize(("text", "kind", "value"), [
    ("250%", Kind.PERCENT, 250), ("33.3%", Kind.PERCENT, 33.3), ("5/s", Kind.RATE, 5), ("0.5/s", Kind.RATE, 0.5),
    ("20/s", Kind.WHOLE_RATE, 20), ("1_000kB", Kind.SIZE, 1_000_000), ("1KB", Kind.SIZE, 1000),
])  # fmt: skip
def test_other_units(text: str, kind: Kind, value: float) -> None:
    assert amount_of(text, kind) == value


@pytest.mark.parametrize(("text", "kind", "words"), [
    ("10mb", Kind.SIZE, "unknown unit mb (did you mean 10MB?)"), ("10M", Kind.SIZE, "(did you mean 10MB or 10MiB?)"),
    ("10Mi", Kind.SIZE, "(did you mean 10MiB?)"), ("10MB/s", Kind.SIZE, "unknown unit MB/s (did you mean 10MB?)"),
    ("5/s", Kind.BYTE_RATE, "unknown unit /s; give a number of bytes per second"),
    ("5%", Kind.RATE, "unknown unit %; give a number per second, alone or with /s"),
    ("0.5/s", Kind.WHOLE_RATE, "is 0.5, which is no whole number"), ("-5MB", Kind.SIZE, "give a number of bytes"),
    ("5", Kind.SIZE, "give a number"), ("", Kind.SIZE, "give a number"), ("MB", Kind.SIZE, "give a number"),
    ("1" * 5000 + "MB", Kind.SIZE, "give a number"), ("١MB", Kind.SIZE, "give a number"),
    ("1e3MB", Kind.SIZE, "give a number"),
])  # fmt: skip
def test_what_is_no_amount_says_what_is_allowed(text: str, kind: Kind, words: str) -> None:
    with pytest.raises(UnitError) as caught:
        amount_of(text, kind)
    assert words in str(caught.value)
    assert kind.allowed in str(caught.value)
