"""Whether the modules on the data path are compiled here (docs/decisions/0024-compiled-core.md).

Python prefers a module's shared library to its source, even if the source has changed since. So the build
(`setup.py`) writes a list of the compiled sources, and a gateway does not start with libraries of other sources.
"""

from __future__ import annotations

import hashlib
import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
"""The directory of the packages."""

_LIST: Final = "gateway/runtime/compiled_core.json"
_SESSION: Final = "gateway/session/session.py"


def core_name(root: Path = ROOT) -> str:
    """Whether the core is compiled, in words."""
    return "compiled core" if _is_compiled(root / _SESSION) else "pure Python"


def stale_modules(root: Path = ROOT) -> list[str]:
    """Sources that differ from those of their compiled modules; empty if no module is compiled.

    Args:
        root: the directory of the packages.
    """
    try:
        made_of: dict[str, str] = json.loads((root / _LIST).read_text())
    except FileNotFoundError:
        made_of = {_SESSION: ""}
    return [
        name
        for name, digest in made_of.items()
        if _is_compiled(root / name) and hashlib.sha256((root / name).read_bytes()).hexdigest() != digest
    ]


def _is_compiled(source: Path) -> bool:
    return any(source.with_suffix(suffix).exists() for suffix in EXTENSION_SUFFIXES)
