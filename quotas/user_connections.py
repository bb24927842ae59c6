"""Connections of users: how many a user has open, and how fast it opens them. Pure.

A connection counts when its user is known: at once without a login, otherwise after a successful login. The count is
checked first (`connection_count`). Above it the connection is refused and uses no rate. Then the rate is checked
(`connection_creation_rate`), with a bucket of `quotas.entities.API_BURST_S` seconds. Above it connections wait for
their turn, in the order of their arrival (`quotas.bound_queue`).

Each connection has a name, and the set of names is counted. So a second login of the same user on a connection counts
once, and an end that is reported twice frees one place.

There are three bounds. A connection that would wait longer than `LONGEST_WAIT_MS` is refused. At most
`ConnectionLimits.max_held` connections wait at once, and a quarter of that for one user. Beyond these two bounds a
connection is refused at once. Otherwise a refused connection first stays unread for `REFUSED_HOLD_MS`, because most
clients connect again at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple, TypeAlias

from quotas.connections import ADMIT, Admission, AdmissionCause, AdmissionDecision
from quotas.entities import QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateQuotas, RateSettings, RateTracker
from quotas.resolution import Match, resolve

LONGEST_WAIT_MS: Final = 30_000
"""After this time clients give up a request and connect again."""

REFUSED_HOLD_MS: Final = 1_000

_ADMITTED: Final = Admission(ADMIT)
_REFUSE: Final = AdmissionDecision.REFUSE
_REFUSED: Final = Admission(_REFUSE, AdmissionCause.USER_RATE)
_ENDED: Final = Admission(_REFUSE)
_PART_OF_ONE: Final = 4

OnDecided: TypeAlias = Callable[["Decision"], None]

OnHeld: TypeAlias = Callable[[str, Admission, Match, float | None], None]
"""Called when a connection waits or is refused, with the user, the decision, the quota, and the tokens left."""


class _Connection:
    """An open connection.

    Attributes:
        user: its user.
        counted: it was not refused.
        `held`: it waits, or was refused and stays unread.
        waits_for: the counter of the rate that it waits for; None: it does not wait.
        reported: a decision about it was passed to `UserConnections.on_decided`.
        delayed: one of these decisions made it wait.
    """

    __slots__ = ("counted", "delayed", "held", "reported", "user", "waits_for")

    def __init__(self, user: str) -> None:
        self.user = user
        self.counted = False
        self.held = False
        self.waits_for: RateTracker | None = None
        self.reported = self.delayed = False


class Decision(NamedTuple):
    """A decision about a connection.

    Attributes:
        user: its user.
        admission: the decision. REFUSE without a cause: the connection ended while it waited.
        tracker: the counter of the rate; None: no user has a limit of connections.
        first: it is the first decision about this connection.
        again: the connection had to wait before.
        connections: open ones of the user, this one included if it was not refused.
    """

    user: str
    admission: Admission
    tracker: RateTracker | None
    first: bool
    again: bool
    connections: int


class UserCount(NamedTuple):
    """The connections of one user.

    Attributes:
        user: its name.
        connections: open ones, those that wait included.
        limit: the limit of its count; users of one prefix share it. None: there is none.
        waiting: connections that wait, or are refused and still open.
    """

    user: str
    connections: int
    limit: float | None
    waiting: int


class UserConnections:
    """See the module.

    Attributes:
        rates: the counters of rates.
        by_user: open connections, those that wait included.
        `held`: connections that wait, or are refused and still open.
        would_refuse: connections that only an observed count would have refused.
        on_held: see `OnHeld`; None: none is called.
        on_decided: called with each decision while any user has a limit, and later with further decisions about the
            same connections; None: none is called.
    """

    def __init__(self, limits: Limits, settings: RateSettings, most_held: Callable[[], int]) -> None:
        """Starts without connections.

        Args:
            limits: changes apply at once.
            settings: with the number of users that have a counter of their own.
            most_held: returns `ConnectionLimits.max_held`; see the module.
        """
        self.rates = RateQuotas(limits, QuotaKey.CONNECTION_CREATION_RATE, settings)
        self.by_user: Counter[str] = Counter()
        self.held = 0
        self.would_refuse = 0
        self.on_held: OnHeld | None = None
        self.on_decided: OnDecided | None = None
        self._limits = limits
        self._most_held = most_held
        self._held_by: Counter[str] = Counter()
        self._connections: dict[Hashable, _Connection] = {}
        self._carried: Mapping[str, int] = {}
        # Used only with prefixes, which stand for many users: each user's counter, and the connections of a counter.
        self._counted_by: dict[str, str] = {}
        self._of_counter: Counter[str] = Counter()
        self._version = -1

    def enter(self, user: str, connection: Hashable, *, now_ms: int) -> Admission:
        """Decides about a connection whose user is known, and again about one that waits.

        Args:
            user: the user's name, cut as all names are.
            connection: the name of the connection.
            now_ms: the present.

        Returns:
            ADMIT; HOLD: call again after `wait_ms`; REFUSE: close it after `wait_ms`.
        """
        known = self._connections.get(connection)
        if known is not None and known.user != user:
            self.leave(connection)
            known = None
        if known is None:
            known = self._connections[connection] = _Connection(user)
            admission = self._begin(known, connection, now_ms)
        elif not known.counted:
            return _REFUSED
        elif known.waits_for is None:
            return _ADMITTED
        else:
            admission = self._take_turn(known, connection, now_ms)
        if self.on_decided is not None and (known.reported or self._limits.limits_user_connections):
            self._report(known, admission, self.rates.tracker(user, "", now_ms=now_ms))
        return admission

    def there(self, user: str, connection: Hashable) -> None:
        """Counts a connection that was admitted elsewhere: it does not wait."""
        known = self._connections.get(connection)
        if known is not None and known.user == user and known.counted:
            if known.waits_for is not None:
                self._report(known, _ADMITTED, known.waits_for)
            self._stop_waiting(known, connection)
            return
        self.leave(connection)
        known = self._connections[connection] = _Connection(user)
        known.counted = True
        self._count(user, 1)

    def leave(self, connection: Hashable) -> None:
        """Reports the end of a connection. An unknown connection changes nothing."""
        known = self._connections.pop(connection, None)
        if known is None:
            return
        if known.counted:
            self._count(known.user, -1)
        if known.waits_for is not None:
            self._report(known, _ENDED, known.waits_for)
        self._stop_waiting(known, connection)

    def leave_all(self, named: Callable[[Hashable], bool]) -> None:
        """Reports the end of all connections with such names, because their process has ended."""
        for connection in [each for each in self._connections if named(each)]:
            self.leave(connection)

    def counts(self) -> dict[str, int]:
        """Open connections, by user."""
        return dict(self.by_user)

    def busiest(self, most: int) -> list[UserCount]:
        """The users with the most connections, at most `most`; empty if no user has a quota of connections."""
        if not self._limits.limits_user_connections:
            return []
        found = []
        for user, count in self.by_user.most_common(most):
            match = resolve(self._limits, QuotaKey.CONNECTION_COUNT, user, "")
            found.append(UserCount(user, count, match.whole_limit, self._held_by[user]))
        return found

    def carry(self, by_user: Mapping[str, int]) -> None:
        """Counts the connections that the old process in an upgrade still has, instead of those reported before."""
        before, self._carried = self._carried, by_user
        for user in {*by_user, *before}:
            self._count(user, by_user.get(user, 0) - before.get(user, 0))

    def _begin(self, known: _Connection, connection: Hashable, now_ms: int) -> Admission:
        """Decides about a new connection."""
        match = self._of_count(known.user)
        if match is not None and not match.observe:
            return self._refuse(known, AdmissionCause.USER_COUNT, match, None)
        self.would_refuse += match is not None
        known.counted = True
        self._count(known.user, 1)
        return self._take_turn(known, connection, now_ms)

    def _report(self, known: _Connection, admission: Admission, tracker: RateTracker | None) -> None:
        if self.on_decided is not None:
            user, first = known.user, not known.reported
            self.on_decided(
                Decision(user, admission, tracker, first, known.delayed, self.by_user.get(user, 0))
            )
        known.reported = True
        known.delayed |= admission.wait_ms > 0

    # -- the count -------------------------------------------------------------------------------------------

    def _of_count(self, user: str) -> Match | None:
        """The count that allows this user no further connection; None: it may have one."""
        if not self._limits.limits_user_connections:
            return None
        match = resolve(self._limits, QuotaKey.CONNECTION_COUNT, user, "")
        # A gateway that is isolated from its fleet applies the whole count, because counts are not shared.
        most = match.whole_limit
        if most is None:
            return None
        self._refresh()
        counter = match.tracker_key.user
        open_now = self.by_user[user] if counter == user else self._of_counter[counter]
        return match if open_now >= most else None

    def _count(self, user: str, change: int) -> None:
        count = self.by_user[user] + change
        if self._limits.prefixes:
            self._refresh()
            counter = self._counted_by.get(user) or self._counter_of(user)
            self._counted_by[user] = counter
            self._of_counter[counter] += change
            if not count:
                del self._counted_by[user]
            if not self._of_counter[counter]:
                del self._of_counter[counter]
        if count:
            self.by_user[user] = count
        else:
            del self.by_user[user]

    def _counter_of(self, user: str) -> str:
        return resolve(self._limits, QuotaKey.CONNECTION_COUNT, user, "").tracker_key.user

    def _refresh(self) -> None:
        if not self._limits.prefixes or self._version == self._limits.version:
            return
        self._version = self._limits.version
        self._counted_by = {user: self._counter_of(user) for user in self.by_user}
        self._of_counter = Counter()
        for user, counter in self._counted_by.items():
            self._of_counter[counter] += self.by_user[user]

    # -- the rate --------------------------------------------------------------------------------------------

    def _take_turn(self, known: _Connection, connection: Hashable, now_ms: int) -> Admission:
        tracker = None
        if self._limits.limits_user_connections:
            tracker = self.rates.tracker(known.user, "", now_ms=now_ms)
        again = known.waits_for is not None
        if tracker is None or tracker.match.limit is None:
            self._stop_waiting(known, connection)
            return _ADMITTED
        if known.waits_for is not tracker:  # the quota has changed meanwhile
            self._stop_waiting(known, connection)
        wait_ms = tracker.wait_ms(connection, 1.0, now_ms=now_ms)
        if wait_ms <= 0:
            self._stop_waiting(known, connection)
            tracker.record(1.0, now_ms=now_ms)
            return _ADMITTED
        if wait_ms > LONGEST_WAIT_MS or not (known.held or self._may_hold(known.user)):
            tracker.leave(connection)
            known.counted = False
            self._count(known.user, -1)
            tokens = tracker.tokens(now_ms=now_ms)
            return self._refuse(known, AdmissionCause.USER_RATE, tracker.match, tokens)
        known.waits_for = tracker
        self._hold(known)
        tracker.throttles.record(wait_ms, again=again, now_ms=now_ms)
        admission = Admission(AdmissionDecision.HOLD, AdmissionCause.USER_RATE, wait_ms, now_ms + wait_ms)
        if not again and self.on_held is not None:
            self.on_held(known.user, admission, tracker.match, tracker.tokens(now_ms=now_ms))
        return admission

    def _refuse(
        self, known: _Connection, cause: AdmissionCause, match: Match, tokens: float | None
    ) -> Admission:
        known.waits_for = None
        hold_ms = 0
        if known.held or self._may_hold(known.user):
            self._hold(known)
            hold_ms = REFUSED_HOLD_MS
        admission = Admission(_REFUSE, cause, hold_ms)
        if self.on_held is not None:
            self.on_held(known.user, admission, match, tokens)
        return admission

    def _may_hold(self, user: str) -> bool:
        most = self._most_held()
        return self.held < most and self._held_by[user] < max(1, most // _PART_OF_ONE)

    def _hold(self, known: _Connection) -> None:
        if not known.held:
            known.held = True
            self.held += 1
            self._held_by[known.user] += 1

    def _stop_waiting(self, known: _Connection, connection: Hashable) -> None:
        if known.waits_for is not None:
            known.waits_for.leave(connection)
            known.waits_for = None
        if known.held:
            known.held = False
            self.held -= 1
            self._held_by[known.user] -= 1
            if not self._held_by[known.user]:
                del self._held_by[known.user]
