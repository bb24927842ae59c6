"""The JSON Schema of the configuration, for editors: `python -m testkit.configuration_schema` writes it."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from config.json_schema import json_schema, schema_text

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.schema.json"

_GRAMMARS: Final = "rfc3987_syntax"


def page() -> str:
    """The file as it should be."""
    return schema_text()


@cache
def validator() -> Any:
    """Jsonschema's validator of configurations; its class checks the schema itself.

    Each worker of pytest-xdist imports all files of tests, so this import is not at the top of a module. It does
    without a package that builds 38 grammars for formats of addresses, which takes 3 s of CPU: no format is checked.
    """
    before = sys.modules.get(_GRAMMARS)
    sys.modules[_GRAMMARS] = before  # type: ignore[assignment]  # with None the import fails, which is allowed
    try:
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    finally:
        if before is None:
            del sys.modules[_GRAMMARS]
    return Draft202012Validator(json_schema())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
