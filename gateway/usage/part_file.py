"""One usage file while it is written: gzip, hidden, locked; only whole lines, whatever fails.

`.usage-<gateway>-<boot>-<seq of the first line>.jsonl.gz.part` becomes `usage-...jsonl.gz` by fsync, rename, and
fsync of the directory. Each line is flushed through the compressor, so that the file of a killed process can be read
up to its last whole line. When a write fails, the file is cut to its last whole line and the compressor is reset to
that point. [io]: called by the thread of a sink alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.runtime.durable import sync_directory
from gateway.usage.line import Line, Tally

PART: Final = ".part"
SUFFIX: Final = ".jsonl.gz"

FILE_NAME: Final = re.compile(r"usage-(?P<gateway>[A-Za-z0-9_.-]+)-(?P<boot>\d+)-(?P<seq>\d+)\.jsonl\.gz")
"""The name of a complete file."""

PART_NAME: Final = re.compile(r"\." + FILE_NAME.pattern + r"\.part")

_GZIP: Final = 31  # zlib's wbits for a gzip head and tail
_LEVEL: Final = 1
_SEQ_DIGITS: Final = 10  # names then sort as their lines do
_COPY_BYTES: Final = 1 << 20
_MAX_LINE_BYTES: Final = 64 << 20
_MODE: Final = 0o640


class PartFile:
    """See the module.

    Attributes:
        path: of the hidden file.
        bytes: its compressed size so far.
        tally: the lines in it.
    """

    def __init__(self, directory: Path, gateway: str, boot: int, seq: int) -> None:
        """Create the file, and its directory if only that is missing.

        Raises:
            OSError: the file cannot be created.
        """
        name = f"usage-{gateway}-{boot}-{seq:0{_SEQ_DIGITS}d}{SUFFIX}"
        self._directory = directory
        self._final = directory / name
        self.path = directory / f".{name}{PART}"
        self.bytes = 0
        self.tally = Tally()
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._synced = True  # False after a failed fsync: later ones of that descriptor cannot be trusted
        self._fd = self._create()

    def _create(self) -> int:
        with contextlib.suppress(FileExistsError):
            self._directory.mkdir(mode=0o750)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def append(self, line: Line) -> None:
        """Add a line.

        Raises:
            OSError: the line is not in the file. The file is as before, or the next call cuts it to that.
        """
        if os.fstat(self._fd).st_nlink == 0:
            self._move()
        compressor = self._compressor.copy()
        data = compressor.compress(line.data + b"\n") + compressor.flush(zlib.Z_SYNC_FLUSH)
        self._write(data)
        self._compressor = compressor
        self.bytes += len(data)
        self.tally.add(line)

    def _write(self, data: bytes) -> None:
        """Write behind the last whole line, over the remains of a failed attempt."""
        try:
            if os.fstat(self._fd).st_size > self.bytes:
                os.ftruncate(self._fd, self.bytes)
            _write_all(self._fd, data, self.bytes)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.bytes)
            raise

    def publish(self) -> Path:
        """Complete the file, close it and give it its final name.

        Raises:
            OSError: the file is not complete; the call can be repeated.
        """
        self._write(self._compressor.copy().flush(zlib.Z_FINISH))
        if not self._synced or os.fstat(self._fd).st_nlink == 0:
            self._move()
            self._write(self._compressor.copy().flush(zlib.Z_FINISH))
        self._sync()
        try:
            os.rename(self.path, self._final)
        except FileNotFoundError:
            self._synced = False  # its directory was renamed: copy the file at the next attempt
            raise
        sync_directory(self._directory)
        self.close()
        return self._final

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError:
            self._synced = False
            raise

    def _move(self) -> None:
        """Copy the written lines to a new file, because this one has lost its name or cannot be synced any more."""
        if os.fstat(self._fd).st_nlink:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        fd = self._create()
        try:
            at = 0
            while at < self.bytes:
                data = os.pread(self._fd, min(_COPY_BYTES, self.bytes - at), at)
                if not data:
                    raise OSError(f"{self.path}: ends at {at} instead of {self.bytes} bytes")
                _write_all(fd, data, at)
                at += len(data)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            raise
        os.close(self._fd)
        self._fd = fd
        self._synced = True

    def discard(self) -> None:
        """Delete the file, which has no lines."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Close the file; an unpublished file stays for the next start (see `recover`)."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def recover(part: Path) -> Path | None:
    """Publish a file that another process left, up to its last whole line.

    Args:
        part: the hidden file.

    Returns:
        The complete file. None when another process still writes it, or it has no whole line and is removed.

    Raises:
        OSError: the file cannot be read or written now.
    """
    with part.open("rb") as left:
        try:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        rest = part.with_name(f"{part.name}.whole")
        try:
            lines = _copy_lines(left.fileno(), rest)
        except OSError:
            with contextlib.suppress(OSError):
                rest.unlink()
            raise
        final = part.with_name(part.name.removeprefix(".").removesuffix(PART))
        if lines:
            rest.rename(final)
        else:
            rest.unlink()
        part.unlink()
    sync_directory(part.parent)
    return final if lines else None


def _copy_lines(fd: int, to: Path) -> int:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    lines = 0
    with to.open("wb") as out:
        for line in WholeLines(read_pieces(fd)):
            out.write(compressor.compress(line + b"\n"))
            lines += 1
        out.write(compressor.flush())
        out.flush()
        os.fsync(out.fileno())
    return lines


def read_pieces(fd: int) -> Iterator[bytes]:
    """The content of a file, even while others read or write it."""
    at = 0
    while piece := os.pread(fd, _COPY_BYTES, at):
        at += len(piece)
        yield piece


class WholeLines:
    """The whole lines of a gzip stream that may be truncated or damaged anywhere.

    Reading ends at a line that is longer than any written line.

    Attributes:
        whole: the stream is complete, and no part of it was left out; valid once all lines were taken.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        """Args: pieces: the stream."""
        self._pieces = pieces
        self.whole = False

    def __iter__(self) -> Iterator[bytes]:
        """The lines, once."""
        begun: list[bytes] = []  # parts of a line whose end has not come yet
        begun_bytes = 0
        for text in self._texts():
            first, *lines = text.split(b"\n")
            begun.append(first)
            begun_bytes += len(first)
            if lines:
                yield b"".join(begun)
                begun = [lines.pop()]
                begun_bytes = len(begun[0])
                yield from lines
            elif begun_bytes > _MAX_LINE_BYTES:
                self.whole = False
                return
        self.whole = self.whole and not begun_bytes

    def _texts(self) -> Iterator[bytes]:
        stream = zlib.decompressobj(_GZIP)
        for piece in self._pieces:
            while piece:
                self.whole = False
                before = stream.copy()
                try:
                    text = stream.decompress(piece, _COPY_BYTES)
                except zlib.error:
                    yield _up_to_the_damage(before, piece)
                    return
                yield text
                piece = stream.unconsumed_tail or stream.unused_data
                if stream.eof:
                    self.whole = True
                    stream = zlib.decompressobj(_GZIP)


def _up_to_the_damage(stream: zlib._Decompress, piece: bytes) -> bytes:
    """The text before the damage in a piece. A failing call returns nothing, so bytes are passed one by one."""
    texts: list[bytes] = []
    with contextlib.suppress(zlib.error):
        texts.extend(stream.decompress(piece[at : at + 1]) for at in range(len(piece)))
    return b"".join(texts)


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        at += written
        view = view[written:]
