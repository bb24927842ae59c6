from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import JobError
from pipeline.store import HadoopStore, LocalStore, Store, held, is_local, store_of


def use(store: Store, root: str) -> None:
    """What the jobs do with a store."""
    assert store.read(f"{root}/none") is None
    assert store.names(f"{root}/none") == []
    store.write(f"{root}/a/one", b"1")
    store.write(f"{root}/a/one", b"two")
    assert store.read(f"{root}/a/one") == b"two"
    store.write(f"{root}/a/other", b"")
    assert [name for name in store.names(f"{root}/a") if not name.startswith(".")] == ["one", "other"]
    store.rename(f"{root}/a", f"{root}/deep/b")
    assert store.read(f"{root}/deep/b/one") == b"two"
    assert "a" not in store.names(root)
    store.delete(f"{root}/deep/b/one")
    assert store.read(f"{root}/deep/b/one") is None
    store.delete(f"{root}/deep")
    store.delete(f"{root}/deep")
    assert "deep" not in store.names(root)


def test_this_machine_can_do_what_the_jobs_ask(tmp_path: Path) -> None:
    use(LocalStore(), str(tmp_path))
    use(LocalStore(), f"file://{tmp_path}")


@pytest.mark.spark
def test_hadoops_client_can_do_what_the_jobs_ask(spark: Any, tmp_path: Path) -> None:
    use(HadoopStore(spark), f"file://{tmp_path}")


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore()
    store.write(f"{tmp_path}/ledger", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write(f"{tmp_path}/ledger", b"new")
    assert store.read(f"{tmp_path}/ledger") == b"old"
    assert store.names(str(tmp_path)) == ["ledger"]


def test_only_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with held(f"{tmp_path}/lock"), pytest.raises(JobError, match="held by another"), held(f"{tmp_path}/lock"):
        pass
    with held(f"{tmp_path}/lock"):
        pass


def test_paths_with_a_scheme_are_hadoops() -> None:
    assert is_local("/data/out") and is_local("out") and is_local("file:///data")  # noqa: PT018
    assert not is_local("hdfs://name/out")
    assert isinstance(store_of("/data"), LocalStore)
    with pytest.raises(JobError, match="not on this machine"):
        store_of("s3a://bucket/out")
