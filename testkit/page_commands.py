"""The commands of the documentation's pages, as tests run them and as a reader types them.

A block of commands is fenced as `console`. Each command begins with `$ `, and its output follows. A line `...` stands
for omitted lines, and `...` within a line for any text. A comment directly before a block says how it is tested:

* No comment: a test types the commands into a shell, block after block, and compares the output with the page.
* `<!-- not run: REASON -->`: no test runs it.
* `<!-- runs until the end: TEXT -->`: the command keeps its terminal. The test continues when it prints TEXT.

`<!-- before this page: COMMAND, until TEXT -->` is such a command that must run before the page's commands. A block
of
language with `title="NAME"` is a file: the test writes it where it types the commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
PAGES: Final = (
    DOCS / "index.md",
    *sorted(page for folder in ("tutorial", "how-to") for page in (DOCS / folder).glob("*.md")),
)
"""The pages whose commands are checked."""

_BLOCK: Final = re.compile(
    r"(?:^ *<!-- (?P<comment>[^>]*) -->\n+)?"
    r'^(?P<indent> *)```(?P<language>\S*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^ *```$',
    re.MULTILINE | re.DOTALL,
)
_BEFORE: Final = re.compile(r"^<!-- before this page: (.+), until (.+) -->$", re.MULTILINE)
_INLINE: Final = re.compile(r"`((?:sluice|sluice-pipeline|make) [^`]+)`")
_NOT_RUN: Final = "not run: "
_STAYS: Final = "runs until the end: "
_PROMPT: Final = "$ "


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and the lines that the page shows below it."""

    text: str
    output: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        page: where it is.
        line: of the page, of its first line.
        language: behind the fence.
        title: of a file: its name.
        text: its content without indentation.
        not_run: why no test runs it; None: a test runs it.
        ready_text: for a command that keeps running: its output when the next command can be typed.
    """

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    not_run: str | None
    ready_text: str | None

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[Command]:
        """The commands of a `console` block.

        Raises:
            ValueError: the block does not begin with a command.
        """
        found: list[list[str]] = []
        open_line = False
        for line in self.text.splitlines():
            if line.startswith(_PROMPT):
                found.append([line.removeprefix(_PROMPT)])
            elif not found:
                raise ValueError(f"{self.place}: a console block begins with {_PROMPT!r}")
            elif open_line:
                found[-1][0] += f"\n{line}"
            else:
                found[-1].append(line)
            open_line = len(found[-1]) == 1 and found[-1][0].endswith("\\")
        return [Command(text, tuple(line for line in lines if line)) for text, *lines in found]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        comment = match["comment"] or ""
        lines = match["text"].splitlines()
        found.append(
            Block(
                page,
                text.count("\n", 0, match.start("text")) + 1,
                match["language"],
                match["title"],
                "".join(line.removeprefix(match["indent"]) + "\n" for line in lines),
                comment.removeprefix(_NOT_RUN).strip() if comment.startswith(_NOT_RUN) else None,
                comment.removeprefix(_STAYS) if comment.startswith(_STAYS) else None,
            )
        )
    return found


def before(page: Path) -> list[tuple[str, str]]:
    """Each command that must run before those of a page, and its output when it is ready."""
    return [(command, ready) for command, ready in _BEFORE.findall(page.read_text(encoding="utf-8"))]


def session(page: Path) -> list[Block]:
    """The blocks of a page that a test runs after the commands that must run before."""
    run = [
        each for each in blocks(page) if (each.language == "console" or each.title) and each.not_run is None
    ]
    return run if any(block.language == "console" for block in run) else []


def inline_commands(page: Path) -> list[str]:
    """Commands within sentences, only those with arguments."""
    return [text for text in _INLINE.findall(_BLOCK.sub("", page.read_text(encoding="utf-8"))) if " " in text]


def programs(command: str) -> Iterator[list[str]]:
    """The programs that a line of shell starts, each with its arguments and without redirections."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in lexer:
        if re.fullmatch(r"[|&;()]+", word):
            yield from [words] if words else []
            words = []
        elif re.fullmatch(r"[<>]+&?", word):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(word)
    if words:
        yield words
