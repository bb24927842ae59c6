"""Rates of connections over the members of a fleet: a client that goes round them gets its rate once."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Final

import orjson
import pytest

from gateway.fleet.counters import ConnectionCounters, kind_of
from gateway.fleet.exchange import Exchange, FleetRules
from gateway.fleet.shares import MalformedShare, Member, Share, decode_share, encode_share
from quotas.connections import AdmissionDecision, ConnectionLimits, ConnectionQuotas, ListenerLimits
from quotas.entities import API_BURST_S, DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings, ScopedKey
from quotas.resolution import TrackerKey
from quotas.shared_rate import ConnectionKey, SharedRate
from quotas.user_connections import UserConnections
from testkit.cases import seeds

RATE: Final = QuotaKey.CONNECTION_CREATION_RATE
ADMIT: Final = AdmissionDecision.ADMIT
START_MS: Final = 1_000_000
ADDRESS: Final = "10.1.2.3"
PER_S: Final = 10
STEP_MS: Final = 10
LATER_MS: Final = 2**60
RULES: Final = FleetRules()


class Gateway:
    """A member, as far as its connections go.

    Attributes:
        limits, connections, users: of this member.
        exchange: with the others; None: it shares nothing.
        cut: no message comes or goes.
    """

    def __init__(self, name: str, limits: ConnectionLimits, *, shared: bool, now_ms: int) -> None:
        self.limits = Limits()
        self.connections = ConnectionQuotas(self.limits, limits, now_ms=now_ms)
        self.users = UserConnections(self.limits, RateSettings(), lambda: 1_000)
        self.exchange = None
        self.cut = False
        self.due_ms = now_ms
        if shared:
            counters = {RATE: ConnectionCounters(self.users.rates, self.connections)}
            exchange = self.exchange = Exchange(Member(name, "boot"), counters, RULES, now_ms=now_ms)
            self.connections.share_rates(lambda: exchange.members(now_ms=LATER_MS))


class Fleet:
    """Members on one clock; messages take up to so long.

    Attributes:
        now_ms: the present.
        members: all of them.
        sent: every message.
    """

    def __init__(
        self,
        count: int,
        *,
        shared: bool = True,
        listener: int | None = None,
        total: int | None = None,
        lag_ms: tuple[int, int] = (5, 50),
        seed: int = 0,
    ) -> None:
        self.now_ms = START_MS
        self._limits = ConnectionLimits({"EXT": ListenerLimits(None, listener)}, max_connection_creation_rate=total)
        self._shared = shared
        self._rng = Random(seed)
        self._lag_ms = lag_ms
        self._under_way: list[tuple[int, int, Gateway, bytes]] = []
        self._count = 0
        self.members: list[Gateway] = []
        self.sent: list[bytes] = []
        for _ in range(count):
            self.join()
        self.pass_time(3_000)

    def join(self) -> Gateway:
        member = Gateway(f"gw-{len(self.members)}", self._limits, shared=self._shared, now_ms=self.now_ms)
        self.members.append(member)
        return member

    def set(self, entity: QuotaEntity, value: float) -> None:
        for member in self.members:
            member.limits.set(entity, RATE, value)

    def pass_time(self, ms: int, each_step: Callable[[], None] = lambda: None) -> None:
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            while self._under_way and self._under_way[0][0] <= self.now_ms:
                _, _, member, data = heapq.heappop(self._under_way)
                if not member.cut and member.exchange is not None:
                    member.exchange.receive(decode_share(data), now_ms=self.now_ms)
            for member in self.members:
                self._tick(member)
            each_step()

    def _tick(self, member: Gateway) -> None:
        if member.exchange is None or self.now_ms < member.due_ms:
            return
        member.due_ms = self.now_ms + RULES.interval_ms
        for share in member.exchange.tick(now_ms=self.now_ms):
            data = encode_share(share)
            if not member.cut:
                self.sent.append(data)
                for other in self.members:
                    due_ms = self.now_ms + self._rng.randint(*self._lag_ms)
                    self._count += 1
                    heapq.heappush(self._under_way, (due_ms, self._count, other, data))
        member.limits.set_share(member.exchange.share(now_ms=self.now_ms))


def connect_round(fleet: Fleet, seconds: int, *, per_step: int = 1, address: str = ADDRESS) -> int:
    """A client tries one member after the other, all the time; how many connections it got."""
    got = turn = 0

    def try_some() -> None:
        nonlocal got, turn
        for _ in range(per_step):
            member = fleet.members[turn % len(fleet.members)]
            turn += 1
            admission = member.connections.admit("EXT", address, now_ms=fleet.now_ms)
            if admission.decision is AdmissionDecision.HOLD:
                member.connections.abandon_hold(admission)
            got += admission.decision is ADMIT

    fleet.pass_time(seconds * 1_000, try_some)
    return got


@pytest.mark.parametrize("entity", [QuotaEntity(ip=DEFAULT), QuotaEntity(ip="10.1.0.0/16"), QuotaEntity(ip=ADDRESS)])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_an_address_that_goes_round_four_gateways_gets_its_rate_once(entity: QuotaEntity, seed: int) -> None:
    alone, apart, together = Fleet(1, shared=False), Fleet(4, shared=False), Fleet(4, seed=seed)
    for fleet in (alone, apart, together):
        fleet.set(entity, PER_S)
    one = connect_round(alone, 44)
    assert connect_round(apart, 44) > 3.5 * one
    # Between two exchanges each of the others lets in what comes to it: a connection per 10 ms, for 150 ms at most,
    # and that once per window.
    assert connect_round(together, 44) <= one + 4 * 15


def test_an_ipv6_network_is_one_client_of_the_fleet() -> None:
    fleet = Fleet(2)
    fleet.set(QuotaEntity(ip=DEFAULT), PER_S)
    connect_round(fleet, 2, address="2001:db8::1")
    assert fleet.members[0].connections.ip_rate("2001:db8::2", now_ms=fleet.now_ms) == pytest.approx(PER_S, rel=0.2)


@pytest.mark.parametrize("limit", [{"listener": PER_S}, {"total": PER_S}, {"listener": 1}, {"total": 1}])
def test_a_listener_and_the_gateways_together_accept_at_their_rate(limit: dict[str, int]) -> None:
    """Each member's listener waits as the acceptor does, and then takes the one that waited."""

    def accepted(fleet: Fleet, seconds: int) -> int:
        count = 0
        ready_ms = dict.fromkeys(range(len(fleet.members)), 0)
        waiting: set[int] = set()

        def accept() -> None:
            nonlocal count
            for at, member in enumerate(fleet.members):
                if fleet.now_ms < ready_ms[at]:
                    continue
                admission = member.connections.admit("EXT", ADDRESS, now_ms=fleet.now_ms, waited=at in waiting)
                waiting.discard(at)
                if admission.decision is AdmissionDecision.WAIT:
                    waiting.add(at)
                    ready_ms[at] = fleet.now_ms + admission.wait_ms
                else:
                    count += 1

        fleet.pass_time(seconds * 1_000, accept)
        return count

    one = accepted(Fleet(1, shared=False, **limit), 44)
    assert accepted(Fleet(4, shared=False, **limit), 44) > 3.5 * one
    assert accepted(Fleet(4, **limit), 44) <= 1.1 * one + 4 * 15


