"""In which line a key is."""

import tomllib

import pytest

from config.places import Places

TEXT = '''# a comment with [brackets]
top = 1

[table]
key = "[x]"
list = [
  "a",  # ]
  "b",
]
text = """
[not.a.head]
key = 2
"""
inline = {one = 1, two = {three = 3}}
dotted.name = 1
"quo ted" = 1

[[many]]
name = "first"
[many.below]
key = 1
[[many.below.deep]]
key = 1
[[many]]
name = "second"
[many.below]
key = 2
[[many.below.deep]]
[[many.below.deep]]
key = 3
[table.later]
key = 1
'''


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n")])
@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("top: x", 2),
        ("table: x", 4),
        ("table.key: x", 5),
        ("table.list.1: x", 6),
        ("table.text: x", 10),
        ("table.inline.two.three: x", 14),
        ("table.dotted.name: x", 15),
        ('table."quo ted": x', 16),
        ("table.missing: required", 4),
        ("many.first: x", 18),
        ("many.0.below.key: x", 21),
        ("many.first.below.deep.0.key: x", 23),
        ("many.second.name: x", 25),
        ('many.1.below.key (name="second"): x', 27),
        ("many.second.below.deep.1.key: x", 30),
        ("many.second.below.deep.7: x", 26),
        ("table.later.key: x", 32),
        ("none: x", None),
        ("is no key", None),
        ("", None),
    ],
)
def test_line_of_a_message_is_that_of_its_key(text: str, message: str, line: int | None) -> None:
    assert Places(text, tomllib.loads(text)).line_of(message) == line


def test_what_follows_a_statement_that_is_too_long_has_no_line() -> None:
    text = "[t]\na = [\n" + '"]",\n' * 3000 + "]\nb = 1\n"
    places = Places(text, tomllib.loads(text))
    assert places.line_of("t.b: x") == 1


def test_a_long_array_costs_no_more_than_some_readings_of_the_text() -> None:
    """Each of its lines may be its end. What follows has no place then, which is better than minutes of work."""
    rows = "".join('  { name = "g", users = ["u"], note = "%s" },\n' % ("x" * 200) for _ in range(900))
    text = f"first = 1\nlist = [\n{rows}]\nlast = 1\n"
    places = Places(text, tomllib.loads(text))
    assert places.line_of("first: wrong") == 1
    assert places.line_of("last: wrong") is None
