"""The JSON Schema of the configuration, for editors: `python -m testkit.configuration_schema` writes it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from config.json_schema import json_schema, schema_text

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.schema.json"


def page() -> str:
    """The file as it should be."""
    return schema_text()


@cache
def validator() -> Any:
    """Jsonschema's validator of configurations; its class checks the schema itself.

    The import builds 40 grammars, which takes 2 s of CPU. Each worker of pytest-xdist imports all files of tests, so
    this import is not at the top of a module.
    """
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    return Draft202012Validator(json_schema())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
