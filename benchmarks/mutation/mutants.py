"""Mutants: cosmic-ray's operators at places chosen by a seed.

A place is identified by the text of its line, not by its file. So code that only moves stays in the sample.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

Place: TypeAlias = tuple[str, tuple[int, int], str]
"""File, line and column, kind of operator."""

Change: TypeAlias = tuple[str, int]
"""Operator, and the index among its changes of the file."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change.

    Attributes:
        key: the same for the same change of the same line, in whichever file it is.
        file: the module's file, from the root of the project.
        line: number of the changed line.
        operator: cosmic-ray's name of the operator.
        lines: the line's text before and after the change.
        source: the module's changed source.
        covering: whenever the changed code runs, one of these lines runs.
    """

    key: str
    file: str
    line: int
    operator: str
    lines: tuple[str, str]
    source: str
    covering: frozenset[int]


def places(files: list[Path], usable: Callable[[str, frozenset[int]], bool]) -> dict[Place, list[Change]]:
    """All possible changes in the bodies of functions, by their place.

    An operator that can be replaced with ten others is one place. Otherwise most of the sample would be comparisons.

    Args:
        files: files relative to the project's root.
        usable: whether a statement may be changed, from its file and lines.
    """
    found: dict[Place, list[Change]] = defaultdict(list)
    for file in files:
        source = file.read_text()
        nodes = list(ast_nodes(get_ast(source)))
        lines = {line for line, together in _in_functions(source).items() if usable(str(file), together)}
        for name in sorted(operator_names()):
            operator = get_operator(name)
            if not operator.arguments():
                starts = [start for node in nodes for start, _ in operator().mutation_positions(node)]
                for occurrence, start in enumerate(starts):
                    if start[0] in lines:
                        found[str(file), start, name.partition("_")[0]].append((name, occurrence))
    return found


def sample(found: dict[Place, list[Change]], number: int, seed: int) -> list[Mutant]:
    """`number` mutants, each of another place. Changes that do not compile or mean the same do not count."""
    sources = {file: Path(file).read_text() for file, _, _ in found}
    in_functions = {file: _in_functions(source) for file, source in sources.items()}
    alike: Counter[str] = Counter()
    by_key: dict[str, Place] = {}
    for place in sorted(found):
        file, (line, column), kind = place
        text = sources[file].splitlines()[line - 1]
        known_by = f"{text.strip()} {column - len(text) + len(text.lstrip())} {kind}"
        by_key[hashlib.sha256(f"{seed} {known_by} {alike[known_by]}".encode()).hexdigest()] = place
        alike[known_by] += 1
    chosen: list[Mutant] = []
    for key in sorted(by_key):
        file, (line, _), _ = place = by_key[key]
        name, occurrence = found[place][int(key, 16) % len(found[place])]
        changed = mutate_code(sources[file], get_operator(name)(), occurrence)
        if _compiles(changed) and _meaning(changed) != _meaning(sources[file]):
            lines = (sources[file].splitlines()[line - 1].strip(), changed.splitlines()[line - 1].strip())
            covering = in_functions[file][line]
            chosen.append(Mutant(f"{key[:16]} {name}", file, line, name, lines, changed, covering))
        if len(chosen) == number:
            return chosen
    raise SystemExit(f"only {len(chosen)} mutants are to be had, not {number}")


def _compiles(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example about comparisons with `is`
        try:
            compile(source, "mutant", "exec")
        except SyntaxError:
            return False
    return True


def _meaning(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for of_types in {"annotation", "returns"} & set(node._fields):
            setattr(node, of_types, None)
    return ast.dump(tree)


def _in_functions(source: str) -> dict[int, frozenset[int]]:
    """The lines of functions, each with the lines that run with its statement: for a compound statement its head."""
    found: dict[int, frozenset[int]] = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            # Inner statements come later and replace outer ones.
            for statement in (each for child in function.body for each in ast.walk(child)):
                if isinstance(statement, ast.stmt):
                    body, end = getattr(statement, "body", None), statement.end_lineno or 0
                    head = range(statement.lineno, body[0].lineno if body else end + 1)
                    for line in range(statement.lineno, end + 1):
                        found[line] = frozenset({*head, line})
    return found
