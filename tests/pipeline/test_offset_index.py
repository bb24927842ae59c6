"""Lines that were read, in any order and any number of times; what is missing; and what days lack by it."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipeline.storage.index_files import index_path, with_losses
from pipeline.storage.layout import CompactedDay
from pipeline.storage.offset_index import DAY_S, Completeness, Entry, Gap, Interval, OffsetIndex, Run

RUN = Run("a", 1_790_000_000_000)
START = RUN.boot // 1000


def entries(*seqs: int, run: Run = RUN) -> list[Entry]:
    return [Entry(run, seq, run.boot // 1000 + 1 + seq) for seq in seqs]


LINES = st.lists(
    st.builds(
        lambda gw, boot, seq: Entry(Run(gw, boot), seq, boot // 1000 + 1 + seq),
        st.sampled_from(["a", "b"]),
        st.sampled_from([RUN.boot, RUN.boot + 5_000]),
        st.integers(0, 30),
    ),
    max_size=60,
)


def read(lines: list[Entry], batch: int) -> tuple[OffsetIndex, int]:
    index, duplicates = OffsetIndex(), 0
    for begin in range(0, len(lines), batch):
        index, repeated = index.add(lines[begin : begin + batch])
        duplicates += len(repeated)
    return index, duplicates


@given(LINES, st.randoms(use_true_random=False), st.integers(1, 70), st.integers(1, 70))
def test_any_order_and_any_repetition_in_any_batches_end_in_the_same_index(
    lines: list[Entry], chance: object, batch: int, other: int
) -> None:
    again = lines + lines[::2]
    chance.shuffle(again)  # type: ignore[attr-defined]
    index, duplicates = read(lines, batch)
    shuffled, more_duplicates = read(again, other)
    assert shuffled == index
    assert index.lines() == len(set(lines)) == len(lines) - duplicates == len(again) - more_duplicates


@given(LINES)
def test_lines_and_gaps_are_all_numbers_up_to_the_last_one(lines: list[Entry]) -> None:
    index, _ = OffsetIndex().add(lines)
    last = {run: max(seq for owner, seq, _ in lines if owner == run) for run, _, _ in lines}
    missing = {(gap.gw, gap.boot, seq) for gap in index.gaps() for seq in range(gap.first, gap.last + 1)}
    there = {(*run, seq) for run, seq, _ in lines}
    assert missing | there == {(*run, seq) for run, end in last.items() for seq in range(end + 1)}
    assert not missing & there


@given(LINES)
def test_an_index_comes_back_from_json_as_it_was(lines: list[Entry]) -> None:
    index, _ = OffsetIndex().add(lines)
    assert OffsetIndex.from_json(index.to_json()) == index


def test_neighbours_join_and_the_first_of_two_equal_lines_counts() -> None:
    index, duplicates = OffsetIndex().add(entries(3, 1, 2, 2))
    assert duplicates == [3]
    assert index.runs == {RUN: (Interval(1, 3, START + 2, START + 4),)}
    index, duplicates = index.add(entries(0, 1))
    assert duplicates == [1]
    assert index.runs == {RUN: (Interval(0, 3, START + 1, START + 4),)}


def test_a_gap_names_its_lines_and_the_seconds_around_it() -> None:
    index, _ = OffsetIndex().add(entries(2, 3, 7))
    assert list(index.gaps()) == [
        Gap("a", RUN.boot, 0, 1, START, START + 3),
        Gap("a", RUN.boot, 4, 6, START + 4, START + 8),
    ]


def test_a_gap_over_midnight_is_missing_on_both_days() -> None:
    midnight = 20_000 * DAY_S
    run = Run("a", (midnight - 101) * 1000)
    lines = [Entry(run, seq, midnight - 100 + seq) for seq in (*range(90), *range(130, 140))]
    index, _ = OffsetIndex().add(lines)
    assert index.days() == {19_999: Completeness(90, 10), 20_000: Completeness(10, 30)}
    assert index.days()[20_000].share == 0.25


def test_a_clock_that_was_set_back_does_not_lose_lines() -> None:
    run = Run("a", 1_000)
    index, _ = OffsetIndex().add([Entry(run, 0, 50_000), Entry(run, 1, 40_000)])
    assert index.days() == {0: Completeness(2, 0)}


def test_a_loss_that_shows_only_after_compaction_counts_from_then_on(tmp_path: Path) -> None:
    midnight = 20_000 * DAY_S
    run = Run("a", (midnight - 101) * 1000)
    day = CompactedDay("2024-10-03", "", 1, 50, 1, 1.0, [0])
    # What the gateway wrote in the evening is lost, as its first line of the next day shows.
    index, _ = OffsetIndex().add([Entry(run, seq, midnight - 100 + seq) for seq in (*range(50), 100)])
    file = Path(index_path(str(tmp_path), 0))
    file.parent.mkdir()
    file.write_text(json.dumps({"source": "s", "runs": index.to_json()}))
    (known,) = with_losses([day], str(tmp_path))
    assert (day.completeness, known.completeness) == (1.0, 0.5)
    assert with_losses([], str(tmp_path)) == []
