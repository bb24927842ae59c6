"""The exchange of usage between members: what to report, and how to count reports. Pure: `now_ms` in, messages out.

Every member has its own counters and throttles by them alone. It also records the other members' usage in them,
marked as theirs, and Kafka's arithmetic over the sum gives the throttle times. A message only has counters whose
usage can matter to others (`RateTracker.near`). So messages grow with the counters near their limit, not with
clients. In a burst a counter lets nothing pass until this member's own message has come back
(`RateTracker.most_alone`). All members read one log, so the member then knows all that others wrote before.

A missing message is requested again. Exchanging levels alone would not suffice: if each of two members lacks a
message of the other, neither counter has both, and both members would continue with the larger one. A member that has
just started, was isolated, or does not get a message again asks the others for the levels of their counters, and
raises its own to them. With the question it sends all usage that it has recorded, so that their answers include it.
So nothing counts twice, whatever the order.

A member is connected if its own messages come back to it. Otherwise it is isolated and continues by `OnIsolation`. It
does not count messages that arrive meanwhile, but asks for levels afterwards. Times are monotonic, of this process
alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar

from gateway.fleet.counters import AllCounters, Counter, kind_of
from gateway.fleet.peers import Peers
from gateway.fleet.shares import (
    Answer,
    Level,
    Member,
    Share,
    Used,
    can_be_told,
    in_messages,
    told_amount,
)
from protocol.steps import Steps, finish
from quotas.entities import QuotaKey
from quotas.group_quotas import CounterKey
from quotas.rate_quotas import ScopedKey

_ANSWERERS: Final = 3
_FROM_ANY: Final = 3
"""From this attempt on, members without the others' levels answer too: all may have started at once."""
_ASK_AGAIN_MS: Final = 1_000
_MOST_KEPT_BACK_MS: Final = 10_000
"""After an isolation, a member waits at most so long for the others' levels."""
_REMEMBERED_MS: Final = 60_000
"""A member that is silent for a shorter time may only be isolated, and still use its share."""
_RATE_SPAN_MS: Final = 1_000
_MOST_UNHEARD: Final = 1_000
_MOST_KEPT: Final = 20_000
"""The most counters in messages that are kept to be sent again."""
_MOST_USERS: Final = 1_024
_MOST_ASKERS: Final = 256
"""The most members that are answered at once; others ask again."""
_AT_ONCE: Final = 64
"""The most counters in one step."""
_URGENT_AFTER_MS: Final = 10

T = TypeVar("T")
Counted: TypeAlias = list[tuple[Counter, float]]


@dataclass(slots=True)
class _Kept:
    """A message that can be sent again, and when it was sent first and last."""

    share: Share
    sent_ms: int
    repeated_ms: int


class OnIsolation(StrEnum):
    """The limits of an isolated member."""

    SHARE = "share"  # the limit divided by the members seen last
    LOCAL = "local"  # the limit
    LAST = "last"  # the limit, less the others' last usage


@dataclass(frozen=True, slots=True)
class FleetRules:
    """How members exchange.

    Attributes:
        interval_ms: the time between two messages about a counter near its limit.
        heartbeat_ms: the time between two messages when no counter has changed.
        timeout_ms: a member that is silent for so long counts as absent. A member whose own messages stay away for so
            long is isolated.
        max_counters_per_s: the most counters that a member sends and receives; above it, the interval grows.
        on_isolation: the limits while this member is isolated.
        members: the number of members before any was seen, and the least number for an isolated member's share.
    """

    interval_ms: int = 100
    heartbeat_ms: int = 1_000
    timeout_ms: int = 3_000
    max_counters_per_s: int = 20_000
    on_isolation: OnIsolation = OnIsolation.SHARE
    members: int = 1


