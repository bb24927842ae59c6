"""Erases a client from results of other jobs: plans, revert files, simulations and reports.

Quotas of the client are removed from plans and revert files, and its rows from simulations. Sums in a plan stay, as
they are what was decided. A report has pictures with all clients, so the whole report is deleted, and `report` can
make it again. The same applies to a study of a capacity and to a list of changes.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from pipeline.capacity.page import FORMAT as CAPACITY_FORMAT
from pipeline.changes.page import FORMAT as CHANGES_FORMAT
from pipeline.erase.client import Client
from pipeline.erase.tables import ROWS, Found
from pipeline.plans.changes import REVERT_FORMAT, Revert
from pipeline.plans.plan import FORMAT as PLAN_FORMAT
from pipeline.plans.plan import Plan, PlanError
from pipeline.report.report import FORMAT as REPORT_FORMAT
from pipeline.storage.files import files_below, parquet_reader, read_bytes, replace_file

QUOTAS: Final = "quotas"
NOTES: Final = "notes"
REPORTS: Final = "report, which goes as a whole"

_PAGE: Final = "index.html"
_OF_PAGE: Final = {
    REPORT_FORMAT: ("report.json", _PAGE),
    CAPACITY_FORMAT: ("capacity.json", _PAGE, "capacity.csv"),
    CHANGES_FORMAT: ("changes.json", _PAGE, "chat.txt"),
}
"""For formats of results that are deleted as a whole: the file's name, and further files with names of clients."""
_NAMES_OF_PAGES: Final = frozenset(name for name, *_ in _OF_PAGE.values())
_NAMES: Final = ("user", "client_id", "api")
_LARGEST: Final = "; the largest, "
"""In the reason of a default, the text after this is about one client."""


def erase_results(place: str, client: Client, *, write: bool) -> tuple[Found, list[str]]:
    """Removes a client from all results below a folder, or from one file.

    Args:
        place: OUT/results, or another place to which jobs wrote results.
        client: the client.
        write: erase; otherwise only count.

    Returns:
        The rows found; and notes for the operator about what was not erased.
    """
    found: Found = Counter()
    left: list[str] = []
    folder, _, only = place.rpartition("/") if Path(place).is_file() else (place, "", "")
    infos = files_below(folder).get_file_info(fs.FileSelector("", allow_not_found=True, recursive=True))
    names = {info.path for info in infos if info.type == fs.FileType.File}
    for name in sorted({only} if only else names):
        path = f"{folder}/{name}"
        try:
            if name.endswith(".parquet"):
                own = _erase_rows(path, client, write=write)
            elif name.endswith(".json"):
                own = _erase_json(path, client, write=write)
            elif name.endswith(f"/{_PAGE}") and not any(
                name.replace(_PAGE, own) in names for own, *_ in _OF_PAGE.values()
            ):
                own = _erase_page(path, client, write=write)
            else:
                continue
        except FileNotFoundError:
            continue
        except (OSError, ValueError, PlanError, pa.ArrowException) as exc:
            left.append(f"{path} can't be read or written: {exc}")
            continue
        found.update({(path, what): count for what, count in own.items()})
    return +found, left


def _erase_rows(path: str, client: Client, *, write: bool) -> Counter[str]:
    with parquet_reader(path) as reader:
        if not set(_NAMES) <= set(reader.schema_arrow.names):
            return Counter()
        rows = reader.read()
    named = client.rows(rows)
    found = Counter({ROWS: pc.sum(named).as_py() or 0})
    if write and found[ROWS]:
        content = pa.BufferOutputStream()
        pq.write_table(rows.filter(pc.invert(named)), content, compression="zstd")
        # Spark's checksum of the file. Spark also reads the file without it.
        folder, _, name = path.rpartition("/")
        _delete(f"{folder}/.{name}.crc")
        replace_file(path, content.getvalue().to_pybytes())
    return found


def _erase_json(path: str, client: Client, *, write: bool) -> Counter[str]:
    content = read_bytes(path) or b""
    folder, _, name = path.rpartition("/")
    # A page may show more clients than the file beside it, such as those of a plan.
    page = read_bytes(f"{folder}/{_PAGE}") if name in _NAMES_OF_PAGES else None
    shown = client.is_shown(page or b"")
    if not client.ips and not shown and not client.is_in(content):
        return Counter()
    data = json.loads(content)
    kind = data.get("format") if isinstance(data, dict) else None
    if kind in _OF_PAGE:
        found = Counter({REPORTS: int(shown or any(_is_of(each, client) for each in data["clients"]))})
        if write and found[REPORTS]:
            # The file that identifies the result is deleted last, so that after a kill the next run finds it.
            for beside in _OF_PAGE[kind][1:]:
                _delete(f"{folder}/{beside}")
            _delete(path)
        return found
    text, found = "", Counter()
    if kind == PLAN_FORMAT:
        text, found = _plan_without(Plan.from_json(content), client)
    elif kind == REVERT_FORMAT:
        revert = Revert.from_json(content)
        changes = tuple(each for each in revert.changes if not client.is_entity(each.entity))
        text = replace(revert, changes=changes).to_json()
        found = Counter({QUOTAS: len(revert.changes) - len(changes)})
    if write and found.total():
        replace_file(path, text.encode())
    return found


def _is_of(row: Any, client: Client) -> bool:
    return client.is_row(*(row[name] for name in _NAMES))


def _plan_without(plan: Plan, client: Client) -> tuple[str, Counter[str]]:
    entries = [each for each in plan.entries if not client.is_entity(each.entity)]
    found = Counter({QUOTAS: len(plan.entries) - len(entries)})
    for at, entry in enumerate(entries):
        if _LARGEST in entry.reason and client.is_in(entry.reason.encode()):
            entries[at] = replace(entry, reason=entry.reason.partition(_LARGEST)[0])
            found[NOTES] += 1
    too_little = tuple(each for each in plan.too_little if not client.is_told(each.client))
    found[NOTES] += len(plan.too_little) - len(too_little)
    return replace(plan, entries=tuple(entries), too_little=too_little).to_json(), found


def _erase_page(path: str, client: Client, *, write: bool) -> Counter[str]:
    found = Counter({REPORTS: int(client.is_in(read_bytes(path) or b""))})
    if write and found[REPORTS]:
        _delete(path)
    return found


def _delete(path: str) -> None:
    folder, _, name = path.rpartition("/")
    with suppress(FileNotFoundError):
        files_below(folder).delete_file(name)
