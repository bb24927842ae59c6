"""Connections of users that workers serve and the supervisor counts, over links that may answer late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.asked_users import AskedUsers
from gateway.server.link import LinkLost
from quotas.connections import AdmissionDecision
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings
from quotas.user_connections import UserConnections

COUNT = QuotaKey.CONNECTION_COUNT
ADMIT, REFUSE = AdmissionDecision.ADMIT, AdmissionDecision.REFUSE
ALICE = QuotaEntity("alice")
NOW_MS = 1_000_000


class Supervisor:
    """What `gateway.server.supervisor` does with the messages about users.

    Attributes:
        users: under test.
    """

    def __init__(self, limits: Limits) -> None:
        self.users = UserConnections(limits, RateSettings(), lambda: 1_000)

    def take(self, pid: int, what: str, values: tuple[Any, ...]) -> Any:
        if what == "user_enters":
            user, connection = values
            return self.users.enter(user, (pid, connection), now_ms=NOW_MS)
        ended, there = values
        for connection in ended:
            self.users.leave((pid, connection))
        for connection, user in there:
            self.users.there(user, (pid, connection))
        return None


class Asking:
    """A `BlockingLink`: while the supervisor is late, questions wait in the socket and no more is taken.

    Attributes:
        late: the supervisor does not read.
    """

    def __init__(self, supervisor: Supervisor, pid: int) -> None:
        self.late = False
        self._supervisor = supervisor
        self._pid = pid
        self._unanswered = False
        self._in_socket: list[tuple[str, tuple[Any, ...]]] = []

    def read_on(self) -> None:
        """The supervisor reads what is in the socket, in its own time."""
        self.late = self._unanswered = False
        for what, values in self._in_socket:
            self._supervisor.take(self._pid, what, values)
        self._in_socket.clear()

    def ask(self, what: str, *values: Any) -> Any:
        self._must_be_answered()
        if self.late:
            self._unanswered = True
            self._in_socket.append((what, values))
            raise LinkLost("no answer in time")
        return self._supervisor.take(self._pid, what, values)

    def tell(self, what: str, *values: Any) -> None:
        self._must_be_answered()
        self._in_socket.append((what, values))
        if not self.late:
            self.read_on()

    def _must_be_answered(self) -> None:
        if self._unanswered:
            raise LinkLost("the other process stands still")


class Worker:
    """A worker's part, and the connections that it really has."""

    def __init__(self, supervisor: Supervisor, limits: Limits, pid: int) -> None:
        self.pid = pid
        self.asking = Asking(supervisor, pid)
        self.soon: list[Callable[[], None]] = []
        self.users = AskedUsers(limits, self.asking, self.soon.append)  # type: ignore[arg-type]
        self.open: dict[int, str] = {}

    def enter(self, user: str, connection: int) -> AdmissionDecision:
        decision = self.users.enter(user, connection, now_ms=NOW_MS).decision
        self.open[connection] = user
        return decision

    def leave(self, connection: int) -> None:
        self.users.leave(connection)
        self.open.pop(connection, None)

    def turn(self) -> None:
        while self.soon:
            self.soon.pop()()


def two_workers() -> tuple[Limits, Supervisor, Worker, Worker]:
    limits = Limits()
    supervisor = Supervisor(limits)
    return limits, supervisor, Worker(supervisor, limits, 1), Worker(supervisor, limits, 2)


def test_one_count_holds_over_all_workers() -> None:
    limits, supervisor, first, second = two_workers()
    limits.set(ALICE, COUNT, 2)
    assert [first.enter("alice", 1), second.enter("alice", 1), second.enter("alice", 2)] == [ADMIT, ADMIT, REFUSE]
    first.leave(1)
    first.turn()
    assert second.enter("alice", 3) is ADMIT
    assert supervisor.users.by_user == {"alice": 2}


def test_nothing_is_asked_without_a_quota_and_one_that_is_set_later_finds_all_connections() -> None:
    limits, supervisor, first, second = two_workers()
    for at in range(3):
        first.enter("alice", at)
    assert not supervisor.users.by_user
    limits.set(ALICE, COUNT, 3)
    first.users.tick()
    assert supervisor.users.by_user == {"alice": 3}
    assert second.enter("alice", 9) is REFUSE


def test_f05_a_killed_worker_gives_back_what_its_connections_had() -> None:
    limits, supervisor, first, second = two_workers()
    limits.set(ALICE, COUNT, 2)
    first.enter("alice", 1)
    first.enter("alice", 2)
    supervisor.users.leave_all(lambda name: isinstance(name, tuple) and name[0] == first.pid)
    assert [second.enter("alice", 1), second.enter("alice", 2)] == [ADMIT, ADMIT]


def test_without_an_answer_in_time_a_connection_passes_and_counts_until_its_end() -> None:
    limits, supervisor, first, _ = two_workers()
    limits.set(ALICE, COUNT, 5)
    first.asking.late = True
    assert first.enter("alice", 1) is ADMIT
    first.leave(1)
    assert first.enter("alice", 2) is ADMIT
    first.turn()
    first.asking.read_on()
    first.users.tick()
    assert supervisor.users.by_user == {"alice": 1}
    first.leave(2)
    first.turn()
    assert not supervisor.users.by_user


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "leave", "late", "tick", "limit", "kill"]),
        st.integers(0, 1),
        st.integers(0, 5),
        st.sampled_from(["alice", "bob"]),
    ),
    max_size=60,
)


@given(_STEPS)
def test_what_is_counted_is_what_workers_have_open(steps: list[tuple[str, int, int, str]]) -> None:
    """Opened - ended = counted, by user, over links that are late, limits that come and go, and killed workers."""
    limits = Limits()
    supervisor = Supervisor(limits)
    workers = [Worker(supervisor, limits, 1), Worker(supervisor, limits, 2)]
    pid = 2
    for step, at, number, user in steps:
        worker = workers[at]
        if step == "enter":
            # Far below the limit: what is refused has no place, which others test.
            worker.enter(user, number)
        elif step == "leave":
            worker.leave(number)
            worker.turn()
        elif step == "late":
            if worker.asking.late:
                worker.asking.read_on()
            else:
                worker.asking.late = True
        elif step == "tick":
            worker.users.tick()
        elif step == "limit":
            if number:
                limits.set(ALICE, COUNT, 1_000)
            else:
                limits.remove(ALICE, COUNT)
        else:
            supervisor.users.leave_all(lambda name, dead=worker.pid: isinstance(name, tuple) and name[0] == dead)
            pid += 1
            workers[at] = Worker(supervisor, limits, pid)
    limits.set(ALICE, COUNT, 1_000)
    for worker in workers:
        worker.asking.read_on()
        worker.users.tick()
    open_now = Counter(user for worker in workers for user in worker.open.values())
    assert supervisor.users.by_user == open_now
    for worker in workers:
        for connection in list(worker.open):
            worker.leave(connection)
        worker.turn()
    assert not supervisor.users.by_user
    assert supervisor.users.held == 0


@pytest.mark.parametrize("times", [1, 2])
def test_an_end_that_is_reported_twice_counts_once(times: int) -> None:
    limits, supervisor, first, _ = two_workers()
    limits.set(ALICE, COUNT, 5)
    first.enter("alice", 1)
    first.enter("alice", 2)
    for _ in range(times):
        first.leave(1)
        first.turn()
    assert supervisor.users.by_user == {"alice": 1}
