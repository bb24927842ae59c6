"""What the compiled modules do without, since mypyc makes something else of it (docs/decisions/0034-two-cores.md)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import mypyc
import pytest

ROOT: Final = Path(__file__).parents[2]
SETUP: Final = (ROOT / "setup.py").read_text()
CORE: Final = re.findall(r'^    "(.*[.]py)",$', SETUP, re.MULTILINE)

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def parts(function: Function) -> Iterator[ast.AST]:
    """All of a function but what is in functions within it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, _SCOPES):
            left.extend(ast.iter_child_nodes(node))


def within(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in nodes:
        yield from ast.walk(node)


def names(nodes: Iterable[ast.AST], use: type[ast.expr_context] = ast.expr_context) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, use)}


def yields(nodes: Iterator[ast.AST]) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes)


def ranges(function: Function) -> Iterator[tuple[ast.For, ast.Call]]:
    for node in parts(function):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and names([node.iter.func]) == {"range"}:
            yield node, node.iter


def bounds_that_move(function: Function) -> Iterator[ast.AST]:
    """`range(n)` where the loop sets n: it looks at n in each turn."""
    for loop, call in ranges(function):
        if names(call.args) & names(within(loop.body), ast.Store):
            yield loop


def loop_variables_used_outside(function: Function) -> Iterator[ast.AST]:
    """A variable of a loop over a range, used outside: it is set though there is no turn."""
    loops = [loop for loop, _ in ranges(function)]
    for loop in loops:
        variable = names([loop.target])
        inside = {node for other in loops if names([other.target]) == variable for node in ast.walk(other)}
        if variable & names((node for node in parts(function) if node not in inside), ast.Load):
            yield loop


def errors_of_one_name(function: Function) -> Iterator[ast.AST]:
    """Two handlers that call their errors alike: the second is a TypeError where it is of another class."""
    handlers = defaultdict(list)
    for node in parts(function):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            handlers[node.name].append(node)
    for alike in handlers.values():
        if len({ast.unparse(each.type) for each in alike if each.type}) > 1:
            yield alike[0]


def walks_that_clean_up(function: Function) -> Iterator[ast.AST]:
    """A `yield` in a `try`: of a generator that is dropped, `finally` and `except GeneratorExit` never run."""
    for node in parts(function):
        if isinstance(node, ast.Try | ast.With) and yields(within(node.body)):
            yield node


def walks_within_functions(function: Function) -> Iterator[ast.AST]:
    """A generator within a function: asked again behind its end, it is an AttributeError."""
    for node in parts(function):
        if isinstance(node, _SCOPES) and not isinstance(node, ast.Lambda | ast.ClassDef) and yields(parts(node)):
            yield node


def ends_by_hand(function: Function) -> Iterator[ast.AST]:
    """`raise StopIteration` in a generator: it is no RuntimeError."""
    for node in parts(function):
        if isinstance(node, ast.Raise) and node.exc is not None and "StopIteration" in names(ast.walk(node.exc)):
            yield node


def all_or_nothing(function: Function) -> Iterator[ast.AST]:
    """`extend` of what may raise: what came before that is lost."""
    for node in parts(function):
        match node:
            case ast.Call(ast.Attribute(attr="extend"), [taken], []) if not isinstance(taken, ast.List | ast.Tuple):
                yield node


RULES: Final = (
    bounds_that_move,
    loop_variables_used_outside,
    errors_of_one_name,
    walks_that_clean_up,
    walks_within_functions,
    ends_by_hand,
    all_or_nothing,
)


def broken(source: str) -> list[tuple[str, int]]:
    """(rule, line) of each place that breaks one."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    return [
        (rule.__name__, getattr(place, "lineno", 0))
        for function in functions
        for rule in RULES
        for place in rule(function)
    ]


@pytest.mark.parametrize("name", CORE)
def test_compiled_source_has_nothing_that_mypyc_makes_otherwise(name: str) -> None:
    assert broken((ROOT / name).read_text()) == []


EXAMPLES: Final = {
    "bounds_that_move": "def f(n):\n for _ in range(n):\n  n = n - 1",
    "loop_variables_used_outside": "def f(n):\n for i in range(n):\n  pass\n return i",
    "errors_of_one_name": "def f():\n try:\n  g()\n except KeyError as e:\n  h(e)\n except OSError as e:\n  h(e)",
    "walks_that_clean_up": "def f():\n try:\n  yield 1\n finally:\n  g()",
    "walks_within_functions": "def f():\n def g():\n  yield 1\n return g()",
    "ends_by_hand": "def f():\n yield 1\n raise StopIteration(2)",
    "all_or_nothing": "def f(a, b):\n a.extend(b)",
}


@pytest.mark.parametrize("rule", EXAMPLES)
def test_each_rule_finds_its_case(rule: str) -> None:
    assert [found for found, _ in broken(EXAMPLES[rule])] == [rule]


def test_slices_of_bytes_are_still_to_be_mended() -> None:
    """Red once mypyc does so itself: then `mended_runtime` goes."""
    (wrong,) = re.findall(r'^SLICE_LENGTH = "(.*)"$', SETUP, re.MULTILINE)
    assert wrong in (Path(mypyc.__file__).parent / "lib-rt" / "bytes_ops.c").read_text()
