"""Each module imports only what an installation of it has: what is in requirements.lock, or what its extra brings.

`tests/install/` imports them in such installations; this one is quick, and names the line.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from typing import Final

import pytest
from packaging.requirements import Requirement

from testkit.installed import ROOT, extra_of, modules

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES: Final = modules()
OURS: Final = {name.partition(".")[0] for name in MODULES}


def named(distribution: str) -> str:
    """As locks write it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def with_dependencies(asked: list[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """Distributions that come when these are asked for, by what each says that it needs."""
    found: set[str] = set()
    for text in asked:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        found.add(named(requirement.name))
        found |= _needed_by(requirement.name, frozenset(requirement.extras))
    return found


@cache
def _needed_by(distribution: str, extras: frozenset[str]) -> frozenset[str]:
    return frozenset(with_dependencies(requires(distribution) or [], extras))


@cache
def available_with(extra: str | None) -> set[str]:
    """Distributions of an installation, with this extra if it is one."""
    more = PROJECT["optional-dependencies"][extra] if extra else []
    return with_dependencies([*PROJECT["dependencies"], *more])


@cache
def imports_of(source: str) -> list[tuple[str, int, bool]]:
    """What a module imports: name, line, and whether the module itself runs without it.

    It does where only a function imports it, or where an `ImportError` is caught.
    """
    return list(_imports(ast.parse(source), later=False))


def _imports(tree: ast.AST, *, later: bool) -> Iterator[tuple[str, int, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, later) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name if name in MODULES else node.module, node.lineno, later) for name in names)
        else:
            optional = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(node, ast.Try) and any("ImportError" in ast.dump(each) for each in node.handlers)
            )
            yield from _imports(node, later=later or optional)


def faults_of(module: str, source: str) -> list[str]:
    """The imports of a module that an installation of it does not have."""
    extra = extra_of(module)
    # The help of a job needs no extra, and numba is made use of where it is.
    later_too = {"pipeline", "kernels"} if module.startswith("pipeline.") else set()
    more = set().union(*map(available_with, later_too))
    found = []
    for name, line, later in imports_of(source):
        if later and name in MODULES:
            continue
        available = available_with(extra) | (more if later else set())
        if any(not distributions_of(top) & available for top in comes_with(name)):
            found.append(f"{module}:{line}: {name}")
    return found


@cache
def comes_with(name: str) -> frozenset[str]:
    """The packages of others that are imported with this one, at the latest when it is imported."""
    top = name.partition(".")[0]
    if name not in MODULES:
        return frozenset() if top in OURS or top in sys.stdlib_module_names else frozenset({top})
    # Modules do not import each other in a circle: see the contracts of pyproject.toml.
    found = imports_of(MODULES[name].read_text())
    return frozenset().union(*(comes_with(each) for each, _, later in found if not later))


# Not at the top: every process that collects tests would look through all that is installed.
_distributions = cache(packages_distributions)


def distributions_of(top: str) -> set[str]:
    """Those that a package at the top level may come from."""
    return {named(each) for each in _distributions().get(top, ())}


@pytest.mark.slow
def test_m06_every_module_imports_what_its_installation_has() -> None:
    found = {module: faults_of(module, path.read_text()) for module, path in MODULES.items()}
    assert len(found) > 250
    assert [fault for faults in found.values() for fault in faults] == []


@pytest.mark.parametrize(("module", "source"), [
    ("quotas.rate", "import mypy"), ("config.loader", "import hypothesis.strategies"), ("gateway.app", "import moto"),
    ("protocol.codec", "from setuptools import setup"), ("gateway.cli.top", "def run():\n    import textual"),
    ("gateway.cli.main", "from gateway.cli import top_screen"), ("pipeline.jobs.report", "import numpy"),
    ("pipeline.jobs.report", "from pipeline.report.report import make"), ("pipeline.cli", "import pyspark.sql"),
    ("pipeline.replay.dispatch", "import numba"), ("gateway.observability.otlp", "import textual"),
])  # fmt: skip
def test_what_an_installation_lacks_is_found(module: str, source: str) -> None:
    (fault,) = faults_of(module, source)
    assert fault.startswith(f"{module}:")


@pytest.mark.parametrize(("module", "source"), [
    ("quotas.rate", "if TYPE_CHECKING:\n    import mypy"), ("gateway.cli.top_screen", "from rich.text import Text"),
    ("pipeline.jobs.report", "def run():\n    import numpy\n    from pipeline.report.report import make"),
    ("pipeline.replay.dispatch", "try:\n    import numba\nexcept ImportError:\n    numba = None"),
    ("gateway.app", "def f():\n    from gateway.observability.otlp import OtlpTraces"),
])  # fmt: skip
def test_what_an_installation_has_or_does_without_is_no_fault(module: str, source: str) -> None:
    assert faults_of(module, source) == []


@pytest.mark.parametrize(("lock", "extras"), [
    ("requirements.lock", (None,)), ("requirements-pipeline.lock", ("pipeline", "kernels")),
    ("requirements-dev.lock", (None, "traces", "top")),
])  # fmt: skip
def test_locks_hold_all_that_comes_with_what_is_asked_for(lock: str, extras: tuple[str | None, ...]) -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), re.MULTILINE))
    assert set().union(*map(available_with, extras)) - locked == set(), "run: make lock"
