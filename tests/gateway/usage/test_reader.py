"""Reading records back: whatever is in the directory, nothing is counted twice or left out in silence."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.usage.part_file import PartFile
from gateway.usage.reader import read_last, rows_of
from tests.gateway.usage.files import line


def write(directory: Path, *numbers: int, boot: int = 1, publish: bool = True) -> PartFile:
    part = PartFile(directory, "a", boot, numbers[0])
    for seq in numbers:
        part.append(line(seq))
    if publish:
        part.publish()
    return part


def found(directory: Path, seconds: int = 10_000) -> list[int]:
    return [each["seq"] for each in read_last(directory, seconds).lines]


def test_complete_files_and_the_one_under_way_are_read(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    under_way = write(tmp_path, 2, 3, publish=False)
    assert found(tmp_path) == [0, 1, 2, 3]
    under_way.discard()


def test_only_the_last_seconds_count_back_from_the_newest_record(tmp_path: Path) -> None:
    write(tmp_path, *range(20))
    assert found(tmp_path, seconds=5) == [15, 16, 17, 18, 19]


def test_a_line_that_is_in_two_files_counts_once(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    name = next(tmp_path.iterdir())
    (tmp_path / name.name.replace("0000000000", "0000000001")).write_bytes(name.read_bytes())
    assert found(tmp_path) == [0, 1]


def test_gaps_are_counted_for_each_start_by_itself(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 5)
    readings = read_last(tmp_path, 10_000)
    assert readings.missing() == 3
    assert readings.unread_files == []


@pytest.mark.parametrize("content", [
    b"not gzip", gzip.compress(b"not json\n", mtime=0), gzip.compress(b"[1]\n", mtime=0),
    gzip.compress(b'{"v":2,"gw":"a"}\n', mtime=0),
    gzip.compress(json.dumps({**json.loads(line(9).data), "seq": "9"}).encode() + b"\n", mtime=0),
    gzip.compress(json.dumps({**json.loads(line(9).data), "ts": 10**18}).encode() + b"\n", mtime=0),
    gzip.compress(b"[" * 100_000 + b"\n", mtime=0), gzip.compress(b"\xff\xfe\n", mtime=0),
])  # fmt: skip
def test_foreign_files_are_named_and_left_out(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, 0)
    (tmp_path / "usage-foreign-1-0000000000.jsonl.gz").write_bytes(content)
    readings = read_last(tmp_path, 10_000)
    assert [each["seq"] for each in readings.lines] == [0]
    assert readings.unread_files == ["usage-foreign-1-0000000000.jsonl.gz"]


@pytest.mark.parametrize("damage", [lambda data: data[:-8], lambda data: data[:-20] + b"\0" * 20, lambda data: b""])
def test_a_damaged_file_is_named_and_read_as_far_as_it_goes(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1)
    path = max(tmp_path.iterdir())
    path.write_bytes(damage(path.read_bytes()))
    readings = read_last(tmp_path, 10_000)
    assert readings.lines[0]["seq"] == 0
    assert readings.unread_files == [path.name]


def test_rows_of_another_shape_are_left_out() -> None:
    row = ["in", "alice", "app", "produce", 1, *[0] * 11, None, None, 0]
    bad = [row[:-1], "row", [*row[:9], "x", *row[10:]], [None, *row[1:]], None]
    assert list(rows_of({"rows": [row, *bad, [*row, "later"]]})) == [row, [*row, "later"]]


def test_an_empty_directory_has_nothing_and_one_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    readings = read_last(tmp_path, 60)
    assert (readings.lines, readings.missing()) == ([], 0)
    with pytest.raises(FileNotFoundError):
        read_last(tmp_path / "none", 60)
