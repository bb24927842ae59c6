"""Whether the modules on the data path are compiled here (docs/decisions/0024-compiled-core.md).

Python takes a module's shared library before its source, whatever has become of the source since. So the build
(`setup.py`) leaves a list of what it compiled, and a gateway does not start with libraries of other sources.
"""

from __future__ import annotations

import hashlib
import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
"""Where the packages are."""

_LIST: Final = "gateway/runtime/compiled_core.json"
_SESSION: Final = "gateway/session/session.py"


def core_name(root: Path = ROOT) -> str:
    """For people: what runs."""
    return "compiled core" if _is_compiled(root / _SESSION) else "pure Python"


def stale_modules(root: Path = ROOT) -> list[str]:
    """Sources that are not what their compiled modules were made of; none where nothing is compiled.

    Args:
        root: where the packages are.
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
