"""The journal of throttles behind `sluice why`: bounded, and written only when a client is throttled.

One entry combines a client's throttles by one quota within a second. Older entries are merged per minute. Clients can
invent names, so there are three bounds: the entries of a client, all entries, and the length of a name. When the
journal is full, the kind with the most clients loses an entry: the oldest one of the client that was not throttled
for longest. So a flood of invented names removes only entries of its own kind (see `quotas.trackers` for kinds).

Times are wall times, because people query by them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from quotas.combine import ThrottledBy
from quotas.connections import Admission, AdmissionCause, AdmissionDecision
from quotas.entities import QuotaEntity
from quotas.group_sizes import GroupSizes
from quotas.lending import Claim, Cut
from quotas.resolution import Match, Rule, TrackerKey, entity_of
from quotas.trackers import Kind

MAX_ENTRIES: Final = 5_000
SECONDS_KEPT: Final = 30
MINUTES_KEPT: Final = 60

CONNECTION: Final = "connection"
"""A kind of throttle that `ThrottledBy` lacks: a connection was throttled or refused."""

CONNECTION_COUNT: Final = "connection_count"
"""The same, for the number of a user's connections."""


class JournalClient(NamedTuple):
    """The client of an entry: a user and a client id, or an address alone. Names are cut."""

    user: str
    client_id: str
    ip: str = ""


class Reading(NamedTuple):
    """The measured values when the throttle time was sent; None: the quota does not use the value.

    Attributes:
        rate: average per second over `window_ms`, in the unit of the quota.
        `held`: the sum over that window.
        window_ms: the time of the average.
        blocked_ms: how long nothing passes this counter, because its bucket has more than two windows of use.
        tokens: the tokens left in the bucket; below 0 is debt.
    """

    rate: float | None = None
    held: float | None = None
    window_ms: int | None = None
    blocked_ms: int = 0
    tokens: float | None = None


@dataclass(slots=True)
class Throttles:
    """An entry: throttles of one client by one quota, close together. Numbers are those of the longest.

    Attributes:
        first_ms, last_ms: wall time.
        by: the quota's family, or `CONNECTION`, or `CONNECTION_COUNT`.
        api: the request's API; for a connection the outcome.
        rule, entity: the level that decided, and the quota's entity.
        limit: in the unit of the quota; None: the client has become unlimited.
        lent: the claim on a capacity, if the limit is a share of it; None: the limit is the quota's.
        counter: the tracker key of the counter.
        shared: clients share the counter because the table is full.
        reading: see `Reading`.
        told_ms: the longest throttle time.
        total_ms, count: sum and number of all throttles.
        until_ms: the end of the last throttle.
        cut: why the share is smaller, with wall times; None: it is not.
    """

    first_ms: int
    last_ms: int
    by: str
    api: str
    rule: Rule
    entity: QuotaEntity | None
    limit: float | None
    lent: Claim | None
    counter: TrackerKey
    shared: bool
    reading: Reading
    told_ms: int
    total_ms: int
    count: int
    until_ms: int
    cut: Cut | None = None

    def like(self, by: str, api: str, match: Match) -> bool:
        """Whether another throttle of the same client belongs to this entry."""
        if self.by != by or self.api != api or self.rule is not match.rule or self.lent != match.lent:
            return False
        if self.lent is None and self.limit != match.limit:
            return False
        if _kind_of(self.cut) != _kind_of(match.cut):
            return False
        # Several groups or topics may count the same request.
        return match.beside is None or self.entity is None or self.entity == match.beside

    def add(self, told_ms: int, reading: Callable[[], Reading], *, now_ms: int) -> None:
        """Add a throttle to this entry."""
        self.last_ms = max(self.last_ms, now_ms)
        self.until_ms = max(self.until_ms, now_ms + told_ms)
        self.count += 1
        self.total_ms += told_ms
        if told_ms >= self.told_ms:
            self.told_ms, self.reading = told_ms, reading()

    def merge(self, later: Throttles) -> None:
        """Add a later entry to this one."""
        self.last_ms = max(self.last_ms, later.last_ms)
        self.until_ms = max(self.until_ms, later.until_ms)
        self.count += later.count
        self.total_ms += later.total_ms
        if later.told_ms >= self.told_ms:
            self.told_ms, self.reading = later.told_ms, later.reading
            self.counter, self.shared, self.entity = later.counter, later.shared, later.entity
            self.limit, self.cut = later.limit, later.cut


def _kind_of(cut: Cut | None) -> tuple[str, int] | None:
    """The properties of a cut that do not change; the part that is left changes each second."""
    return None if cut is None else (cut.by.value, cut.tier)


def latest_of(
    found: list[tuple[JournalClient, Throttles]], most: int
) -> list[tuple[JournalClient, Throttles]]:
    """At most `most` latest entries, and the one with the longest throttle time if it is older; the oldest first."""
    older, latest = found[:-most], found[-most:]
    longest = max(found, key=lambda each: each[1].told_ms, default=None)
    return [longest, *latest] if longest in older else latest


