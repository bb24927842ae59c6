from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quotas.trackers import FLEET_KIND, Kind, TrackerTable
from testkit.clock import FakeClock


class Counter:
    """What has been taken from it never comes back by itself."""

    def __init__(self, key: str | None, limit: float, now_ms: int) -> None:
        self.key = key
        self.limit_per_s = limit
        self.last_ms = now_ms
        self.kind: Kind = ""
        self.taken = 0
        self.forgotten = False

    def forgettable(self, *, now_ms: int) -> bool:
        return self.taken == 0

    def absorb(self, other: Counter, *, now_ms: int) -> None:
        self.taken += other.taken

    def forget(self) -> None:
        self.forgotten = True


def table_of(max_trackers: int = 3) -> TrackerTable[str, Counter]:
    return TrackerTable(Counter, max_trackers=max_trackers, idle_expiry_ms=1_000)


def take(
    table: TrackerTable[str, Counter],
    key: str,
    kind: str = "alice",
    *,
    limit: float = 1.0,
    taken: int = 1,
    now_ms: int = 0,
) -> Counter:
    counter = table.find_or_make(key, limit, kind, now_ms=now_ms)
    counter.taken += taken
    counter.last_ms = now_ms
    return counter


def test_a_key_keeps_its_counter() -> None:
    table = table_of()
    assert table.find("a", 1.0, "alice") is None
    assert take(table, "a", taken=0) is take(table, "a", taken=0, now_ms=5)
    assert table.find("a", 1.0, "alice") is table.find_own("a")


def test_hazard_c24_i03_a_flood_of_ids_forgives_no_debt() -> None:
    table = table_of(10)
    debtor = take(table, "debtor")
    for i in range(1_000):
        take(table, f"id-{i}", taken=0, now_ms=i)
    assert take(table, "debtor", now_ms=10**9) is debtor
    assert len(table.own()) <= 10


def test_newcomers_share_counters_by_limit_and_shared_ones_go_when_clear() -> None:
    table = table_of()
    for key in "abc":
        take(table, key)
    shared = take(table, "d")
    assert shared.key is None
    assert take(table, "e") is table.find("e", 1.0, "alice") is shared
    assert take(table, "f", limit=2.0) is not shared
    assert table.find_own("a") is not None
    table = table_of(1)
    take(table, "a")
    for limit in range(100):
        take(table, "b", limit=float(limit), taken=0)
    assert len(list(table.shared())) == 1


def test_counters_go_when_idle_or_when_room_is_needed_and_say_so(clock: FakeClock) -> None:
    table = table_of(100)
    idle, busy = take(table, "idle", taken=0), take(table, "busy", taken=0, now_ms=900)
    take(table, "new", now_ms=1_000)
    assert idle.forgotten
    assert table.find_own("idle") is None
    assert table.find_own("busy") is busy
    table = table_of(1)
    first = take(table, "a", taken=0)
    second = take(table, "b", taken=0)
    assert first.forgotten
    assert second.key == "b"


# -- K08 -----------------------------------------------------------------------------------------------------
def test_k08_a_kind_that_fills_the_table_gives_way_and_keeps_its_debts() -> None:
    table = table_of(100)
    for i in range(200):
        take(table, f"mallory-{i}", "mallory")
    for i in range(49):
        assert take(table, f"alice-{i}", "alice").key == f"alice-{i}"
    assert len(table.own()) == 100
    (shared,) = table.shared()
    assert shared.taken == 149, "100 that found no place, and 49 whose place was needed"
    assert table.find("alice-99", 1.0, "alice") is None


def test_k08_shared_counters_are_bounded_however_many_kinds_and_limits_there_are() -> None:
    table = table_of(16)
    for i in range(5_000):
        take(table, f"a-{i}", f"kind-{i}", limit=float(i % 5))
    assert len(table.own()) == 16
    assert len(list(table.shared())) <= 16 + 16 + 5


_calls = st.lists(
    st.tuples(st.sampled_from(["x", "x", "x", "y", "z"]), st.integers(0, 12), st.integers(0, 2)), max_size=120
)


@given(_calls)
def test_k08_a_kind_below_its_share_shares_nothing_and_nothing_is_forgiven(calls: list[tuple[str, int, int]]) -> None:
    table = table_of(8)
    taken: dict[tuple[str, str], int] = {}
    for kind, number, amount in calls:
        key = f"{kind}{number}"
        own = {own_key: counter.kind for own_key, counter in table.own()}
        kinds = {*own.values(), kind}
        of_kind = [own_key for own_key, own_kind in own.items() if own_kind == kind]
        counter = take(table, key, kind, taken=amount)
        if key in own or len(of_kind) < 8 // len(kinds):
            assert counter.key == key
        assert counter.kind == kind
        assert len(table.own()) <= 8
        taken[key, kind] = taken.get((key, kind), 0) + amount
        for (each, its_kind), expected in taken.items():
            found = table.find(each, 1.0, its_kind)
            assert expected <= (0 if found is None else found.taken)


def test_a_client_without_a_counter_finds_the_one_it_would_share_and_idle_shared_ones_go() -> None:
    table = table_of(1)
    take(table, "a", "alice")
    shared = take(table, "b", "alice")
    assert shared is not table.find_own("a")
    assert table.find("c", 1.0, "alice") is shared
    assert table.find("c", 2.0, "alice") is None
    shared.taken = 0
    table.expire(now_ms=10_000)
    assert list(table.shared()) == []


def test_a_counter_that_another_member_made_known_gets_the_kind_of_its_client() -> None:
    """Otherwise its debt would go to the shared counter of a kind that no client has."""
    table = table_of(10)
    debtor = take(table, "debtor", FLEET_KIND, taken=0)
    for i in range(9):
        take(table, f"other-{i}", FLEET_KIND)
    assert take(table, "debtor", "alice", taken=100) is debtor
    for i in range(4):
        take(table, f"bob-{i}", "bob")
    assert take(table, "debtor", "alice", taken=0) is debtor
    assert take(table, "debtor", FLEET_KIND, taken=0).kind == "alice"
