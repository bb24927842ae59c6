"""Finds files below a folder that contain a name: in plain or unpacked bytes, or in texts of Parquet files."""

from __future__ import annotations

import html
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def files_with(folder: Path, name: str) -> list[str]:
    """Paths of files with this name in them, below the folder."""
    forms = {name, html.escape(name), json.dumps(name)[1:-1], json.dumps(name, ensure_ascii=False)[1:-1]}
    wanted = {form.encode() for form in forms}
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and any(form in text for text in _texts(path) for form in wanted)
    )


def _texts(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    yield str(path).encode()
    yield content
    if content.startswith(b"\x1f\x8b"):
        # As far as possible, because the end of the file may be missing.
        yield zlib.decompressobj(wbits=31).decompress(content)
    elif content.startswith(b"PAR1"):
        file = pq.ParquetFile(path)
        yield repr(file.metadata.metadata).encode()
        for group in range(file.metadata.num_row_groups):
            yield "\n".join(_leaves(file.read_row_group(group).to_pylist())).encode()


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _leaves(list(value.items()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
