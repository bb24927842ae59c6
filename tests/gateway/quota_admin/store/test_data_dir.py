"""The directory of a store: one gateway at a time, and remembered."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway.quota_admin.store.data_dir import DataDirectory
from gateway.quota_admin.store.interface import StoreError


def test_it_is_made_for_its_owner_alone_with_all_that_is_above_it(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "a" / "b")
    directory.acquire()
    assert (
        stat.S_IMODE((tmp_path / "a").stat().st_mode)
        == stat.S_IMODE((tmp_path / "a/b").stat().st_mode)
        == 0o700
    )
    assert stat.S_IMODE((tmp_path / "a/b/quotas.lock").stat().st_mode) == 0o600
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


def test_it_remembers_which_store_was_made_in_it(tmp_path: Path) -> None:
    assert DataDirectory(tmp_path).store_id() is None
    DataDirectory(tmp_path).set_store_id("one")
    DataDirectory(tmp_path).set_store_id("two")
    assert DataDirectory(tmp_path).store_id() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["quotas.id"]


def test_a_name_that_can_not_be_read_is_no_store_that_was_never_there(tmp_path: Path) -> None:
    (tmp_path / "quotas.id").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"quotas\.id can't be read"):
        DataDirectory(tmp_path).store_id()


def test_where_a_file_is_in_the_way_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        DataDirectory(tmp_path / "file" / "quotas").acquire()
