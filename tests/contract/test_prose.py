"""What people read keeps to the rules of `testkit/prose.toml`."""

from __future__ import annotations

import subprocess
from typing import Final

import pytest

from testkit import prose

PAGE: Final = """\
# Heading

Clients that were told to wait.
Nobody waits, says `told`.

* [held](told.md) back

| cell that is owed | fine |

```
told
```
"""
PROGRAM: Final = '''\
"""Whoever asks is told."""


def ask(name: str) -> str:
    # Nobody is here.
    return f"{name} was told {len('by whoever calls')} times" + "held"
'''


@pytest.mark.parametrize("kind", prose.KINDS)
def test_every_group_of_files_has_some(kind: str) -> None:
    assert all(len(prose.files_of(group)) > 20 for group in prose.RULES["groups"][kind])


def test_comments_are_looked_at_in_every_program_and_test() -> None:
    looked_at = {file for group in prose.RULES["groups"]["comments"] for file in prose.files_of(group)}
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=prose.ROOT, capture_output=True, text=True, check=True)
    assert set(tracked.stdout.split()) - looked_at == {"setup.py"}


def test_pages_are_read_without_code_and_targets_of_links() -> None:
    found = [(line, what.split('"')[1]) for line, what in prose.check("pages", "page.md", PAGE)]
    assert found == [(3, "told"), (3, "Nobody"), (6, "held"), (8, "owed")]


def test_names_of_arguments_and_cells_of_a_table_are_read_apart() -> None:
    program = 'def ask():\n    """Ask.\n\n    Args:\n        told, held: nobody\n    """\n'
    assert [what.split('"')[1] for _, what in prose.check("comments", "a.py", program)] == ["nobody"]
    row = " | ".join(["one two three"] * 20)
    assert list(prose.check("texts", "a.py", f'x = "{row}"')) == []


def test_texts_are_what_a_program_shows_and_comments_are_the_rest() -> None:
    texts = [(line, what.split('"')[1]) for line, what in prose.check("texts", "a.py", PROGRAM)]
    comments = [(line, what.split('"')[1]) for line, what in prose.check("comments", "a.py", PROGRAM)]
    assert texts == [(6, "told"), (6, "whoever")]
    assert comments == [(5, "Nobody"), (1, "told"), (1, "Whoever")]


def test_a_long_sentence_and_a_line_that_could_be_wrapped_are_found() -> None:
    sentence = " ".join(["word"] * 36)
    assert [what for _, what in prose.check("texts", "a.py", f'x = "{sentence}."')] == [
        'a sentence of 36 words: "word word word word word word ..."'
    ]
    assert list(prose.check("texts", "a.py", f'x = "{sentence[:-5]}. {sentence[:-5]}."')) == []
    line = " ".join(["word"] * 21)
    assert list(prose.check("pages", "a.md", f"{line}\n| {line} |\n```\n{line}\n```\n")) == [
        (1, "a line of 104 columns")
    ]
    assert list(prose.check("pages", "a.md", f"- {'x' * 120}\n")) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.html", "<p>one\ntold</p><script>const told = 1;\nsay(`was told ${told}`)</script>"),
        ("rules.yml", "      - alert: X\n        expr: told\n        annotations:\n          summary: held back"),
        ("a.toml", "told = 1  # nobody knows"),
    ],
)
def test_other_files_are_read_by_what_people_see_of_them(file: str, text: str) -> None:
    assert [line for line, _ in prose.check("texts", file, text)] == {
        "a.html": [3, 2],
        "rules.yml": [4],
        "a.toml": [1],
    }[file]
