"""Files: when they are complete, what a start finds, and which go."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from gateway.usage import file_sink
from gateway.usage.file_sink import FileSettings, FileWriter
from gateway.usage.part_file import PartFile
from gateway.usage.retention import KeptFile, Retention, complete_files, in_order, latest_boot, left_parts, to_remove
from tests.gateway.usage.files import line, seqs


class Writing:
    """A writer with clocks of its own.

    Attributes:
        latest: whose wall clock the file system has.
    """

    latest: Writing

    def __init__(
        self,
        directory: Path,
        *,
        boot: int = 1,
        rotate_s: float = 60,
        rotate_bytes: int = 1 << 20,
        keep_bytes: int = 1 << 30,
        keep_s: float = 3_600,
        wall_s: float = 1e9,
    ) -> None:
        Writing.latest = self
        self.directory = directory
        self.now_s = 0.0
        self.wall_s = wall_s
        settings = FileSettings(directory, rotate_s, rotate_bytes, Retention(keep_bytes, keep_s))
        self.writer = FileWriter(
            settings, "a", boot, clock=lambda: self.now_s, wall_ms=lambda: int(self.wall_s * 1000)
        )
        self.writer.open()

    def write(self, *numbers: int, padding: int = 0) -> None:
        for seq in numbers:
            self.writer.write(line(seq, padding=padding))
            self.writer.maintain()
            self.now_s += 1
            self.wall_s += 1

    def files(self) -> int:
        return len(list(self.directory.glob("usage-*")))


@pytest.fixture(autouse=True)
def files_have_the_time_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = PartFile.publish

    def published(part: PartFile) -> Path:
        path = publish(part)
        os.utime(path, (Writing.latest.wall_s, Writing.latest.wall_s))
        return path

    monkeypatch.setattr(PartFile, "publish", published)


def test_a_file_is_complete_after_its_time(tmp_path: Path) -> None:
    writing = Writing(tmp_path, rotate_s=3)
    writing.write(*range(7))
    assert writing.files() == 1
    assert seqs(tmp_path) == [0, 1, 2, 3]
    assert (writing.writer.delivered.lines, writing.writer.pending.lines) == (4, 3)


def test_a_file_is_complete_also_when_nothing_more_comes(tmp_path: Path) -> None:
    writing = Writing(tmp_path, rotate_s=3)
    writing.write(0)
    writing.now_s = 10
    writing.writer.maintain()
    assert seqs(tmp_path) == [0]


def test_a_file_is_complete_with_its_bytes(tmp_path: Path) -> None:
    writing = Writing(tmp_path, rotate_bytes=3_000)
    writing.write(*range(20), padding=1_000)
    assert writing.files() > 3
    assert all(path.stat().st_size < 6_000 for path in tmp_path.glob("usage-*"))
    writing.writer.close(0.0)
    assert seqs(tmp_path) == list(range(20))


def test_the_oldest_files_go_when_there_is_too_much(tmp_path: Path) -> None:
    writing = Writing(tmp_path, rotate_s=1, keep_bytes=2_000)
    for seq in range(40):
        writing.write(seq)
    total = sum(path.stat().st_size for path in tmp_path.glob("usage-*"))
    assert total <= 2_000
    assert writing.writer.removed > 5
    left = seqs(tmp_path)
    assert left == list(range(left[0], left[-1] + 1))
    assert left[-1] >= 38


def test_old_files_go_at_the_start_whoever_wrote_them(tmp_path: Path) -> None:
    old = tmp_path / "usage-former.name-1-0000000000.jsonl.gz"
    old.write_bytes(b"x")
    os.utime(old, (1e9 - 4_000, 1e9 - 4_000))
    young = tmp_path / "usage-a-1-0000000000.jsonl.gz"
    young.write_bytes(b"x")
    os.utime(young, (1e9 - 2_000, 1e9 - 2_000))
    assert Writing(tmp_path).writer.removed == 1
    assert not old.exists()


def test_l05_what_was_just_completed_stays_after_the_wall_clock_was_ahead(tmp_path: Path) -> None:
    # Space for about ten files.
    writing = Writing(tmp_path, rotate_s=1, keep_bytes=7_000, keep_s=7 * 86_400)
    writing.write(*range(5), padding=500)
    writing.wall_s += 86_400
    writing.write(*range(5, 10), padding=500)
    writing.wall_s -= 86_400
    writing.write(*range(10, 30), padding=500)
    kept_now = seqs(tmp_path)
    assert kept_now == list(range(kept_now[0], 30))
    assert len(kept_now) > 5


def test_l05_another_name_and_a_start_under_a_wrong_clock_change_nothing_in_that(tmp_path: Path) -> None:
    writing = Writing(tmp_path, boot=10**12 + 86_400_000, rotate_s=1)
    writing.wall_s += 86_400
    writing.write(*range(5), padding=500)
    writing.writer.close(0.0)
    for path in tmp_path.glob("usage-*"):
        path.rename(path.with_name(path.name.replace("usage-a-", "usage-former-")))
    after = Writing(tmp_path, boot=10**12, rotate_s=1, keep_bytes=4_000)
    after.write(*range(10, 14), padding=500)
    assert {10, 11, 12, 13} < set(seqs(tmp_path))
    assert latest_boot(tmp_path, "former") == 10**12 + 86_400_000
    assert latest_boot(tmp_path, "a") == 10**12
    assert latest_boot(tmp_path, "b") == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_l05_wall_clock_that_jumps_ahead_makes_no_file_too_old(tmp_path: Path, restarted: bool) -> None:
    writing = Writing(tmp_path, rotate_s=1, keep_s=100)
    writing.write(*range(43), padding=500)
    writing.wall_s += 11 * 86_400
    if restarted:
        writing.writer.close(0.0)
        ahead_s = writing.wall_s
        writing = Writing(tmp_path, boot=2, rotate_s=1, keep_s=100, wall_s=ahead_s)
    writing.write(*range(43, 60), padding=500)
    assert writing.writer.removed == 0
    # Time itself makes them old.
    writing.write(*range(60, 190), padding=500)
    assert 0 not in seqs(tmp_path)


def test_a_start_publishes_what_a_killed_gateway_left(tmp_path: Path) -> None:
    killed = Writing(tmp_path, boot=1)
    killed.write(0, 1, 2)
    killed.writer._part.close()  # type: ignore[union-attr]
    started = Writing(tmp_path, boot=2)
    assert started.writer.recovered == 1
    assert seqs(tmp_path) == [0, 1, 2]
    started.write(0)
    started.writer.close(0.0)
    assert seqs(tmp_path) == [0, 1, 2, 0]


def test_a_part_that_can_not_be_recovered_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / ".usage-a-1-0000000000.jsonl.gz.part"
    left.write_bytes(b"")

    def full(part: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_sink, "recover", full)
    writing = Writing(tmp_path, boot=2)
    writing.write(0)
    writing.writer.close(0.0)
    assert seqs(tmp_path) == [0]
    assert left.exists()


def test_g02_a_file_that_can_not_be_completed_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_names: object) -> None:
        raise PermissionError(13, "Permission denied")

    writing = Writing(tmp_path, rotate_s=1, keep_bytes=3_000)
    taken = 0
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refused)
        for seq in range(20):
            with contextlib.suppress(PermissionError):
                writing.writer.write(line(seq, padding=1_000))
                taken = seq + 1
            with contextlib.suppress(PermissionError):
                writing.writer.maintain()
            writing.now_s += 1
        assert 1 < taken < 10
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6_000
    writing.write(taken, padding=1_000)
    writing.writer.close(0.0)
    # All that were taken have been published, though retention keeps the last only.
    assert writing.writer.delivered.lines == taken + 1


def kept(*sizes: int) -> list[KeptFile]:
    return [KeptFile(Path(str(at)), size, float(at)) for at, size in enumerate(sizes)]


def gone(files: list[KeptFile], *, keep_bytes: int = 1 << 40, keep_s: float = 1e9, now_s: float = 10) -> list[str]:
    return [each.path.name for each in to_remove(files, Retention(keep_bytes, keep_s), now_s=now_s)]


def test_the_oldest_go_until_the_rest_is_young_and_small_enough() -> None:
    assert gone(kept(10, 10, 10), keep_bytes=30, keep_s=10) == []
    assert gone(kept(10, 10, 10), keep_bytes=29) == ["0"]
    assert gone(kept(10, 10, 10), keep_bytes=10) == ["0", "1"]
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
    assert [(each.path.name, each.bytes) for each in in_order(complete_files(tmp_path), now_s=1e12)] == [
        ("usage-a-1-0000000002.jsonl.gz", 3),
        ("usage-b.x_y-1-0000000001.jsonl.gz", 3),
    ]
    assert [path.name for path in left_parts(tmp_path)] == [".usage-a-1-0000000003.jsonl.gz.part"]