class Exchange:
    """One member's side.

    Attributes:
        member: this one.
        connected: its own messages come back to it.
        peers: the other members.
        lag_ms: how long its last message took to come back.
        `told`, `heard`: counters in messages, sent and received.
        on_use: called with the usage of another member; None: no callback.
        used_by: reported usage so far, by member (including this one) and quota.
    """

    def __init__(self, member: Member, counters: AllCounters, rules: FleetRules, *, now_ms: int) -> None:
        """Isolated until its first message comes back.

        Args:
            member: this one.
            counters: of this process.
            rules: the same for all members.
            now_ms: the present.
        """
        self.member = member
        self.connected = False
        self.peers = Peers(timeout_ms=rules.timeout_ms, patience_ms=rules.timeout_ms)
        self.lag_ms = 0
        self.told = 0
        self.heard = 0
        self.on_use: Callable[[Member, QuotaKey, Sequence[Used]], None] | None = None
        self.used_by: dict[str, dict[QuotaKey, float]] = {}
        self._counters = counters
        self._rules = rules
        self._seq = 0
        self._sent_at: deque[tuple[int, int]] = deque(maxlen=_MOST_UNHEARD)  # own messages: number, time
        self._touch_ms = now_ms  # when the last own message that came back was sent
        self._sent_ms = now_ms - rules.heartbeat_ms
        self._members_seen = rules.members
        self._ignorant = True  # it does not have the others' levels yet
        self._was_isolated = False  # and this is because it was isolated
        self._back_ms = now_ms  # when it last became connected
        self._members_told = 0
        # The question for levels: how often and when it was sent, from which own message on, and to which members.
        self._asked = 0
        self._asked_ms = now_ms - _ASK_AGAIN_MS
        self._asking_since: int | None = 1
        self._asking_of: set[str] = set()
        self._to_answer: dict[Member, int] = {}  # the number of each member's last question
        self._all_again_ms = float(now_ms)  # before this time it does not send all usage again
        # Usage that was sent and has not come back: the number of the last message, and the amount of each counter.
        self._on_way: deque[tuple[int, Counted]] = deque()
        # Recent messages by number, and the numbers of those to send again.
        self._kept: dict[int, _Kept] = {}
        self._kept_counters = 0
        self._again: set[int] = set()
        # The recent rate of counters sent and received, and when counters are examined next.
        self._load = 0.0
        self._load_ms = now_ms
        self._look_ms = now_ms
        self._recent = _RecentUse() if rules.on_isolation is OnIsolation.LAST else None

    # -- what the gateway asks -------------------------------------------------------------------------------

    def members(self, *, now_ms: int) -> int:
        """The number of members, including this one; the last known number while this one is isolated."""
        if self.connected:
            # As of the last contact: a silence since then may be this member's own isolation.
            seen = 1 + len(self.peers.present(now_ms=min(now_ms, self._touch_ms)))
            # Shortly after an isolation it may not have heard all of them.
            self._members_seen = max(self._members_seen, seen) if self._was_isolated else seen
        return self._members_seen

    def _members_remembered(self, now_ms: int) -> int:
        """The number of members if silent ones are only isolated."""
        remembered = self.peers.remembered(within_ms=_REMEMBERED_MS, now_ms=min(now_ms, self._touch_ms))
        return max(self.members(now_ms=now_ms), 1 + len(remembered - {self.member.id}))

    def share(self, *, now_ms: int) -> float:
        """The factor for the limits of this member now.

        After an isolation a member keeps its share until it has the others' levels. With the whole limit it would let
        another burst pass before their answers arrive.
        """
        if self._rules.on_isolation is not OnIsolation.SHARE or self.in_agreement:
            return 1.0
        return 1 / max(self.members(now_ms=now_ms), self._rules.members)

    @property
    def in_agreement(self) -> bool:
        """Whether it is connected and, after an isolation, has the others' levels."""
        return self.connected and not self._was_isolated

    @property
    def caught_up(self) -> bool:
        """Whether it is connected and has the others' levels."""
        return self.connected and self._asking_since is None

    def isolated_ms(self, *, now_ms: int) -> int:
        """How long it has been isolated; 0: it is connected."""
        return 0 if self.connected else now_ms - self._touch_ms

    def interval_ms(self, *, now_ms: int) -> int:
        """The time between two messages about a counter near its limit, at the present load."""
        self._add_load(0, now_ms)
        stretch = max(1.0, self._load / self._rules.max_counters_per_s)
        return min(math.ceil(self._rules.interval_ms * stretch), self._rules.timeout_ms)

    # -- sending ---------------------------------------------------------------------------------------------

    def tick(self, *, now_ms: int) -> list[Share]:
        """The messages to send now, in this order; to be called every `FleetRules.interval_ms`."""
        return finish(self.tick_in_steps(now_ms=now_ms))

    def tick_in_steps(self, *, now_ms: int) -> Steps[list[Share]]:
        """`tick` in steps, between which clients may be served and messages received."""
        self._look_at_touch(now_ms)
        if not self.connected and self._recent is not None:
            self._assume(now_ms)
        if lost := self.peers.lost(now_ms=now_ms):
            self._ask({peer.member.id for peer in lost})
        wanted = self.peers.wanted(after_ms=_ASK_AGAIN_MS, now_ms=now_ms) if self.connected else []
        asks = answers = False
        if now_ms >= self._all_again_ms:
            asks, answers = self._asks_now(now_ms), self.connected and bool(self._to_answer)
        use: list[tuple[QuotaKey, Used]] = []
        counted: Counted = []
        members = self._hold_back(now_ms)
        # Usage for which requests wait must be sent, even if all other members are silent.
        if self.connected and (asks or answers or (members > 1 and now_ms >= self._look_ms)):
            # With more members, less usage may stay unreported.
            everything = asks or answers
            grown, self._members_told = members > self._members_told, members
            use = yield from self._take_untold(members, everything, grown, counted, now_ms)
            self._look_ms = now_ms + self.interval_ms(now_ms=now_ms)
        levels = (yield from self._levels(now_ms)) if answers else []
        if asks or answers:
            # Even members that break the rules and ask all the time cannot make it send more than its rate.
            counters = len(use) + len(levels)
            self._all_again_ms = now_ms + 1000 * counters / self._rules.max_counters_per_s
        repeated = self._repeat(now_ms)
        due = now_ms - self._sent_ms >= self._rules.heartbeat_ms
        if not (use or answers or asks or wanted or due):
            return repeated
        to: list[Answer] = []
        if answers:
            to = [Answer(member, seq) for member, seq in self._to_answer.items()]
            self._to_answer.clear()
        shares = self._messages(use, levels, to)
        if asks:
            self._asked += 1
            self._asked_ms = now_ms
            of = tuple(sorted(self._asking_of))
            shares.append(Share(self.member, self._next(), hello=self._asked, of=of))
        if wanted or not shares:
            shares.append(Share(self.member, self._next(), again=tuple(wanted)))
        return repeated + self._sent(shares, counted, now_ms)

    def _hold_back(self, now_ms: int) -> int:
        """Make requests wait while the others do not know earlier usage; returns the number of members."""
        interval_ms = self.interval_ms(now_ms=now_ms)
        oldest_ms = now_ms - self._sent_at[0][1] if self._sent_at else 0
        remembered = self._members_remembered(now_ms) if self.connected else 1
        for counters in self._counters.values():
            counters.hold_back(
                remembered,
                interval_ms + min(self.lag_ms, self._rules.timeout_ms),
                min(max(_URGENT_AFTER_MS, self.lag_ms, oldest_ms), self._rules.interval_ms),
            )
        return remembered

    def _sent(self, shares: list[Share], counted: Counted, now_ms: int) -> list[Share]:
        if shares:
            self._sent_ms = now_ms
        if counted:
            self._on_way.append((shares[-1].seq, counted))
        for share in shares:
            self._sent_at.append((share.seq, now_ms))
            self._add_load(share.counters, now_ms)
            self.told += share.counters
            self._keep(share, now_ms)
        return shares

    def on_urgent(self, wake: Callable[[], None]) -> None:
        """Set the function to call when `tell_urgent` should not wait for the next tick."""
        for counters in self._counters.values():
            counters.on_urgent(wake)

    def tell_urgent(self, *, now_ms: int) -> list[Share]:
        """The messages to send before the next tick, about counters with much usage since their last message.

        Otherwise each member would let pass what it can within an interval, before it knows the others' bursts.
        """
        members = self._members_remembered(now_ms)
        stretched = self.interval_ms(now_ms=now_ms) > self._rules.interval_ms
        told = self.connected and members > 1 and not stretched
        use: list[tuple[QuotaKey, Used]] = []
        counted: Counted = []
        for quota, counters in self._counters.items():
            urgent = counters.urgent()
            if told:  # otherwise they wait for the tick, like all counters
                use += finish(self._untold_of(quota, urgent[:_AT_ONCE], members, False, counted, now_ms))
        return self._sent(self._messages(use, [], []), counted, now_ms)

    def urgent_after_ms(self, *, now_ms: int) -> int:
        """The time between two calls of `tell_urgent`: the fleet sends at most a thousand such messages a second."""
        return max(_URGENT_AFTER_MS, self.members(now_ms=now_ms))

    def _keep(self, share: Share, now_ms: int) -> None:
        """Keep the usage in a message for as long as it may be requested again."""
        kept = self._kept
        again = Share(self.member, share.seq, use=share.use, repeated=True)
        kept[share.seq] = _Kept(again, now_ms, now_ms)
        self._kept_counters += again.counters
        while kept:
            seq, oldest = next(iter(kept.items()))
            if now_ms - oldest.sent_ms < 2 * self._rules.timeout_ms and self._kept_counters <= _MOST_KEPT:
                break
            del kept[seq]
            self._again.discard(seq)
            self._kept_counters -= oldest.share.counters

    def _repeat(self, now_ms: int) -> list[Share]:
        """The messages that were requested again, under their old numbers: members that have them ignore them.

        Members ask a second after a message was due. It is sent once for all that ask within half a second.
        """
        repeated = []
        for seq in sorted(self._again):
            kept = self._kept.get(seq)
            if kept is None:
                self._again.discard(seq)
            elif now_ms - kept.repeated_ms >= _ASK_AGAIN_MS // 2:
                self._again.discard(seq)
                kept.repeated_ms = now_ms
                self.told += kept.share.counters
                self._add_load(kept.share.counters, now_ms)
                repeated.append(kept.share)
        return repeated

    def leave(self, *, now_ms: int) -> list[Share]:
        """The last messages of this member, with its unsent usage. From now on no request waits for messages."""
        for counters in self._counters.values():
            counters.hold_back(1, 0, 0)
        use = finish(self._take_untold(1, True, True, [], now_ms)) if self.connected else []
        return [*self._messages(use, [], []), Share(self.member, self._next(), bye=True)]

    def _asks_now(self, now_ms: int) -> bool:
        if not self.connected or self._asking_since is None or now_ms - self._asked_ms < _ASK_AGAIN_MS:
            return False
        if self._asked:
            self._asking_of = set()  # no answer from them: ask any member
            if not self.peers.present(now_ms=now_ms):
                self._asking_since = None  # alone
                self._ignorant = self._was_isolated = False
                return False
        return True

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _take_untold(
        self, members: int, everything: bool, look_at_all: bool, counted: Counted, now_ms: int
    ) -> Steps[list[tuple[QuotaKey, Used]]]:
        found: list[tuple[QuotaKey, Used]] = []
        for quota, counters in self._counters.items():
            counters.urgent()  # forgets them: they are included below
            look_at = list(counters.own() if everything or look_at_all else counters.stirred())
            found += yield from self._untold_of(quota, look_at, members, everything, counted, now_ms)
        return found

    def _untold_of(
        self,
        quota: QuotaKey,
        look_at: Sequence[tuple[CounterKey, Counter]],
        members: int,
        everything: bool,
        counted: Counted,
        now_ms: int,
    ) -> Steps[list[tuple[QuotaKey, Used]]]:
        found: list[tuple[QuotaKey, Used]] = []
        for at, (key, counter) in enumerate(look_at):
            if at % _AT_ONCE == _AT_ONCE - 1:
                yield
            untold = counter.untold(now_ms=max(now_ms, counter.last_ms))
            if counter.match.limit is None:
                continue
            if not untold:
                counter.near(0.0, members, now_ms=now_ms)  # a fleet that has grown leaves less to each
                continue
            if (everything or counter.near(untold, members, now_ms=now_ms)) and can_be_told(key):
                amount = told_amount(untold)
                counter.settle(amount)
                if isinstance(key, ScopedKey):  # a topic's bytes are those of a client too
                    self._count_use(self.member.id, quota, amount)
                if amount:
                    found.append((quota, (key, amount)))
                    counted.append((counter, amount))
        return found

    def _levels(self, now_ms: int) -> Steps[list[tuple[QuotaKey, Level]]]:
        found: list[tuple[QuotaKey, Level]] = []
        for quota, counters in self._counters.items():
            for at, (key, counter) in enumerate(list(counters.own())):
                if at % _AT_ONCE == _AT_ONCE - 1:
                    yield
                if counter.match.limit is not None:
                    total, fill = counter.level(now_ms=now_ms)
                    # Usage since `use` was taken is sent later.
                    untold = max(0.0, counter.untold(now_ms=max(now_ms, counter.last_ms)))
                    total, fill = max(0.0, total - untold), max(0.0, fill - untold)
                    if (total > 0 or fill > 0) and can_be_told(key):
                        found.append((quota, (key, told_amount(total), told_amount(fill))))
        return found

    def _messages(
        self,
        use: list[tuple[QuotaKey, Used]],
        levels: list[tuple[QuotaKey, Level]],
        answers: list[Answer],
    ) -> list[Share]:
        shares = [Share(self.member, self._next(), use=_by_quota(part)) for part in in_messages(use)]
        if answers:
            to = tuple(answers)
            parts = list(in_messages(levels)) or [[]]
            for number, part in enumerate(parts, start=1):
                last = number == len(parts)
                shares.append(Share(self.member, self._next(), levels=_by_quota(part), to=to, last=last))
        return shares

    # -- receiving -------------------------------------------------------------------------------------------

    def receive(self, share: Share, *, now_ms: int) -> None:
        """Take a message of any member, including this one."""
        finish(self.receive_in_steps(share, now_ms=now_ms))

    def receive_in_steps(self, share: Share, *, now_ms: int) -> Steps[None]:
        """`receive` in steps; finish one message before the next."""
        self._look_at_touch(now_ms)
        if share.member == self.member:
            self._hear_itself(share, now_ms)
            return
        if not self.peers.take(share, now_ms=now_ms) or not self.connected:
            return
        self.heard += share.counters
        self._add_load(share.counters, now_ms)
        for quota, used in share.use.items():
            counters = self._counters.get(quota)
            if counters is None:
                continue
            for at, (key, amount) in enumerate(used):
                if at % _AT_ONCE == _AT_ONCE - 1:
                    yield
                counter = counters.counter_of(key, kind_of(key), now_ms=now_ms)
                if counter is not None:
                    counter.record_others(amount, now_ms=max(now_ms, counter.last_ms))
                    if self._recent is not None:
                        self._recent.add(quota, key, amount, now_ms)
            self._count_use(share.member.id, quota, _by_clients(used))
            if self.on_use is not None:
                self.on_use(share.member, quota, used)
        if share.to:
            yield from self._take_levels(share, now_ms)
        for again in share.again:
            if again.member == self.member:
                self._again.update(seq for seq in again.seqs if seq in self._kept)
        if (
            share.hello
            and (share.member in self._to_answer or len(self._to_answer) < _MOST_ASKERS)
            and self._is_asked(share, now_ms)
        ):
            self._to_answer[share.member] = share.seq

    def _take_levels(self, share: Share, now_ms: int) -> Steps[None]:
        since = self._asking_since
        if since is None or not any(
            answer.member == self.member and answer.seq >= since for answer in share.to
        ):
            return
        for quota, levels in share.levels.items():
            counters = self._counters.get(quota)
            if counters is None:
                continue
            for at, (key, total, fill) in enumerate(levels):
                if at % _AT_ONCE == _AT_ONCE - 1:
                    yield
                counter = counters.counter_of(key, kind_of(key), now_ms=now_ms)
                if counter is not None:
                    counter.raise_to(total, fill, now_ms=max(now_ms, counter.last_ms))
        self.peers.leave_to_levels()
        if share.last:
            self._asking_of.discard(share.member.id)
            if not self._asking_of:
                self._asking_since = None
                self._ignorant = self._was_isolated = False

    def _is_asked(self, share: Share, now_ms: int) -> bool:
        """Whether to answer: three members do, the next ones by name after the asking one; more if it asks again."""
        if share.of:
            return self.member.id in share.of
        if self._ignorant and share.hello < _FROM_ANY:
            return False
        present = [peer.member for peer in self.peers.present(now_ms=now_ms)]
        ring = sorted({*present, self.member} - {share.member})
        first = next((at for at, member in enumerate(ring) if member > share.member), 0)
        return (ring.index(self.member) - first) % len(ring) < _ANSWERERS * share.hello

    # -- touch -----------------------------------------------------------------------------------------------

    def _hear_itself(self, share: Share, now_ms: int) -> None:
        while self._sent_at and self._sent_at[0][0] <= share.seq:
            seq, sent_ms = self._sent_at.popleft()
            if seq == share.seq:
                self.lag_ms = now_ms - sent_ms
                self._touch_ms = max(self._touch_ms, sent_ms)
                # A message from before the isolation does not show that it is over.
                if not self.connected and self.lag_ms < self._rules.timeout_ms:
                    self.connected = True
                    self._back_ms = now_ms
                    self._ask(set())
                    self.peers.leave_to_levels(anew=True)
        self._take_off_way(share.seq, now_ms)

    def _take_off_way(self, seq: int, now_ms: int) -> None:
        """Messages up to this one have come back, or are no longer expected."""
        while self._on_way and self._on_way[0][0] <= seq:
            for counter, amount in self._on_way.popleft()[1]:
                counter.delivered(amount, now_ms=now_ms)

    def _look_at_touch(self, now_ms: int) -> None:
        if self.connected and now_ms - self._back_ms >= _MOST_KEPT_BACK_MS:
            self._was_isolated = False
        if self.connected and now_ms - self._touch_ms >= self._rules.timeout_ms:
            self._members_seen = self._members_remembered(now_ms)
            self.connected = False
            self._ignorant = self._was_isolated = True
            self._to_answer.clear()
            self._again.clear()
            self._hold_back(now_ms)
            self._take_off_way(self._seq, now_ms)
            if self._recent is not None:
                self._recent.isolate(self._touch_ms)

    def _ask(self, of: set[str]) -> None:
        """Ask for levels with the next message; answers to earlier questions do not suffice."""
        self._asking_since = self._seq + 1
        self._asking_of = of
        self._asked = 0
        self._asked_ms = self._sent_ms - _ASK_AGAIN_MS
        self.peers.leave_to_levels()

    def _assume(self, now_ms: int) -> None:
        assert self._recent is not None
        for (quota, key), amount in self._recent.since_last(now_ms):
            counter = self._counters[quota].counter_of(key, kind_of(key), now_ms=now_ms)
            if counter is not None:
                counter.record_others(amount, now_ms=now_ms)

    # -- figures ---------------------------------------------------------------------------------------------

    def _add_load(self, counters: int, now_ms: int) -> None:
        """An average over about a second."""
        passed_ms = now_ms - self._load_ms
        if passed_ms > 0:
            self._load *= math.exp(-passed_ms / _RATE_SPAN_MS)
            self._load_ms = now_ms
        self._load += counters * 1000 / _RATE_SPAN_MS

    def _count_use(self, member: str, quota: QuotaKey, amount: float) -> None:
        used = self.used_by.get(member)
        if used is None:
            if len(self.used_by) >= _MOST_USERS:
                del self.used_by[next(iter(self.used_by))]
            used = self.used_by[member] = {}
        used[quota] = used.get(quota, 0.0) + amount


