"""Compacted files: rows are found again by bucket, in bounded pieces; what counts together is one row."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay.demand import demands
from pipeline.storage.compacted_files import Piece, buckets_of, dealt, gathered, pieces_of, read_entities, read_pieces
from pipeline.storage.entity_days import ENTITY, arrays_of
from pipeline.storage.joining import join_chunks
from pipeline.storage.layout import EVENTS, FINE_BUCKETS, KEY, SERIES, bucket_of
from testkit.pipeline.compacted_days import compacted_rows, write_compacted_file

COLUMNS = [*KEY, *SERIES, *EVENTS]
NAMES = [f"c{number}" for number in range(100)]
BUCKETS = 32


def rows_of(*clients: str, **more: Any) -> list[dict[str, Any]]:
    return [{"client_id": name, "t": [1, 2], "offered": [1.0, float(len(name))], **more} for name in clients]


def bucket(user: str, client_id: str, api: str) -> int:
    return bucket_of(user, client_id, api) * BUCKETS // FINE_BUCKETS


def written(folder: Path, *rows: dict[str, Any]) -> list[Piece]:
    path = f"{folder}/part-0.parquet"
    write_compacted_file(path, pa.Table.from_batches([compacted_rows(rows)]), BUCKETS)
    return pieces_of([path])


def rows_in(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_what_is_written_is_read_again_and_other_engines_see_it_too(tmp_path: Path) -> None:
    rows = [*rows_of(*NAMES, quota=[None, 5.0]), {"api": "mutation", "t": [3], "e_ms": [3_001], "e_units": [4]}]
    pieces = written(tmp_path, *rows)
    assert {piece.bucket for piece in pieces} == {
        bucket("u", row.get("client_id", "c"), row.get("api", "produce")) for row in rows
    }
    expected = compacted_rows(rows).to_pylist()
    found = rows_in(read_pieces(sorted(pieces), COLUMNS))
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    # Statistics give the least of zeros as -0.0, which pages would show.
    assert {repr(row["rejected_units"]) for row in found} == {"[0.0, 0.0]", "[0.0]"}
    seen = duckdb.sql(f"select count(*), sum(len(t)), sum(len(e_ms)) from '{tmp_path}/*.parquet'").fetchall()
    assert seen == [(101, 201, 1)]


def test_only_wanted_apis_and_columns_are_read(tmp_path: Path) -> None:
    pieces = written(tmp_path, *rows_of("a", "b"), *rows_of("c", api="fetch"))
    found = rows_in(read_pieces(pieces, ["client_id", "api", "t"], ["fetch"]))
    assert found == [{"client_id": "c", "api": "fetch", "t": [1, 2]}]


def test_arrays_of_one_value_are_the_same_as_if_they_were_read(tmp_path: Path) -> None:
    often = {"delayed": [7, 7], "quota": [None, None], "censored": [True, True], "rejected_units": [2.5, 2.5]}
    rows = [
        *({**often, "client_id": "c", "t": [1, 2], "node": node} for node in range(3)),
        {"client_id": "c", "t": [], "offered": [], "node": 3},
        {
            "client_id": "c", "t": [5], "offered": [1.0], "node": 4, "delayed": [7], "quota": [None],
            "muted_ms": [9],
        },
    ]  # fmt: skip
    (piece,) = written(tmp_path, *rows)
    found = sorted(rows_in(read_pieces([piece], COLUMNS)), key=lambda row: int(row["node"]))
    assert found == compacted_rows(rows).to_pylist()


def test_columns_that_an_older_release_did_not_write_are_false_or_0(tmp_path: Path) -> None:
    columns = ["observed", "connections"]
    (piece,) = written(tmp_path, {"client_id": "c", "t": [1, 2], "observed": [True, True], "connections": [3, 3]})
    pq.write_table(pq.read_table(piece.path).drop_columns(columns), piece.path)
    (row,) = rows_in(read_pieces([piece], ["client_id", "t", *columns]))
    assert row == {"client_id": "c", "t": [1, 2], "observed": [False, False], "connections": [0, 0]}
    # Raw rows of it and of this one in the same day, or the same as Spark reads them.
    old, new = ({"client_id": "c", "t": [number]} for number in (1, 2))
    table = pa.Table.from_batches([compacted_rows([old, new | {"observed": [True]}])])
    at = table.schema.get_field_index("observed")
    table = table.set_column(at, "observed", pa.array([None, [True]], pa.list_(pa.bool_())))
    at = table.schema.get_field_index("connections")
    table = table.set_column(at, "connections", pa.array([None, [3]], pa.list_(pa.int32())))
    (joined,) = join_chunks(table.to_batches())
    assert joined.column("observed").to_pylist() == [[False, True]]
    assert joined.column("connections").to_pylist() == [[0, 3]]
    (demand,) = demands(table.slice(0, 1).to_batches()[0])
    assert (demand.observed.tolist(), demand.connections.tolist()) == ([0.0], [0])


@pytest.mark.slow
def test_a_row_group_has_one_bucket_and_a_bounded_number_of_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.storage.compacted_files.ELEMENTS_PER_GROUP", 5)
    pieces = written(tmp_path, *rows_of(*NAMES), {"client_id": "long", "t": list(range(50))})
    sizes = sorted(piece.elements for piece in pieces)
    assert sizes[-1] == 50  # a row is never cut
    assert sizes[-2] <= 5
    assert sum(sizes) == 250
    for piece in pieces:
        (batch,) = read_pieces([piece], ["user", "client_id", "api"])
        assert {bucket(**row) for row in batch.to_pylist()} == {piece.bucket}


def test_parts_are_whole_buckets_of_about_equal_size(tmp_path: Path) -> None:
    monday, tuesday = tmp_path / "monday", tmp_path / "tuesday"
    pieces = [*written(monday, *rows_of(*NAMES)), *written(tuesday, *rows_of(*NAMES))]
    parts = dealt(pieces, 3, 10**9)
    assert sorted(piece for part in parts for piece in part) == sorted(pieces)
    assert [part == sorted(part) for part in parts] == [True] * 3
    sizes = [sum(piece.elements for piece in part) for part in parts]
    assert max(sizes) - min(sizes) <= 2 * max(400 // BUCKETS, 40)
    smaller = dealt(pieces, 1, 100)
    assert len(smaller) >= 4
    for each in (parts, smaller):
        places = [{(piece.bucket, Path(piece.path).parent) for piece in part} for part in each]
        assert sum(map(len, places)) == len(set.union(*places))
    assert dealt([], 2, 10) == []


def test_a_client_is_in_one_bucket_and_buckets_come_one_by_one(tmp_path: Path) -> None:
    pieces = written(tmp_path, *rows_of(*NAMES), *rows_of(*NAMES[:50], gw="other"))
    seen: dict[str, int] = {}
    for number, rows in buckets_of(sorted(pieces), ["client_id"]):
        for row in rows_in(rows):
            assert seen.setdefault(row["client_id"], number) == number
    assert sorted(seen) == sorted(NAMES)


def test_a_client_of_several_brokers_is_noticed_over_row_groups_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def several(*rows: dict[str, Any]) -> bool:
        table = pa.Table.from_batches([compacted_rows(rows)])
        return write_compacted_file(f"{tmp_path}/part.parquet", table).several_brokers

    one = [*rows_of("a", "b", node=1), *rows_of("a", gw="other", node=2), *rows_of("b", api="fetch", node=2)]
    for size in (1_000_000, 1):
        monkeypatch.setattr("pipeline.storage.compacted_files.ELEMENTS_PER_GROUP", size)
        assert not several(*one)
        assert not several(*one, *rows_of("a", listener="other", node=1))
        assert several(*one, *rows_of("a", node=2))


@pytest.mark.parametrize("brokers_apart", [False, True])
def test_what_counts_together_is_one_row_in_order_of_time(tmp_path: Path, brokers_apart: bool) -> None:
    pieces = written(
        tmp_path,
        {"node": 1, "t": [1, 5], "offered": [1.0, 2.0]},
        {"node": 2, "t": [2, 5], "offered": [4.0, 8.0]},
        {"node": 2, "listener": "z", "t": [3], "offered": [16.0]},
        {"node": 1, "gw": "other", "t": [9], "offered": [32.0]},
        *rows_of("d"),
    )
    found = rows_in(
        read_entities(sorted(pieces), ENTITY, arrays_of(()), brokers_apart=brokers_apart, most_elements=100)
    )
    of_c = {(row["gw"], row["node"]): (row["t"], row["offered"]) for row in found if row["client_id"] == "c"}
    if brokers_apart:
        assert of_c == {
            ("gw", 1): ([1, 5], [1.0, 2.0]),
            ("gw", 2): ([2, 3, 5], [4.0, 16.0, 8.0]),
            ("other", 1): ([9], [32.0]),
        }
    else:
        assert of_c == {("gw", -1): ([1, 2, 3, 5, 5], [1.0, 4.0, 16.0, 2.0, 8.0]), ("other", -1): ([9], [32.0])}
    assert len(found) == len(of_c) + 1


@pytest.mark.slow
def test_what_counts_together_may_be_spread_over_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.storage.compacted_files.ELEMENTS_PER_GROUP", 1)
    pieces = written(tmp_path, *(row for node in range(5) for row in rows_of(*NAMES[:20], node=node)))
    assert len(pieces) == 100
    found = rows_in(read_entities(sorted(pieces), ENTITY, arrays_of(()), brokers_apart=False, most_elements=1_000))
    assert [row["t"] for row in found] == [[1] * 5 + [2] * 5] * 20


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6), st.integers(1, 12))
def test_batches_are_as_full_as_the_bound_allows(lengths: list[list[int]], most: int) -> None:
    batches = [
        compacted_rows([{"client_id": f"{at}-{i}", "t": list(range(n))} for i, n in enumerate(batch)])
        for at, batch in enumerate(lengths)
    ]
    found = list(gathered(batches, most))
    assert rows_in(found) == rows_in(batches)
    sizes = [[len(t) for t in batch.column("t").to_pylist()] for batch in found]
    for here, after in pairwise(sizes):
        assert sum(here) <= most or len(here) == 1
        assert sum(here) + after[0] > most
