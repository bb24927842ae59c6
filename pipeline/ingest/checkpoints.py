"""Finds the Spark checkpoint of a source. A checkpoint belongs to one folder or one topic only.

The record of lines that were read is separate (`pipeline.storage.raw_table`). So with a new checkpoint `ingest` only
loses the time to read again the data that is still there.
"""

from __future__ import annotations

import hashlib
import json
import re
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pipeline.errors import ArgumentError
from pipeline.storage.files import is_local, local_path

_FILES: Final = "files"
_LINES_LOOKED_AT: Final = 50
_NAME_CHARS: Final = 40


def checkpoint_of(out: str, given: str | None, kind: str, place: str) -> str:
    """The folder of the checkpoint of a source.

    Args:
        out: the pipeline's folder.
        given: the value of --checkpoint, or None.
        kind: files or kafka.
        place: the folder, or the topic with its servers.

    Raises:
        ArgumentError: `given` belongs to another source, or `given` is None and `out` is remote.
    """
    if given is not None:
        given = given.rstrip("/")
        if is_local(given) and _source_is(local_path(given), kind, place) is False:
            raise ArgumentError(
                f"--checkpoint {given} belongs to another source than {kind}:{place}. Omit --checkpoint, or "
                "give each source a folder of its own"
            )
        return given
    if not is_local(out):
        raise ArgumentError(
            f"{out} is not on this machine: say with --checkpoint where Spark's notes are, here or there"
        )
    # Earlier releases had one checkpoint for all sources, which worked only for the first source.
    first = f"{out}/checkpoint"
    if _source_is(local_path(first), kind, place):
        return first
    source = str(local_path(place).absolute()) if kind == _FILES and is_local(place) else place
    name = re.sub(r"[^\w.-]+", "_", place.rstrip("/").rpartition("/")[2])[:_NAME_CHARS]
    digest = hashlib.sha256(f"{kind}:{source}".encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{out}/checkpoints/{kind}-{name}-{digest}"


def _source_is(checkpoint: Path, kind: str, place: str) -> bool | None:
    """Whether a checkpoint is of this source; None: it has no source yet, or does not name it."""
    for file in sorted(checkpoint.glob("sources/0/[0-9]*")):
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in islice(lines, _LINES_LOOKED_AT):
                try:
                    known = json.loads(line)
                except ValueError:
                    continue  # the line with the format's version
                if not isinstance(known, dict):
                    continue
                path = known.get("path")
                if isinstance(path, str):
                    return kind == _FILES and _is_below(path, place)
                return kind != _FILES and place.rpartition("@")[0] in known
    return None


def _is_below(path: str, place: str) -> bool:
    if not is_local(place):
        return path.startswith(place.rstrip("/") + "/")
    file, folder = Path(unquote(urlsplit(path).path)), local_path(place).absolute()
    return file.is_relative_to(folder) or fnmatchcase(str(file.parent), str(folder))
