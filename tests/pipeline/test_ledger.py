from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.ledger import DAY_S, Completeness, Entry, Gap, Interval, Ledger, Run

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


def read(lines: list[Entry], batch: int) -> tuple[Ledger, int]:
    ledger, duplicates = Ledger(), 0
    for begin in range(0, len(lines), batch):
        ledger, repeated = ledger.add(lines[begin : begin + batch])
        duplicates += len(repeated)
    return ledger, duplicates


@given(LINES, st.randoms(use_true_random=False), st.integers(1, 70), st.integers(1, 70))
def test_any_order_and_any_repetition_in_any_batches_end_in_the_same_ledger(
    lines: list[Entry], chance: object, batch: int, other: int
) -> None:
    again = lines + lines[::2]
    chance.shuffle(again)  # type: ignore[attr-defined]
    ledger, duplicates = read(lines, batch)
    shuffled, more_duplicates = read(again, other)
    assert shuffled == ledger
    assert ledger.lines() == len(set(lines)) == len(lines) - duplicates == len(again) - more_duplicates


@given(LINES)
def test_lines_and_gaps_are_all_numbers_up_to_the_last_one(lines: list[Entry]) -> None:
    ledger, _ = Ledger().add(lines)
    last = {run: max(seq for owner, seq, _ in lines if owner == run) for run, _, _ in lines}
    missing = {(gap.gw, gap.boot, seq) for gap in ledger.gaps() for seq in range(gap.first, gap.last + 1)}
    there = {(*run, seq) for run, seq, _ in lines}
    assert missing | there == {(*run, seq) for run, end in last.items() for seq in range(end + 1)}
    assert not missing & there


@given(LINES)
def test_a_ledger_comes_back_from_json_as_it_was(lines: list[Entry]) -> None:
    ledger, _ = Ledger().add(lines)
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_neighbours_join_and_the_first_of_two_equal_lines_counts() -> None:
    ledger, duplicates = Ledger().add(entries(3, 1, 2, 2))
    assert duplicates == [3]
    assert ledger.runs == {RUN: (Interval(1, 3, START + 2, START + 4),)}
    ledger, duplicates = ledger.add(entries(0, 1))
    assert duplicates == [1]
    assert ledger.runs == {RUN: (Interval(0, 3, START + 1, START + 4),)}


def test_a_gap_names_its_lines_and_the_seconds_around_it() -> None:
    ledger, _ = Ledger().add(entries(2, 3, 7))
    assert list(ledger.gaps()) == [
        Gap("a", RUN.boot, 0, 1, START, START + 3),
        Gap("a", RUN.boot, 4, 6, START + 4, START + 8),
    ]


def test_a_restart_is_no_gap() -> None:
    later = Run("a", RUN.boot + 60_000)
    ledger, _ = Ledger().add(entries(0, 1) + entries(0, 1, run=later))
    assert list(ledger.gaps()) == []


def test_a_gap_over_midnight_is_missing_on_both_days() -> None:
    midnight = 20_000 * DAY_S
    run = Run("a", (midnight - 101) * 1000)
    lines = [Entry(run, seq, midnight - 100 + seq) for seq in (*range(90), *range(130, 140))]
    ledger, _ = Ledger().add(lines)
    assert ledger.days() == {19_999: Completeness(90, 10), 20_000: Completeness(10, 30)}
    assert ledger.days()[20_000].share == 0.25


def test_a_clock_that_was_set_back_does_not_lose_lines() -> None:
    run = Run("a", 1_000)
    ledger, _ = Ledger().add([Entry(run, 0, 50_000), Entry(run, 1, 40_000)])
    assert ledger.days() == {0: Completeness(2, 0)}
