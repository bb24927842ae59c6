"""The JSON Schema of the configuration, for editors: `python -m testkit.configuration_schema` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from config.json_schema import schema_text

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.schema.json"


def page() -> str:
    """The file as it should be."""
    return schema_text()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