class _Client:
    __slots__ = ("kind", "minutes", "seconds")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.seconds: deque[Throttles] = deque()
        self.minutes: deque[Throttles] = deque()

    def __len__(self) -> int:
        return len(self.seconds) + len(self.minutes)


class ThrottleJournal:
    """See the module.

    Attributes:
        since_ms: the wall time at which the journal began.
        forgotten: entries that were removed because the journal was full.
    """

    def __init__(
        self,
        wall_ms: Callable[[], int],
        cut: Callable[[str], str],
        *,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        """Starts without entries.

        Args:
            wall_ms: the wall clock.
            cut: shortens a long name, and returns a short one unchanged.
            max_entries: see the module.
        """
        self._wall_ms = wall_ms
        self._cut = cut
        self._max_entries = max_entries
        # The client that was throttled last is the last one, in both dictionaries.
        self._clients: dict[JournalClient, _Client] = {}
        self._by_kind: dict[Kind, dict[JournalClient, None]] = {}
        self._sizes: GroupSizes[Kind] = GroupSizes()
        self._count = 0
        # The entries of connections by address and outcome in this second, because a storm brings thousands of equal
        # ones. It is cleared when an entry is removed.
        self._connections: dict[tuple[str, str], Throttles] = {}
        self._connections_s = 0
        self.since_ms = wall_ms()
        self.forgotten = 0

    def __len__(self) -> int:
        """The number of entries."""
        return self._count

    def throttled(
        self,
        client: JournalClient,
        kind: Kind,
        by: ThrottledBy,
        api: str,
        match: Match,
        throttle_time_ms: int,
        reading: Callable[[], Reading],
        *,
        shared: bool = False,
        now_ms: int,
    ) -> None:
        """Record that a response throttles a client, or that a request waits.

        Args:
            client: the client.
            kind: the client's kind; see the module.
            by: the quota's family.
            api: the request's API.
            match: the quota.
            throttle_time_ms: > 0.
            reading: returns the measured values; called only if they are kept.
            shared: see `Throttles`.
            now_ms: the present, on the clock of `match.cut`.
        """
        entity = partial(entity_of, match)
        if match.cut is not None:
            match = replace(match, cut=match.cut.shifted(self._wall_ms() - now_ms))
        self._add(client, kind, by.value, api, match, entity, throttle_time_ms, reading, shared=shared)

    def connection_throttled(
        self,
        ip: str,
        kind: Kind,
        outcome: str,
        limit: float | None,
        entity: QuotaEntity | None,
        hold_ms: int,
        reading: Reading,
    ) -> None:
        """Record that a connection was throttled or refused.

        Args:
            ip: the address.
            kind: its network.
            outcome: the outcome of the connection.
            limit: the address's rate; None: the rate was not the reason.
            entity: the entity of that rate.
            hold_ms: the time for which it is throttled; 0: refused.
            reading: the measured values.
        """
        now_ms = self._wall_ms()
        if now_ms // 1000 != self._connections_s:
            self._connections_s = now_ms // 1000
            self._connections.clear()
        entry = self._connections.get((ip, outcome))
        if entry is not None and entry.limit == limit:
            entry.add(hold_ms, lambda: reading, now_ms=now_ms)
            return
        match = Match(limit, Rule.NONE, TrackerKey("", ""))
        client = JournalClient("", "", ip)
        self._connections[ip, outcome] = self._add(
            client, kind, CONNECTION, outcome, match, lambda: entity, hold_ms, lambda: reading, shared=False
        )

    def user_connection_held(
        self, user: str, admission: Admission, match: Match, tokens: float | None
    ) -> None:
        """Record that a connection of a user waits or was refused; see `quotas.user_connections.OnHeld`."""
        held = admission.decision is AdmissionDecision.HOLD
        self._add(
            JournalClient(user, ""),
            user,
            CONNECTION_COUNT if admission.cause is AdmissionCause.USER_COUNT else CONNECTION,
            "held" if held else "refused",
            match,
            partial(entity_of, match),
            admission.wait_ms if held else 0,
            lambda: Reading(tokens=tokens),
            shared=False,
        )

    def of(self, user: str, client_id: str) -> list[Throttles]:
        """The entries of a client, the oldest first."""
        return self._entries(self._cut_client(JournalClient(user, client_id)))

    def of_address(self, ip: str) -> list[Throttles]:
        """The entries of an address, the oldest first."""
        return self._entries(JournalClient("", "", ip))

    def of_counter(self, key: TrackerKey, most: int) -> list[tuple[JournalClient, Throttles]]:
        """The latest entries of all clients that this counter made wait, the oldest first. Reads every entry."""
        key = TrackerKey(*map(self._cut, key))
        found = [
            (client, entry)
            for client, kept in self._clients.items()
            for entries in (kept.minutes, kept.seconds)
            for entry in entries
            if entry.counter == key
        ]
        found.sort(key=lambda each: each[1].first_ms)
        return found[-most:]

    def of_clients(
        self, user: str | None, client_id: str | None, most: int
    ) -> list[tuple[JournalClient, Throttles]]:
        """The latest entries of all clients with this user and this client id (None: any), as from `latest_of`.

        Reads every client.
        """
        asked = [None if name is None else self._cut(name) for name in (user, client_id)]
        found = [
            (client, entry)
            for client, kept in self._clients.items()
            if not client.ip and asked[0] in (None, client.user) and asked[1] in (None, client.client_id)
            for entries in (kept.minutes, kept.seconds)
            for entry in entries
        ]
        found.sort(key=lambda each: each[1].first_ms)
        return latest_of(found, most)

    def entries(
        self, what: str, client: JournalClient, *values: Any
    ) -> list[tuple[JournalClient, Throttles]]:
        """The result of a method `of...`, each entry with its client."""
        if what == "of_counter":
            return self.of_counter(*values)
        if what == "of_clients":
            return self.of_clients(*values)
        found = self.of_address(*values) if what == "of_address" else self.of(*values)
        return [(client, entry) for entry in found]

    def latest(self) -> Iterator[tuple[JournalClient, Throttles]]:
        """Each client with its last entry, the latest first. A change meanwhile raises RuntimeError."""
        for client, kept in reversed(self._clients.items()):
            yield client, (kept.seconds or kept.minutes)[-1]

    def _entries(self, client: JournalClient) -> list[Throttles]:
        kept = self._clients.get(client)
        return [] if kept is None else [*kept.minutes, *kept.seconds]

    def _cut_client(self, client: JournalClient) -> JournalClient:
        cut = self._cut
        return JournalClient(cut(client.user), cut(client.client_id), client.ip)

    def _add(
        self,
        client: JournalClient,
        kind: Kind,
        by: str,
        api: str,
        match: Match,
        entity: Callable[[], QuotaEntity | None],
        told_ms: int,
        reading: Callable[[], Reading],
        *,
        shared: bool,
    ) -> Throttles:
        """Add a throttle, and return its entry."""
        now_ms = self._wall_ms()
        named, client = client, self._cut_client(client)
        kept = self._clients.get(client)
        if kept is not None:
            # Several quotas or APIs may alternate within a second.
            for earlier in reversed(kept.seconds):
                if earlier.first_ms // 1000 != now_ms // 1000:
                    break
                if earlier.like(by, api, match):
                    earlier.add(told_ms, reading, now_ms=now_ms)
                    return earlier
            del self._clients[client]
        else:
            kept = _Client(kind)
        self._clients[client] = kept
        of_kind = self._by_kind.setdefault(kept.kind, {})
        of_kind.pop(client, None)
        of_kind[client] = None
        # Names in an entry are cut like the client's own, and are mostly the same names.
        names = {named.user: client.user, named.client_id: client.client_id}
        whose = entity()
        entry = Throttles(
            first_ms=now_ms,
            last_ms=now_ms,
            by=by,
            api=api,
            rule=match.rule,
            entity=whose and self._cut_entity(whose, names),
            limit=match.limit,
            lent=match.lent,
            counter=TrackerKey(*(self._short(name, names) for name in match.tracker_key)),
            shared=shared,
            reading=reading(),
            told_ms=told_ms,
            total_ms=told_ms,
            count=1,
            until_ms=now_ms + told_ms,
            cut=match.cut,
        )
        kept.seconds.append(entry)
        self._count += 1
        self._sizes.add(kept.kind)
        if len(kept.seconds) > SECONDS_KEPT:
            self._age(kept)
        while self._count > self._max_entries:
            self._forget_one()
        return entry

    def _cut_entity(self, entity: QuotaEntity, names: dict[str, str]) -> QuotaEntity:
        user, client_id = (
            self._short(name, names) if isinstance(name, str) else name
            for name in (entity.user, entity.client_id)
        )
        return QuotaEntity(user, client_id, entity.ip, entity.topic, entity.group)

    def _short(self, name: str, names: dict[str, str]) -> str:
        known = names.get(name)
        return self._cut(name) if known is None else known

    def _age(self, kept: _Client) -> None:
        oldest = kept.seconds.popleft()
        match = Match(
            oldest.limit, oldest.rule, oldest.counter, beside=oldest.entity, lent=oldest.lent, cut=oldest.cut
        )
        for earlier in reversed(kept.minutes):
            if earlier.first_ms // 60_000 != oldest.first_ms // 60_000:
                break
            if earlier.like(oldest.by, oldest.api, match):
                earlier.merge(oldest)
                self._gone(kept)
                return
        kept.minutes.append(oldest)
        if len(kept.minutes) > MINUTES_KEPT:
            kept.minutes.popleft()
            self._gone(kept)

    def _forget_one(self) -> None:
        of_kind = self._by_kind[self._sizes.largest_group()]
        client = next(iter(of_kind))
        kept = self._clients[client]
        (kept.minutes or kept.seconds).popleft()
        self._gone(kept)
        self.forgotten += 1
        if not kept:
            del self._clients[client], of_kind[client]
            if not of_kind:
                del self._by_kind[kept.kind]

    def _gone(self, kept: _Client) -> None:
        self._connections.clear()
        self._count -= 1
        self._sizes.remove(kept.kind)
