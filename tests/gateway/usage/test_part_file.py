"""A file while it is written: whole lines only, whatever fails, and a name of its own only when it is complete."""

import errno
import gzip
import os
import shutil
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.usage import part_file
from gateway.usage.line import Line
from gateway.usage.part_file import FILE_NAME, PartFile, WholeLines, read_pieces, recover
from tests.gateway.usage.files import line, seqs


def make(directory: Path, *lines: Line, seq: int = 0) -> PartFile:
    part = PartFile(directory, "a", 1_700, seq)
    for each in lines:
        part.append(each)
    return part


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read_part(part: PartFile) -> list[bytes]:
    with part.path.open("rb") as file:
        return list(WholeLines(read_pieces(file.fileno())))


def test_a_file_is_hidden_until_it_is_published(tmp_path: Path) -> None:
    part = make(tmp_path, line(0), line(1))
    assert names(tmp_path) == [".usage-a-1700-0000000000.jsonl.gz.part"]
    assert part.publish() == tmp_path / "usage-a-1700-0000000000.jsonl.gz"
    assert names(tmp_path) == ["usage-a-1700-0000000000.jsonl.gz"]
    assert seqs(tmp_path) == [0, 1]
    assert FILE_NAME.fullmatch(names(tmp_path)[0])


def test_each_line_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    part = make(tmp_path)
    for seq in range(3):
        part.append(line(seq))
        assert len(read_part(part)) == seq + 1
    part.discard()
    assert names(tmp_path) == []


def failing(monkeypatch: pytest.MonkeyPatch, call: str, code: int, *, when: Callable[[int], bool]) -> None:
    """The system call fails at those of its calls, counted from 0."""
    real = getattr(os, call)
    calls = iter(range(1_000_000))

    def fake(*arguments: Any) -> Any:
        if when(next(calls)):
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    monkeypatch.setattr(part_file.os, call, fake)


def test_g02_a_line_that_does_not_fit_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = make(tmp_path, line(0))
    real = os.pwrite

    def half(fd: int, data: Any, at: int) -> int:
        if len(data) > 20:
            return real(fd, bytes(data)[:20], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(part_file.os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        part.append(line(1, padding=500))
    assert part.path.stat().st_size == part.bytes
    monkeypatch.undo()
    part.append(line(1, padding=500))
    part.append(line(2))
    part.publish()
    assert seqs(tmp_path) == [0, 1, 2]


def test_g03_after_failed_fsync_lines_go_to_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = make(tmp_path, line(0))
    before = part.path.stat().st_ino
    failing(monkeypatch, "fsync", errno.EIO, when=lambda call: call == 0)
    with pytest.raises(OSError, match="Input/output"):
        part.publish()
    part.append(line(1))
    published = part.publish()
    assert published.stat().st_ino != before
    assert seqs(tmp_path) == [0, 1]
    assert names(tmp_path) == [published.name]


@pytest.mark.parametrize("call", ["fsync", "rename", "pwrite"])
def test_g02_a_failed_publication_is_tried_again_with_nothing_lost_or_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    part = make(tmp_path, line(0, padding=3_000))
    failing(monkeypatch, call, errno.ENOSPC, when=lambda call: call < 2)
    for _ in range(2):
        with pytest.raises(OSError):
            part.publish()
    part.append(line(1))
    part.publish()
    assert seqs(tmp_path) == [0, 1]


def test_an_error_after_the_rename_publishes_the_same_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = make(tmp_path, line(0))
    failing(monkeypatch, "fsync", errno.EIO, when=lambda call: call == 1)
    with pytest.raises(OSError):
        part.publish()
    monkeypatch.undo()
    for _ in range(2):
        try:
            part.publish()
        except FileNotFoundError:
            continue
        break
    assert seqs(tmp_path) == [0]


def test_a_directory_deleted_under_the_file_is_made_again_and_nothing_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "usage"
    part = make(directory, line(0, padding=2_000))
    shutil.rmtree(directory)
    part.append(line(1))
    shutil.rmtree(directory)
    part.publish()
    assert seqs(directory) == [0, 1]


def test_a_directory_that_can_not_be_made_is_an_error_and_can_be_tried_again(tmp_path: Path) -> None:
    directory = tmp_path / "mount" / "usage"
    directory.mkdir(parents=True)
    part = make(directory, line(0))
    shutil.rmtree(tmp_path / "mount")
    with pytest.raises(FileNotFoundError):
        part.append(line(1))
    (tmp_path / "mount").mkdir()
    part.append(line(1))
    part.publish()
    assert seqs(directory) == [0, 1]


def test_what_a_killed_process_left_is_published_up_to_its_last_whole_line(tmp_path: Path) -> None:
    part = make(tmp_path, *(line(seq, padding=300) for seq in range(3)))
    part.close()
    with part.path.open("r+b") as file:
        file.truncate(part.bytes - 60)
    assert recover(part.path) == tmp_path / "usage-a-1700-0000000000.jsonl.gz"
    assert seqs(tmp_path) == [0, 1]
    assert len(names(tmp_path)) == 1


def test_a_part_that_somebody_writes_is_left_alone(tmp_path: Path) -> None:
    part = make(tmp_path, line(0))
    assert recover(part.path) is None
    part.append(line(1))
    part.publish()
    assert seqs(tmp_path) == [0, 1]


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"no gzip at all", gzip.compress(b'{"v":1', mtime=0)])
def test_a_part_without_a_whole_line_is_removed(tmp_path: Path, content: bytes) -> None:
    left = tmp_path / ".usage-a-1-0000000000.jsonl.gz.part"
    left.write_bytes(content)
    assert recover(left) is None
    assert names(tmp_path) == []