@pytest.mark.slow
def test_users_that_go_round_get_their_rate_once() -> None:
    fleet = Fleet(4)
    fleet.set(QuotaEntity("alice"), PER_S)
    waiting: dict[tuple[int, int], int] = {}
    got = turn = 0

    def ask(at: int, name: int) -> None:
        nonlocal got
        admission = fleet.members[at].users.enter("alice", name, now_ms=fleet.now_ms)
        waiting.pop((at, name), None)
        if admission.decision is AdmissionDecision.HOLD:
            waiting[at, name] = fleet.now_ms + admission.wait_ms
        got += admission.decision is ADMIT

    def connect() -> None:
        nonlocal turn
        for at, name in [each for each, due_ms in waiting.items() if due_ms <= fleet.now_ms]:
            ask(at, name)
        if turn < 1_000:
            turn += 1
            ask(turn % 4, turn)

    seconds = 40
    fleet.pass_time(seconds * 1_000, connect)
    # The debt of a burst between two exchanges is paid: unlike a window, a bucket forgets none of it.
    assert got <= PER_S * seconds + API_BURST_S * PER_S + 4 * 15
    assert got >= 0.95 * PER_S * seconds


def test_a_gateway_that_joins_knows_what_the_others_have_let_in() -> None:
    fleet = Fleet(2)
    fleet.set(QuotaEntity(ip=ADDRESS), PER_S)
    connect_round(fleet, 3)
    newcomer = fleet.join()
    newcomer.limits.set(QuotaEntity(ip=ADDRESS), RATE, PER_S)
    fleet.pass_time(1_500)
    assert newcomer.connections.admit("EXT", ADDRESS, now_ms=fleet.now_ms).decision is AdmissionDecision.HOLD


