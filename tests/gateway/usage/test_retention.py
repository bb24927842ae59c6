"""Which files go: the oldest first, until what is left is young and little enough."""

import os
from pathlib import Path

from gateway.usage.retention import KeptFile, Retention, complete_files, left_parts, to_remove


def kept(*sizes: int) -> list[KeptFile]:
    return [KeptFile(Path(str(at)), size, float(at)) for at, size in enumerate(sizes)]


def gone(
    files: list[KeptFile], *, keep_bytes: int = 1 << 40, keep_s: float = 1e9, now_s: float = 10
) -> list[str]:
    return [each.path.name for each in to_remove(files, Retention(keep_bytes, keep_s), now_s=now_s)]


def test_nothing_goes_while_there_is_room() -> None:
    assert gone(kept(10, 10, 10), keep_bytes=30, keep_s=10) == []


def test_the_oldest_go_until_the_rest_is_small_enough() -> None:
    assert gone(kept(10, 10, 10), keep_bytes=29) == ["0"]
    assert gone(kept(10, 10, 10), keep_bytes=10) == ["0", "1"]


def test_what_is_too_old_goes_however_small() -> None:
    assert gone(kept(1, 1, 1), keep_s=8.5) == ["0", "1"]


def test_only_complete_usage_files_count(tmp_path: Path) -> None:
    for name in (
        "usage-a-1-0000000002.jsonl.gz",
        "usage-b.x_y-1-0000000001.jsonl.gz",
        ".usage-a-1-0000000003.jsonl.gz.part",
        "usage-a-1.jsonl.gz",
        "notes.txt",
        ".usage-salt",
    ):
        (tmp_path / name).write_bytes(b"123")
    os.utime(tmp_path / "usage-a-1-0000000002.jsonl.gz", (50, 50))
    assert [(each.path.name, each.bytes) for each in complete_files(tmp_path)] == [
        ("usage-a-1-0000000002.jsonl.gz", 3),
        ("usage-b.x_y-1-0000000001.jsonl.gz", 3),
    ]
    assert [path.name for path in left_parts(tmp_path)] == [".usage-a-1-0000000003.jsonl.gz.part"]
