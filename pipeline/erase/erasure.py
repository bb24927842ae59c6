"""Erases a client, place by place.

Places come in the order in which rows are made from others: usage files, raw rows, compacted rows, tables of clients,
results. The last commit to a table comes after all rows of the previous place are deleted from the disk. So another
job can't bring rows back: if it read them before, its commit also started before, and gets a conflict with the
erasure's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.client_tables.tables import client_use_table, clients_table, is_made
from pipeline.erase.client import Client
from pipeline.erase.leftovers import clean_folder, found_in_folder
from pipeline.erase.results import erase_results
from pipeline.erase.tables import ClientRows, CompactedRows, Found, MadeRows, RawRows, erase_rows
from pipeline.erase.usage_files import erase_usage
from pipeline.storage.compacted_days import published_days
from pipeline.storage.counting import fleets_of


@dataclass(frozen=True, slots=True)
class Places:
    """Places that may have rows of a client.

    Attributes:
        out: the pipeline's folder.
        usage: folders with usage files: of gateways, and archives.
        results: folders or files with results, besides OUT/results.
    """

    out: str
    usage: Sequence[Path] = ()
    results: Sequence[Path] = ()


@dataclass(slots=True)
class Erasure:
    """The result of an erasure.

    Attributes:
        found: the client's rows that were found.
        left: notes for the operator about what could not be erased.
    """

    found: Found = field(default_factory=Counter)
    left: list[str] = field(default_factory=list)


def erase(places: Places, client: Client, *, write: bool) -> Erasure:
    """Erases a client everywhere, or counts its rows.

    Args:
        places: the places to search.
        client: the client.
        write: erase; otherwise only count.

    Raises:
        JobError: a table can't be read or written. Places that are already erased stay so; the next run continues.
    """
    done = Erasure()
    for folder in places.usage:
        _add(done, erase_usage(folder, client, write=write))
    for rows in _tables(places.out, client):
        for file in rows.table.read().files:
            done.found.update(rows.found(file))
        done.found.update(found_in_folder(rows.table, client))
        if write:
            erase_rows(rows)
            unread = clean_folder(rows.table, client)
            done.left += [f"{path} can't be read" for path in unread]
    for place in (f"{places.out}/results", *map(str, places.results)):
        _add(done, erase_results(place, client, write=write))
    return done


def _tables(out: str, client: Client) -> list[ClientRows]:
    made = [MadeRows(out, table, client) for table in (clients_table(out), client_use_table(out))]
    return [RawRows(out, client), CompactedRows(out, client), *made]


def _add(done: Erasure, more: tuple[Found, list[str]]) -> None:
    done.found.update(more[0])
    done.left += more[1]


def days_to_make(out: str) -> list[str]:
    """Compacted days without tables of clients."""
    tables = clients_table(out).read(), client_use_table(out).read()
    published = published_days(out)
    fleets = fleets_of(published)
    return [day.date for day in published if not is_made(day, fleets, *tables)]
