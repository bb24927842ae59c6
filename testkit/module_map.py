"""The map of all packages and modules in docs/architecture.md: `python -m testkit.module_map` writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Final

from testkit.marked_part import with_part

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"
PACKAGES: Final = (
    "gateway",
    "quotas",
    "protocol",
    "config",
    "pipeline",
    "sluice",
    "embedded_kafka",
    "pinned_jars",
    "quota_client",
    "monitoring",
    "simulation",
    "testkit",
    "campaigns",
    "benchmarks",
)


def modules() -> Iterator[Path]:
    """Every module; a package comes before its modules."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"), key=_place)


def _place(path: Path) -> tuple[Path, bool, str]:
    return path.parent, path.name != "__init__.py", path.name


@cache
def first_line(path: Path) -> str:
    """The first line of a module's docstring; "" without one."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def page() -> str:
    """docs/architecture.md with the map as it should be."""
    return with_part(PAGE.read_text(encoding="utf-8"), "map", "".join(_lines()))


def _lines() -> Iterator[str]:
    for folder, paths in groupby(modules(), key=lambda path: path.parent):
        yield f"\n### {folder.relative_to(ROOT)}/\n\n"
        rows = {path.name: first_line(path).replace("|", "\\|") for path in paths}
        if "__init__.py" in rows:
            yield fill(rows.pop("__init__.py"), 100, break_on_hyphens=False) + "\n"
        if rows:
            yield "\n| Module | What it is |\n|---|---|\n"
            yield from (f"| `{name}` | {line} |\n" for name, line in rows.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
