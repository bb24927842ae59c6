"""Erases a client's rows from usage files, whether or not they were ingested. Lines stay, so no gap appears.

A gateway's files are `*.jsonl.gz`; `*.jsonl` is read too. A line without the client keeps its bytes, and a file
without the client is not changed. An unreadable line that names the client becomes an empty line. If a damaged end of
a file names the client, the end is removed.

A file that a gateway is still writing is hidden and locked. Such a file is counted and left. After `rotate_seconds`
it is complete and can be erased. A hidden file that a killed gateway has left is not locked.
"""

from __future__ import annotations

import fcntl
import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from pipeline.erase.client import Client
from pipeline.erase.tables import MUTATIONS, SECONDS, UNREADABLE, Found
from pipeline.ingest.lines import Torn, read_line, texts_of
from pipeline.storage.files import replace_file
from quotas.usage_record import Event, Row, UsageApi

TOPICS: Final = "rows of topics"
OTHERS: Final = "rows of other kinds"
FILES: Final = "files"

_COMPLETE: Final = re.compile(r"[^.].*\.jsonl(\.gz)?")
_PART: Final = re.compile(r"\.usage-.*\.jsonl\.gz\.part(?P<draft>\.whole)?")
_GZIP: Final = b"\x1f\x8b"


def erase_usage(folder: Path, client: Client, *, write: bool) -> tuple[Found, list[str]]:
    """Removes a client from all usage files below a folder.

    Args:
        folder: a gateway's folder, or an archive of ingested files.
        client: the client.
        write: erase; otherwise only count.

    Returns:
        The rows found; and notes for the operator about what was not erased.
    """
    found: Found = Counter()
    left: list[str] = []
    seen: set[Path] = set()
    # Repeated, because gateways complete files meanwhile, which then have a new name.
    while new := sorted(set(_usage_files(folder)) - seen):
        seen.update(new)
        for path in new:
            try:
                own, fault = _erase_file(path, client, write=write)
            except FileNotFoundError:
                continue  # completed, or deleted because of its age
            except PermissionError as exc:
                left.append(f"{path}: {exc.strerror}")
                continue
            found.update({(f"usage {folder}", what): count for what, count in own.items()})
            found[f"usage {folder}", FILES] += bool(own)
            left += [fault] if fault else []
    return +found, left


def _usage_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if (_COMPLETE.fullmatch(path.name) or _PART.fullmatch(path.name)) and path.is_file():
            yield path


def _erase_file(path: Path, client: Client, *, write: bool) -> tuple[Counter[str], str]:
    """The client's rows in a file; and the reason if they are not erased."""
    part = _PART.fullmatch(path.name)
    with _lock(path.with_name(path.name.removesuffix(".whole")) if part else None) as mine:
        content, found = _without(path.read_bytes(), client)
        if not found:
            return found, ""
        if not mine:
            return found, f"{path} is still written by a gateway: erase again when it is complete"
        if write and part and part["draft"]:
            path.unlink()  # a gateway makes it again from its part
        elif write:
            replace_file(str(path), content)
    return found, ""


@contextmanager
def _lock(part: Path | None) -> Iterator[bool]:
    """Prevents a gateway from completing a part; False if a gateway is writing it."""
    try:
        file = None if part is None else part.open("rb")
    except FileNotFoundError:
        file = None
    if file is None:
        yield True
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def _without(content: bytes, client: Client) -> tuple[bytes, Counter[str]]:
    """A file's content without the client, and the number of its rows by kind."""
    found: Counter[str] = Counter()
    lines = []
    for text in texts_of(content):
        if not isinstance(text, Torn):
            lines.append(_line_without(text, client, found))
        elif client.is_in(text.text):
            found[UNREADABLE] += 1
    if not found.total():
        return content, Counter()
    plain = b"".join(line + b"\n" for line in lines)
    return gzip.compress(plain, mtime=0) if content.startswith(_GZIP) else plain, found


def _line_without(text: bytes, client: Client, found: Counter[str]) -> bytes:
    # Most lines do not contain the client's names. An address may have another spelling.
    if not client.ips and not client.is_in(text):
        return text
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        line = None
    before = found.total()
    if isinstance(line, dict):
        for name, entries in line.items():
            if isinstance(entries, list):
                what, named = _KINDS.get(name, (OTHERS, _any_names))
                kept = [each for each in entries if not (isinstance(each, list) and named(each, client))]
                found[what] += len(entries) - len(kept)
                line[name] = kept
    if found.total() > before:
        text = orjson.dumps(line)
    if client.is_in(text) and isinstance(read_line(text, 0), Torn):
        found[UNREADABLE] += 1
        return b""
    return text


def _row(entry: list[Any], client: Client) -> bool:
    return len(entry) > Row.API and _is_row(client, entry[Row.USER], entry[Row.CLIENT_ID], entry[Row.API])


def _event(entry: list[Any], client: Client) -> bool:
    return len(entry) > Event.API and _is_row(
        client, entry[Event.USER], entry[Event.CLIENT_ID], UsageApi.MUTATION
    )


def _is_row(client: Client, *names: Any) -> bool:
    return all(isinstance(name, str) for name in names) and client.is_row(*names)


def _any_names(entry: list[Any], client: Client) -> bool:
    """Whether an entry of an unknown list names the client."""
    texts = {each for each in entry if isinstance(each, str)}
    return all(texts & names for names in (client.users, client.client_ids, client.ips) if names)


_KINDS: Final[Mapping[str, tuple[str, Callable[[list[Any], Client], bool]]]] = {
    "rows": (SECONDS, _row),
    "events": (MUTATIONS, _event),
    # An entry begins like a row.
    "topics": (TOPICS, _row),
    # Entries name brokers and topics, not clients.
    "stored": (OTHERS, lambda _entry, _client: False),
}
