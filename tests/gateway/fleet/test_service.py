"""Two members in one process, with a topic that is a list and can be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from gateway.fleet.exchange import Exchange, FleetRules, OnIsolation
from gateway.fleet.service import FleetService, Part
from gateway.fleet.shares import Member, Share
from gateway.observability.fleet_metrics import FleetMetrics
from gateway.runtime.clock import loop_clock
from testkit.fleet import FleetMember
from testkit.raw_client import until

RULES: Final = FleetRules(interval_ms=10, heartbeat_ms=50, timeout_ms=300)


class SharedList:
    """The topic of all members."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.cut: set[str] = set()


class End:
    """One member's side of it; as `ShareTopic`."""

    refused = undelivered = 0
    trouble: str | None = None

    def __init__(self, topic: SharedList, name: str) -> None:
        self.begun_again = 0
        self._topic = topic
        self._name = name
        self._receive: Callable[[Sequence[Share]], None] = lambda _: None
        topic.ends.append(self)

    def start(self, receive: Callable[[Sequence[Share]], None]) -> None:
        self._receive = receive

    def send(self, shares: Sequence[Share]) -> None:
        if self._name not in self._topic.cut:
            for end in self._topic.ends:
                if end._name not in self._topic.cut:
                    end._receive(shares)

    def begin_again(self) -> None:
        self.begun_again += 1

    async def stop(self) -> None:
        pass


def member_of(topic: SharedList, name: str) -> tuple[FleetMember, FleetService, End]:
    now_ms = loop_clock(asyncio.get_running_loop())
    member = FleetMember(name, f"{name}-1", RULES, now_ms=now_ms())
    exchange: Exchange = member.exchange
    assert exchange.member == Member(name, f"{name}-1")
    end = End(topic, name)
    return member, FleetService(exchange, end, RULES, member.limits, now_ms), end


@pytest.mark.slow
async def test_a_member_that_is_cut_off_says_so_and_goes_on_with_its_share() -> None:
    topic = SharedList()
    (a, service_a, end_a), (b, service_b, _) = member_of(topic, "a"), member_of(topic, "b")
    registry = CollectorRegistry()
    names = iter(["", "cluster/topic"])
    registry.register(FleetMetrics(service_a, lambda: next(names, "cluster/topic")))
    await asyncio.gather(service_a.start(), service_b.start())
    try:
        assert service_a.exchange.caught_up
        await until(lambda: service_a.members == service_b.members == 2)
        assert service_a.isolation() is None
        now_ms = loop_clock(asyncio.get_running_loop())
        b.tracker(now_ms=now_ms()).record(9_000, now_ms=now_ms())
        await until(lambda: a.tracker(now_ms=now_ms()).level(now_ms=now_ms())[0] >= 9_000)
        used = {"member": "b", "quota": "producer_byte_rate"}
        assert registry.get_sample_value("gateway_fleet_used_total", used) == 9_000
        assert registry.get_sample_value("gateway_fleet_members") == 2
        assert registry.get_sample_value("gateway_fleet_info", {"fleet": "cluster/topic"}) == 1

        topic.cut.add("a")
        await until(lambda: a.limits.share == 0.5)
        assert str(service_a.isolation()).startswith("fleet: no contact with the other members for ")
        assert "limits are multiplied by 0.5" in str(service_a.isolation())
        assert registry.get_sample_value("gateway_fleet_connected") == 0
        assert a.tracker(now_ms=now_ms()).match.limit == 500
        await until(lambda: service_b.members == 1 and end_a.begun_again > 0)
        await until(lambda: b.limits.share == 1)

        topic.cut.clear()
        await until(lambda: service_a.exchange.caught_up and service_a.members == 2)
        await until(lambda: a.limits.share == 1)
        assert (registry.get_sample_value("gateway_fleet_isolations_total") or 0) >= 1
    finally:
        await service_b.stop()
        await until(lambda: service_a.members == 1)  # it has said that it ends
        await service_a.stop()


@pytest.mark.slow
async def test_a_member_that_comes_or_leaves_is_logged() -> None:
    topic = SharedList()
    (_, service_a, _), (_, service_b, _) = member_of(topic, "a"), member_of(topic, "b")

    def changes() -> list[tuple[int, int]]:
        events = [line for line in lines if line["event"] == "fleet_members_changed" and line["member"] == "a"]
        return [(line["before"], line["members"]) for line in events]

    with capture_logs() as lines:
        await service_a.start()
        await service_b.start()
        try:
            await until(lambda: changes() == [(1, 2)])
        finally:
            await service_b.stop()
        await until(lambda: changes() == [(1, 2), (2, 1)])
        await service_a.stop()
    joined = next(line for line in lines if line["event"] == "fleet_joined")
    assert joined["members"] == 1


@pytest.mark.slow
async def test_a_burst_does_not_wait_for_the_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SharedList()
    (a, service_a, _), (b, service_b, _) = member_of(topic, "a"), member_of(topic, "b")
    now_ms = loop_clock(asyncio.get_running_loop())
    await asyncio.gather(service_a.start(), service_b.start())
    try:
        await until(lambda: service_a.members == service_b.members == 2)
        b.tracker(now_ms=now_ms()).record(9_000, now_ms=now_ms())
        await until(lambda: a.tracker(now_ms=now_ms()).level(now_ms=now_ms())[0] >= 9_000)
        monkeypatch.setattr(service_b, "_tick_once", lambda: asyncio.sleep(3_600))
        for step in range(1, 4):
            b.tracker(now_ms=now_ms()).record(500, now_ms=now_ms())
            told = 9_000 + 500 * step
            await until(lambda told=told: a.tracker(now_ms=now_ms()).level(now_ms=now_ms())[0] >= told)
    finally:
        await service_a.stop()
        if service_b._ticking is not None:
            service_b._ticking.cancel()
        await service_b.stop()


@pytest.mark.parametrize(("rule", "of_gateway"), [(OnIsolation.SHARE, 1 / 2), (OnIsolation.LOCAL, 1)])
async def test_processes_of_an_isolated_gateway_have_together_what_a_gateway_of_one_process_has(
    rule: OnIsolation, of_gateway: float
) -> None:
    # Two gateways of three workers and a supervisor each; none of the processes hears another.
    now_ms = loop_clock(asyncio.get_running_loop())
    rules = FleetRules(on_isolation=rule, members=2 * (3 + 1))
    shares = []
    for part in (Part.of_supervisor(3), Part.of_worker(3)):
        member = FleetMember("a", "a-1", rules, now_ms=now_ms())
        topic = SharedList()
        topic.cut.add("a")
        service = FleetService(member.exchange, End(topic, "a"), rules, member.limits, now_ms, part)
        service.begin()
        shares.append(member.limits.share)
        await service.stop()
    of_mutations, of_bytes = shares
    assert (of_mutations, 3 * of_bytes) == pytest.approx((of_gateway, of_gateway))
