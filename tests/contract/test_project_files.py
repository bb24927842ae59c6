"""README, changelog, hooks and templates agree with the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def text(name: str) -> str:
    """The text of a file."""
    return (ROOT / name).read_text(encoding="utf-8")


def test_readme_is_short_and_names_the_two_commands_of_a_newcomer() -> None:
    readme = text("README.md")
    assert len(readme.splitlines()) <= 90
    assert all(command in readme for command in ("`make run`", "`make test`"))


def test_the_changelog_has_the_version_of_the_project() -> None:
    sections = re.findall(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE)
    assert sections[:2] == ["Unreleased", PROJECT["version"]]


def test_hooks_run_the_commands_of_make_static() -> None:
    (recipe,) = re.findall(r"^static:.*\n((?:\t.*\n)+)", text("Makefile"), re.MULTILINE)
    commands = {line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines() if "$(BIN)" in line}
    (repo,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert {hook["entry"] for hook in repo["hooks"]} == commands


def test_issue_templates_are_forms_with_distinct_fields() -> None:
    forms = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))]
    fields = [[field["id"] for field in form["body"]] for form in forms if "body" in form]
    assert len(fields) == 2
    assert all(len(set(ids)) == len(ids) > 2 for ids in fields)


def test_the_licence_is_the_one_that_the_project_names() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text("LICENSE")
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
