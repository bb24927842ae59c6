"""Finds words and sentences that are hard for newcomers: `python -m testkit.prose [FILE ...]`.

The rules are in `testkit/prose.toml`. Pages are checked for words, long sentences and long lines. The texts that the
product and its programs show are checked too: `--help`, messages, the help of metrics, alerts, the status page, the
report. Docstrings and comments, also those of tests, are checked only for words.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
RULES: Final[dict[str, Any]] = tomllib.loads((ROOT / "testkit" / "prose.toml").read_text(encoding="utf-8"))
KINDS: Final = ("pages", "texts", "comments")

_WORDS: Final = [
    (re.compile(rf"(?<!\w)(?:{rule['pattern']})(?!\w)", re.IGNORECASE), rule["instead"])
    for rule in RULES["rule"]
]
_CODE: Final = re.compile(r"(`+).+?\1", re.DOTALL)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|<https?:[^>]*>")
_END: Final = re.compile(r"(?<=[.!?:;])[\"')*_]*\s+|(?<=[.!?:;])[\"')*_]*$")
_ITEM: Final = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_TAG: Final = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>|\{[{%#].*?[}%#]\}", re.DOTALL)
_SCRIPT: Final = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)
_SCRIPT_TEXT: Final = re.compile(r"\"([^\"\n]* [^\"\n]*)\"|`([^`]* [^`]*)`")
_NAMES: Final = re.compile(r"^ +[a-z_]\w*(?:, [a-z_]\w*)*:(?= )", re.MULTILINE)
"""Introductions of arguments and attributes, before their descriptions."""
_ANNOTATION: Final = re.compile(r"^\s*(?:summary|description): (.*)$", re.MULTILINE)


class Finding(NamedTuple):
    """One finding.

    Attributes:
        file: path relative to the project's root.
        line: of the paragraph, text or comment.
        what: the fault, and what to write instead.
    """

    file: str
    line: int
    what: str


def findings(kind: str, only: Iterable[str] = ()) -> list[Finding]:
    """All findings of one kind.

    Args:
        kind: "pages", "texts" (what programs show), "comments" (docstrings and comments).
        only: the files to check; none: all files.
    """
    files = {file for group in RULES["groups"][kind] for file in files_of(group)}
    wanted = set(only) or files
    return [
        Finding(file, line, what)
        for file in sorted(files & wanted)
        for line, what in check(kind, file, (ROOT / file).read_text(encoding="utf-8"))
    ]


def files_of(group: str) -> set[str]:
    """The files of a group of the rule file."""
    found = {path.relative_to(ROOT) for pattern in RULES[group]["files"] for path in ROOT.glob(pattern)}
    return {str(path) for path in found if not any(path.match(pattern) for pattern in RULES[group]["except"])}


def check(kind: str, file: str, text: str) -> Iterator[tuple[int, str]]:
    """The findings in one file: lines and faults."""
    if kind == "pages":
        yield from _long_lines(text)
        for line, paragraph in _paragraphs(text):
            yield from ((line, what) for what in (*_words(paragraph), *_long_sentences(paragraph)))
    elif kind == "comments":
        for line, said in _comments(file, text):
            yield from ((line, what) for what in _words(_CODE.sub("X", said)))
    else:
        for line, said in _texts(file, text):
            # A text with several lines is a table, a form or a statement. Each line and cell is checked separately.
            parts = re.split(r"[\n|]", said)
            yield from ((line, what) for part in parts for what in (*_words(part), *_long_sentences(part)))


def _words(text: str) -> Iterator[str]:
    for pattern, instead in _WORDS:
        for found in pattern.finditer(text):
            yield f'"{found[0]}": rather {instead}'


def _long_sentences(text: str) -> Iterator[str]:
    for sentence in _END.split(text):
        words = len(sentence.split())
        if words > RULES["max_sentence_words"]:
            yield f'a sentence of {words} words: "{" ".join(sentence.split()[:6])} ..."'


def _long_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that could be wrapped. Leaves out rows of tables, code, comments and lines without spaces."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        at_most = RULES["max_line_columns"]
        if len(line) > at_most and not inside and not line.startswith(("|", "<!--")):
            head = line[: at_most + 1]
            if " " in head[len(head) - len(head.lstrip()) :].removeprefix("- "):
                yield number, f"a line of {len(line)} columns"


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and cells of tables, without code and targets of links."""
    begun, lines, inside = 1, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        item = _ITEM.match(line)
        if fence or inside or item or not line.strip() or line.startswith(("|", "#")):
            if lines:
                yield begun, _plain("\n".join(lines))
            lines = []
        inside ^= fence
        if fence or inside or not line.strip():
            continue
        if line.startswith("|"):
            yield from ((number, _plain(cell)) for cell in re.split(r"(?<!\\)\|", line) if cell.strip())
        else:
            begun = begun if lines else number
            lines.append(line[item.end() :] if item else line)


def _plain(text: str) -> str:
    return _LINK.sub(lambda found: found[1] or "X", _CODE.sub("X", text))


def _texts(file: str, text: str) -> Iterator[tuple[int, str]]:
    if file.endswith(".html"):
        for found in _SCRIPT.finditer(text):
            for said in _SCRIPT_TEXT.finditer(found[1]):
                yield (
                    _line(text, found.start(1) + said.start()),
                    said[1] or re.sub(r"\$\{.*?\}", "X", said[2]),
                )
        shown = _TAG.sub(lambda tag: "\0" + "\n" * tag[0].count("\n"), text)
        for number, line in enumerate(shown.splitlines(), 1):
            yield from ((number, said) for said in line.split("\0") if said.strip())
    elif file.endswith(".toml"):
        yield from (
            (at, line.partition("#")[2]) for at, line in enumerate(text.splitlines(), 1) if "#" in line
        )
    elif file.endswith(".yml"):
        yield from ((_line(text, found.start(1)), found[1]) for found in _ANNOTATION.finditer(text))
    elif file.endswith(".py"):
        yield from _strings(ast.parse(text))


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts of more than one word in a program, without docstrings; inserted values become X."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.JoinedStr):
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            yield node.lineno, said
            yield from (
                found
                for part in node.values
                if isinstance(part, ast.FormattedValue)
                for found in _strings(part)
            )
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and " " in node.value:
                yield node.lineno, node.value
        else:
            yield from _strings(node)


def _comments(file: str, text: str) -> Iterator[tuple[int, str]]:
    if not file.endswith(".py"):
        return
    # Tokenizing takes two thirds of the time. Few files have such a word after a "#" of any kind.
    if any(_words("\n".join(re.findall("#.*", text)))):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    for node in _statements([ast.parse(text)]):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, _NAMES.sub("", node.value.value)


def _statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """These statements and all statements within them, without expressions."""
    for node in nodes:
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from _statements(getattr(node, name, ()))


def main() -> int:
    """Prints the findings in all files, or in the named files. Returns 1 if there are any."""
    found = [finding for kind in KINDS for finding in findings(kind, sys.argv[1:])]
    for each in found:
        print(f"{each.file}:{each.line}: {each.what}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
