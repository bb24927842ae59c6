from quotas.trackers import TrackerTable
from testkit.clock import FakeClock


class Counter:
    def __init__(self, key: str | None, limit: float, now_ms: int) -> None:
        self.key = key
        self.limit = limit
        self.last_ms = now_ms
        self.in_debt = False
        self.forgotten = False

    def forgettable(self, *, now_ms: int) -> bool:
        return not self.in_debt

    def forget(self) -> None:
        self.forgotten = True


def _table(max_trackers: int = 3) -> TrackerTable[str, Counter]:
    return TrackerTable(Counter, max_trackers=max_trackers, idle_expiry_ms=1_000)


def test_a_key_keeps_its_counter() -> None:
    table = _table()
    assert table.find("a", 1.0) is None
    assert table.find_or_make("a", 1.0, now_ms=0) is table.find_or_make("a", 1.0, now_ms=5)
    assert table.find("a", 1.0) is table.find_own("a")


def test_hazard_c24_a_flood_of_ids_forgives_no_debt() -> None:
    table = _table(max_trackers=10)
    debtor = table.find_or_make("debtor", 1.0, now_ms=0)
    debtor.in_debt = True
    for i in range(1_000):
        table.find_or_make(f"id-{i}", 1.0, now_ms=i)
    assert table.find_or_make("debtor", 1.0, now_ms=10**9) is debtor
    assert len(list(table.own())) <= 10


def test_newcomers_share_a_counter_per_limit_when_every_counter_is_in_debt() -> None:
    table = _table()
    for key in "abc":
        table.find_or_make(key, 1.0, now_ms=0).in_debt = True
    shared = table.find_or_make("d", 1.0, now_ms=0)
    shared.in_debt = True
    assert shared.key is None
    assert table.find_or_make("e", 1.0, now_ms=0) is shared
    assert table.find("e", 1.0) is shared
    assert table.find_or_make("f", 2.0, now_ms=0) is not shared
    assert table.find_own("a") is not None


def test_shared_counters_of_limits_no_longer_in_force_go_when_they_are_clear() -> None:
    table = _table(max_trackers=1)
    table.find_or_make("a", 1.0, now_ms=0).in_debt = True
    for limit in range(100):
        table.find_or_make("b", float(limit), now_ms=0)
    assert len(list(table.shared())) == 1


def test_an_idle_counter_goes_when_others_come_and_a_busy_one_stays() -> None:
    table = _table(max_trackers=100)
    idle, busy = table.find_or_make("idle", 1.0, now_ms=0), table.find_or_make("busy", 1.0, now_ms=0)
    busy.last_ms = 900
    table.find_or_make("new", 1.0, now_ms=1_000)
    assert idle.forgotten
    assert table.find_own("idle") is None
    assert table.find_own("busy") is busy


def test_a_counter_that_was_made_room_for_says_so(clock: FakeClock) -> None:
    table = _table(max_trackers=1)
    first = table.find_or_make("a", 1.0, now_ms=clock.now_ms)
    second = table.find_or_make("b", 1.0, now_ms=clock.now_ms)
    assert first.forgotten
    assert second.key == "b"
