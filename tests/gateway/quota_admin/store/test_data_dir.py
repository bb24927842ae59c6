"""The configuration names the store; its directory is of one gateway at a time, and remembered."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gateway.quota_admin.store.build import build_store
from gateway.quota_admin.store.data_dir import DataDirectory
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.memory_store import MemoryStore
from gateway.quota_admin.store.sqlite_store import SqliteStore
from gateway.quota_admin.store.topic_store import TopicStore
from testkit.gateway import gateway_config


def test_it_is_made_for_its_owner_alone_with_all_that_is_above_it(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "a" / "b")
    directory.acquire()
    for path, mode in {"a": 0o700, "a/b": 0o700, "a/b/quotas.lock": 0o600}.items():
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == mode
    directory.release()


def test_a_second_gateway_is_refused_with_the_first_ones_process_until_it_lets_go(tmp_path: Path) -> None:
    first, second = DataDirectory(tmp_path), DataDirectory(tmp_path)
    first.acquire()
    with pytest.raises(StoreError, match=rf"in use by another gateway \(process {os.getpid()}\)"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()


def test_it_remembers_which_store_was_made_in_it_and_says_what_is_in_the_way(tmp_path: Path) -> None:
    assert DataDirectory(tmp_path).store_id() is None
    DataDirectory(tmp_path).set_store_id("one")
    DataDirectory(tmp_path).set_store_id("two")
    assert DataDirectory(tmp_path).store_id() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["quotas.id"]
    (tmp_path / "quotas.id").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"quotas\.id can't be read"):
        DataDirectory(tmp_path).store_id()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        DataDirectory(tmp_path / "file" / "quotas").acquire()


@pytest.mark.parametrize(("section", "kind"), [
    ({"kind": "memory"}, MemoryStore), ({"kind": "sqlite", "data_dir": "data"}, SqliteStore),
    ({"kind": "topic"}, TopicStore),
])  # fmt: skip
def test_each_kind_has_its_store(
    section: dict[str, Any], kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = build_store(gateway_config(["127.0.0.1:1"], first_broker_port=2, quota_store=section), {})
    assert isinstance(store, kind)
    assert (store.version, store.read_only, list(tmp_path.iterdir())) == (0, None, [])