def test_every_cut_of_a_file_gives_its_whole_lines(tmp_path: Path) -> None:
    part = make(tmp_path)
    ends = []
    for seq in range(4):
        part.append(line(seq))
        ends.append(part.bytes)
    data = part.publish().read_bytes()
    for cut in range(len(data) + 1):
        found = list(WholeLines(iter([data[:cut]])))
        assert len(found) >= sum(end <= cut for end in ends)
        assert found == [line(seq).data for seq in range(len(found))]


def test_a_flipped_byte_ends_the_reading_and_loses_no_line_before_it(tmp_path: Path) -> None:
    part = make(tmp_path)
    ends = []
    for seq in range(4):
        part.append(line(seq, padding=100))
        ends.append(part.bytes)
    data = part.publish().read_bytes()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        lines = WholeLines(iter([flipped]))
        found = list(lines)
        before = sum(end <= at for end in ends)
        assert found[:before] == [line(seq, padding=100).data for seq in range(before)]
        # What the head says of the time and the system is no one's check.
        assert not lines.whole or at < 10


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xff" * 100, bytes(range(256))])
def test_what_stands_behind_the_last_line_of_a_part_costs_none(tmp_path: Path, tail: bytes) -> None:
    part = make(tmp_path, *(line(seq, padding=100) for seq in range(50)))
    part.close()
    with part.path.open("ab") as file:
        file.write(tail)
    recovered = recover(part.path)
    assert recovered is not None
    assert names(tmp_path) == [recovered.name]
    assert seqs(tmp_path) == list(range(50))


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_only_a_stream_with_its_end_is_whole(tmp_path: Path, cut: int) -> None:
    data = make(tmp_path, line(0)).publish().read_bytes()
    for pieces, whole in (([data], True), ([data, data], True), ([data[:-cut]], False), ([], False)):
        lines = WholeLines(iter(pieces))
        list(lines)
        assert lines.whole is whole


def test_a_bomb_is_read_in_bounded_pieces_and_a_line_without_an_end_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = zlib.compress(b"\n" * 300_000, 9, wbits=31)
    assert sum(1 for _ in WholeLines(iter([bomb]))) == 300_000
    monkeypatch.setattr(part_file, "_MAX_LINE_BYTES", 1 << 20)
    bomb = zlib.compress(b"x" * 20_000_000, 9, wbits=31)
    tracemalloc.start()
    assert list(WholeLines(iter([bomb]))) == []
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 10_000_000
