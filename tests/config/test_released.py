"""Configurations of released versions: every key is still read, and means what it meant."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import Config, Severity, findings
from config.loader import parse_file
from quotas.entities import QuotaKey
from quotas.units import KINDS, amount_of
from testkit.configuration_schema import validator

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
RELEASED = sorted(GOLDEN.glob("config_*/*.toml"))
NEWER: set[str] = set()
"""Sections that no released version has."""


def with_what_is_commented_out(file: Path) -> str:
    """Keys without a default are there as comments of the form ``# key = value``. The file of groups is not there."""
    text = re.sub(r'^# (?!path)(["\w.]+ = )', r"\1", file.read_text(), flags=re.MULTILINE)
    # Without these two the file is contradictory: they need another kind.
    return text.replace('kind = "off" ', 'kind = "files" ').replace('kind = "sqlite" ', 'kind = "topic" ')


def differences(written: Any, read: Any, path: str) -> Iterator[str]:
    """Keys whose value is read as another one."""
    if isinstance(written, dict):
        for key, value in written.items():
            yield from differences(value, read[key], f"{path}.{key}")
    elif isinstance(written, list) and written and isinstance(written[0], dict):
        for at, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from differences(one, other, f"{path}.{at}")
    elif number_of(written, read, path) != read:
        yield path


def number_of(written: Any, read: Any, path: str) -> Any:
    """What is written, as a number if it is a quota with a unit."""
    if isinstance(written, str) and isinstance(read, int | float):
        return amount_of(written, KINDS[QuotaKey(path.rpartition(".")[2])])
    return written


@pytest.mark.parametrize("file", RELEASED, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_each_key_of_a_released_version_is_read_and_has_its_value(file: Path) -> None:
    text = with_what_is_commented_out(file)
    config = parse_file(text, name=file.name, environment={})
    assert isinstance(config, Config)
    assert [each for each in findings(config) if each.severity is Severity.ERROR] == []
    tables = tomllib.loads(text)
    assert list(validator().iter_errors(tables)) == []
    assert list(differences(tables, config.model_dump(mode="json"), "")) == []


def test_the_released_files_have_all_sections_of_their_version() -> None:
    sections = {key for file in RELEASED for key in tomllib.loads(file.read_text())}
    assert sections == Config.model_fields.keys() - NEWER