@pytest.mark.slow
def test_a_gateway_that_is_cut_off_has_its_part_of_the_rate_and_of_what_was_counted() -> None:
    fleet = Fleet(4)
    fleet.set(QuotaEntity(ip=ADDRESS), 40)
    connect_round(fleet, 5, per_step=2)  # the window is full
    lonely = fleet.members[0]
    lonely.cut = True
    fleet.pass_time(4_000)
    before = lonely.connections.ip_rate(ADDRESS, now_ms=fleet.now_ms)
    assert lonely.limits.share == 0.25
    assert lonely.connections.admit("EXT", ADDRESS, now_ms=fleet.now_ms).decision is not ADMIT
    assert before is not None
    assert lonely.connections.ip_rate(ADDRESS, now_ms=fleet.now_ms) == pytest.approx(before / 4, rel=0.1)
    got = 0

    def connect() -> None:
        nonlocal got
        admission = lonely.connections.admit("EXT", ADDRESS, now_ms=fleet.now_ms)
        if admission.decision is AdmissionDecision.HOLD:
            lonely.connections.abandon_hold(admission)
        got += admission.decision is ADMIT

    fleet.pass_time(33_000, connect)
    assert 0.9 * 10 * 33 <= got <= 10 * (33 + 11)


def test_what_is_forgotten_is_not_told_any_more() -> None:
    rate = SharedRate(11, 1_000, now_ms=START_MS)
    rate.limit_to(PER_S)
    rate.meter.record(5, now_ms=START_MS)
    assert rate.untold(now_ms=START_MS + 1_000) == 5
    assert rate.untold(now_ms=START_MS + 12_000) == 0
    rate.meter.record(2, now_ms=START_MS + 12_000)
    assert rate.untold(now_ms=START_MS + 12_000) == 2


def test_attempts_that_are_taken_back_are_not_told() -> None:
    fleet = Fleet(2)
    fleet.set(QuotaEntity(ip=ADDRESS), 1)
    connect_round(fleet, 5)
    told = [amount for data in fleet.sent for _, amount in orjson.loads(data).get("connection_use", {}).get("ip", ())]
    assert min(told) > 0
    assert sum(told) <= 1 * 10 + 2 * 15


def test_members_of_an_earlier_version_find_nothing_of_it_where_they_look() -> None:
    use = {RATE: [(ConnectionKey("ip", ADDRESS), 3.0), (ConnectionKey("gateway", ""), 4.0), (ALICE, 2.0)]}
    share = Share(Member("a", "b"), 1, use=use, levels={RATE: [(ConnectionKey("listener", "EXT"), 5.0, 0.0)]})
    body = orjson.loads(encode_share(share))
    assert {name: body[name] for name in body if name.endswith(("use", "levels"))} == {
        "connection_use": {"ip": [[ADDRESS, 3.0]], "gateway": [["", 4.0]]},
        "connection_levels": {"listener": [["EXT", 5.0, 0.0]]},
        "rate_use": {"connection_creation_rate": [[None, "alice", "", 2.0]]},
    }
    read = decode_share(encode_share(share))
    assert {name: sorted(some, key=str) for name, some in read.use.items()} == {RATE: sorted(use[RATE], key=str)}
    assert read.levels == share.levels
    assert read.counters == share.counters


@pytest.mark.parametrize("row", [[1, 2.0], ["a", -1.0], ["a"], ["a", "b", 1.0], ["a" * 300, 1.0], [None, 1.0]])
def test_what_is_no_rate_of_connections_is_no_message(row: list[object]) -> None:
    body = {"v": 1, "id": "a", "boot": "b", "seq": 1, "connection_use": {"ip": [row]}}
    with pytest.raises(MalformedShare):
        decode_share(orjson.dumps(body))


@pytest.mark.parametrize(
    "key",
    [ConnectionKey("ip", "junk"), ConnectionKey("ip", "10.9.9.9"), ConnectionKey("listener", "OTHER"),
     ConnectionKey("gateway", ""), ConnectionKey("ip", "10.1.0.0/99")],
)  # fmt: skip
def test_rates_that_have_no_limit_here_are_passed_over(key: ConnectionKey) -> None:
    (member,) = Fleet(1).members
    member.limits.set(QuotaEntity(ip="10.1.0.0/16"), RATE, 5)
    counters = ConnectionCounters(member.users.rates, member.connections)
    assert counters.counter_of(key, kind_of(key), now_ms=START_MS) is None


ALICE: Final = ScopedKey(None, TrackerKey("alice", ""))
