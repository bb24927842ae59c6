"""The table of docs/reference/upstream.md, from the code's needs: `python -m testkit.upstream_page` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.upstream.needs import NEEDS, Need, api_name
from testkit.marked_part import with_part

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "upstream.md"


def table() -> str:
    """A row for each need."""
    lines = ["| API | Version | Needed with | What for | Without it |", "|---|---:|---|---|---|"]
    lines += [
        f"| {need.name} | {need.version} | {_where(need)} | {need.purpose} | {need.without} |"
        for need in NEEDS
    ]
    return "\n".join(lines)


def _where(need: Need) -> str:
    where = f"`{need.where}`" if " = " in need.where else need.where
    if need.only_beside is None:
        return where
    api, version = need.only_beside
    return f"{where}, if the brokers offer {api_name(api)} {version}"


def page() -> str:
    """The page as it should be."""
    return with_part(PAGE.read_text(encoding="utf-8"), "needs", table())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
