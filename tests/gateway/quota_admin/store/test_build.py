"""The configuration names the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.quota_admin.store.build import build_store
from gateway.quota_admin.store.memory_store import MemoryStore
from gateway.quota_admin.store.sqlite_store import SqliteStore
from gateway.quota_admin.store.topic_store import TopicStore
from testkit.gateway import gateway_config


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ({"kind": "memory"}, MemoryStore),
        ({"kind": "sqlite", "data_dir": "data"}, SqliteStore),
        ({"kind": "topic"}, TopicStore),
    ],
)
def test_each_kind_has_its_store_and_nothing_is_touched_yet(
    section: dict[str, Any], kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = build_store(gateway_config(["127.0.0.1:1"], first_broker_port=2, quota_store=section), {})
    assert isinstance(store, kind)
    assert (store.version, store.read_only, list(tmp_path.iterdir())) == (0, None, [])
