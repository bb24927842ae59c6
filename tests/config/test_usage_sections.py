"""The section [usage]."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import config
from config.usage_sections import UsageSettings

HEAD = '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'


def test_nothing_is_recorded_by_default() -> None:
    assert UsageSettings().kind == "off"
    assert UsageSettings().privacy == "plain"


def test_files_need_a_directory() -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.parse(HEAD + '[usage]\nkind = "files"\n', name="f")
    assert caught.value.lines == ["f: usage.directory: required, since kind is files"]


def test_hashed_names_in_a_topic_need_a_file_for_the_salt() -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.parse(HEAD + '[usage]\nkind = "topic"\nprivacy = "hashed"\n', name="f")
    assert len(caught.value.lines) == 1
    assert caught.value.lines[0].startswith("f: usage.salt_file: required")


@pytest.mark.parametrize(
    "given",
    [
        {"gateway_id": "a/b"},
        {"gateway_id": ""},
        {"gateway_id": "x" * 65},
        {"topic": "no topic"},
        {"kind": "kafka"},
        {"rotate_seconds": 0},
        {"keep_bytes": 1},
        {"max_rows": 0},
        {"max_queued_bytes": 0},
        {"topic_partitions": 0},
        {"topic_replication_factor": 0},
        {"directory": ""},
    ],
)
def test_values_out_of_range_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        UsageSettings.model_validate(given)


def test_a_change_needs_a_restart() -> None:
    from gateway.server.reload import plan

    before = config.parse(HEAD, name="f")
    after = config.parse(HEAD + '[usage]\nkind = "files"\ndirectory = "/d"\n', name="f")
    assert set(plan(before, after).needs_restart) == {"usage.kind", "usage.directory"}