class _RecentUse:
    """The others' recent usage, by counter: two spans of time, so that one of them is complete."""

    SPAN_MS: Final = 5_000

    def __init__(self) -> None:
        self._now: dict[tuple[QuotaKey, CounterKey], float] = {}
        self._before: dict[tuple[QuotaKey, CounterKey], float] = {}
        self._began_ms = self._last_ms = 0
        self._rates: dict[tuple[QuotaKey, CounterKey], float] = {}
        self._assumed_ms = 0

    def add(self, quota: QuotaKey, key: CounterKey, amount: float, now_ms: int) -> None:
        self._turn(now_ms)
        self._last_ms = now_ms
        self._now[quota, key] = self._now.get((quota, key), 0.0) + amount

    def isolate(self, since_ms: int) -> None:
        """From now on, `since_last` has the usage that the others would have recorded."""
        span_ms = self.SPAN_MS + max(since_ms, self._last_ms) - self._began_ms
        self._rates = {
            name: max(0.0, self._before.get(name, 0.0) + self._now.get(name, 0.0)) / span_ms
            for name in {*self._before, *self._now}
        }
        self._assumed_ms = since_ms

    def since_last(self, now_ms: int) -> Iterator[tuple[tuple[QuotaKey, CounterKey], float]]:
        passed_ms, self._assumed_ms = now_ms - self._assumed_ms, now_ms
        for name, rate in self._rates.items():
            if rate > 0 and passed_ms > 0:
                yield name, rate * passed_ms

    def _turn(self, now_ms: int) -> None:
        if now_ms - self._began_ms >= self.SPAN_MS:
            whole = now_ms - self._began_ms < 2 * self.SPAN_MS
            self._before = self._now if whole else {}
            self._now = {}
            self._began_ms = now_ms


def _by_clients(used: Sequence[Used]) -> float:
    """The usage of clients, which already includes the bytes of topics."""
    return sum(amount for key, amount in used if isinstance(key, ScopedKey))


def _by_quota(items: Sequence[tuple[QuotaKey, T]]) -> dict[QuotaKey, list[T]]:
    found: dict[QuotaKey, list[T]] = {}
    for quota, item in items:
        found.setdefault(quota, []).append(item)
    return found
