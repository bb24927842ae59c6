"""The set in force and the store stay together, whatever is asked."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from gateway.observability.traces import Trace
from gateway.quota_admin.store.interface import Alteration, AlterationRefusedError, ChangedMeanwhileError, StoreError
from gateway.quota_admin.store.live import MAX_WAITING, LiveQuotas
from gateway.quota_admin.store.memory_store import MemoryStore
from gateway.runtime.slices import Slices
from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import LayeredQuotas
from quotas.limits import Limits
from testkit.quota_stores import ALICE, APP, AT_MS, FETCH, PRODUCE, alteration, limit_alteration

GUARANTEE = QuotaKey.PRODUCER_BYTE_GUARANTEE


class SlowStore(MemoryStore):
    """Writes when it is asked to."""

    def __init__(self) -> None:
        super().__init__(now_ms=lambda: AT_MS)
        self.go = asyncio.Event()

    async def write(self, alteration: Alteration) -> int:
        await self.go.wait()
        return await super().write(alteration)


def live_on(store: MemoryStore) -> LiveQuotas:
    return LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: 0)


async def test_change_is_in_force_when_the_store_has_it_and_not_before() -> None:
    store = SlowStore()
    live = live_on(store)
    await live.open()
    task = asyncio.create_task(live.alter(alteration((ALICE, PRODUCE, 5.0))))
    await asyncio.sleep(0)
    assert live.quotas.limits.get(ALICE, PRODUCE) is None
    store.go.set()
    assert await task == 1
    assert live.quotas.limits.get(ALICE, PRODUCE) == 5


async def test_gateway_is_ready_and_alters_once_its_store_was_read_and_is_followed() -> None:
    live = live_on(MemoryStore(now_ms=lambda: AT_MS))
    assert live.why_not_ready() == "quota store not read yet"
    with pytest.raises(StoreError, match="not read yet"):
        await live.alter(alteration((ALICE, PRODUCE, 5.0)))
    await live.open()
    assert live.why_not_ready() is None
    live = live_on(store := MemoryStore(now_ms=lambda: AT_MS))
    await live.open()
    store.stale = "quota topic q can't be followed: gone"
    assert live.why_not_ready() == "quota topic q can't be followed: gone"
    live = live_on(MemoryStore(now_ms=lambda: AT_MS))
    await live.open()
    with pytest.raises(StoreError, match="user=alice: Quota producer_byte_rate must be greater than 0"):
        await live.alter(alteration((APP, FETCH, 1.0), (ALICE, PRODUCE, -1.0)))
    assert (live.store.version, list(live.quotas.limits.items())) == (0, [])


@pytest.mark.parametrize(
    "together",
    [
        [(PRODUCE, 50.0), (GUARANTEE, 100.0)],
        [(GUARANTEE, 100.0), (PRODUCE, 50.0)],
        [(PRODUCE, None), (GUARANTEE, 100.0)],
    ],
)
async def test_of_a_rate_and_a_guarantee_that_do_not_go_together_only_the_first_is_made(
    together: list[tuple[QuotaKey, float | None]],
) -> None:
    """Each goes with what is set when it is asked for."""
    live = live_on(MemoryStore(now_ms=lambda: AT_MS))
    await live.open()
    await live.alter(alteration((ALICE, PRODUCE, 200.0)))
    made, refused = await asyncio.gather(
        *(live.alter(alteration((ALICE, key, value))) for key, value in together), return_exceptions=True
    )
    assert (made, type(refused)) == (2, AlterationRefusedError)
    assert str(refused) == "a change of rates or guarantees of the same entity is under way; try again"
    key, value = together[0]
    assert live.quotas.limits.get(ALICE, key) == value
    with pytest.raises(StoreError, match=r"producer_byte_guarantee (needs|is more than) producer_byte_rate"):
        await live.alter(alteration((ALICE, *together[1])))
    # Of rates alone the last one counts, and other entities have nothing to do with it.
    await live.alter(alteration((ALICE, GUARANTEE, None)))
    await asyncio.gather(
        *(
            live.alter(alteration(change))
            for change in [(ALICE, PRODUCE, 5.0), (ALICE, PRODUCE, 6.0), (APP, PRODUCE, 7.0)]
        )
    )
    assert live.quotas.limits.get(ALICE, PRODUCE) == 6
    assert not live._rates_under_way


class EndedTraces:
    """Keeps the failures of traces."""

    def __init__(self) -> None:
        self.failures: list[str | None] = []

    def take(self, trace: Trace, *, now_ms: int) -> None:
        self.failures.append(trace.failure)


async def test_refused_alteration_is_no_failure_of_the_store() -> None:
    store, traces = SlowStore(), EndedTraces()
    live = LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: 0, traces=traces)
    await live.open()
    changed = replace(alteration((APP, FETCH, 5.0)), expected={(APP, FETCH): 7.0})
    asked = [
        alteration((ALICE, PRODUCE, 200.0), (ALICE, GUARANTEE, 100.0)),
        alteration((ALICE, PRODUCE, 50.0)),
        alteration((APP, FETCH, -1.0)),
        alteration((APP, GUARANTEE, 100.0)),
        limit_alteration(max_connections="0"),
        changed,
    ]
    with capture_logs() as lines:
        tasks = [asyncio.create_task(live.alter(each)) for each in asked]
        await asyncio.sleep(0)
        store.go.set()
        made, *refused = await asyncio.gather(*tasks, return_exceptions=True)
    assert made == 1
    assert [type(each) for each in refused] == [AlterationRefusedError] * 4 + [ChangedMeanwhileError]
    reasons = [str(each) for each in refused]
    logged = [line for line in lines if line["event"] != "quotas_changed"]
    assert {(line["event"], line["log_level"]) for line in logged} == {("alteration_refused", "info")}
    assert [line["reason"] for line in logged] == reasons
    assert (live.counts.writes, live.counts.failures) == (1, 0)
    assert sorted(each for each in traces.failures if each is not None) == sorted(reasons)
    store.read_only = "no space left"
    with capture_logs() as lines, pytest.raises(StoreError):
        await live.alter(alteration((APP, FETCH, 5.0)))
    assert [(line["event"], line["log_level"]) for line in lines] == [("quotas_not_altered", "error")]
    assert live.counts.failures == 1


@pytest.mark.slow
async def test_those_that_wait_are_bounded() -> None:
    store = SlowStore()
    live = live_on(store)
    await live.open()
    tasks = [asyncio.create_task(live.alter(alteration((ALICE, PRODUCE, at + 1)))) for at in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match="too many alterations"):
        await live.alter(alteration((ALICE, PRODUCE, 5.0)))
    store.go.set()
    assert len(await asyncio.gather(*tasks)) == MAX_WAITING
    await live.alter(alteration((ALICE, PRODUCE, 5.0)))


async def test_a_guarantee_that_comes_while_many_rates_are_looked_at_goes_with_its_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = live_on(MemoryStore(now_ms=lambda: AT_MS))
    await live.open()
    await live.alter(alteration((ALICE, PRODUCE, 200.0)))
    outcomes: list[int | StoreError] = []
    looks = 0

    async def look(_slices: Slices) -> None:
        nonlocal looks
        looks += 1
        if looks == 5:  # the first four are for the values; alice's rate was looked at
            try:
                outcomes.append(await live.alter(alteration((ALICE, GUARANTEE, 100.0))))
            except StoreError as exc:
                outcomes.append(exc)

    monkeypatch.setattr("gateway.runtime.slices.SLICE_S", 0.0)
    monkeypatch.setattr(Slices, "next", look)
    others = [(QuotaEntity(f"user-{number}"), PRODUCE, 50.0) for number in range(63)]
    (outcome,) = await asyncio.gather(live.alter(alteration((ALICE, PRODUCE, 50.0), *others)), return_exceptions=True)
    assert looks > 5
    rate, guarantee = (live.quotas.limits.get(ALICE, key) for key in (PRODUCE, GUARANTEE))
    assert (rate, guarantee) in [(50.0, None), (200.0, 100.0)], (outcome, outcomes)
