"""How long brokers take for Produce requests, as sessions measure it for an overload."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.observability.capacity_metrics import CapacityMetrics
from gateway.server.division_timer import DivisionTimer
from protocol.error_codes import ErrorCode
from quotas.entities import QuotaKey
from quotas.overload import Health, Overload
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import START_MS, GatewayCore
from testkit.frames import produce, produce_reply


def core_of(*, enforce: bool = False, timed: bool = False) -> tuple[GatewayCore, Overload]:
    core = GatewayCore(request_percentage=1e6) if timed else GatewayCore()
    core.client_quotas.overload = Overload(500, enforce=enforce)
    return core, core.client_quotas.overload


@pytest.mark.parametrize("timed", [False, True])
def test_the_time_from_a_request_to_its_reply_is_measured_for_each_user(timed: bool) -> None:
    core, overload = core_of(timed=timed)
    clients = [Conversation(core=core, principal=user) for user in ("a", "b", "c")]
    for each in clients:
        each.client_sends(produce(1))
    for each, at_ms in zip(clients, (40, 70, 90), strict=True):
        each.at(at_ms).upstream_answers(produce_reply(1)).client_sees(produce_reply(1))
    assert overload.times.close(now_ms=START_MS + 1_000)[:2] == (70, 3)


def test_requests_without_reply_or_in_pieces_are_not_measured() -> None:
    core, overload = core_of()
    for user in ("a", "b", "c"):
        Conversation(core=core, principal=user).client_sends(produce(1, acks=0))
        Conversation(core=core, principal=user).client_sends(produce(1, size=200_000), piece_bytes=70_000)
    assert overload.times.close(now_ms=START_MS + 1_000)[:2] == (None, 0)


def test_of_requests_one_behind_the_other_each_counts_from_the_reply_before() -> None:
    core, overload = core_of()
    clients = [Conversation(core=core, principal=user) for user in ("a", "b", "c")]
    for each in clients:
        each.client_sends(produce(1), produce(2))
    for each in clients:
        each.at(400).upstream_answers(produce_reply(1))
    for each in clients:
        each.at(430).upstream_answers(produce_reply(2))
    assert overload.times.close(now_ms=START_MS + 1_000)[:2] == (30, 3)


def test_a_connection_that_ends_is_forgotten() -> None:
    core, overload = core_of()
    for user in ("a", "b", "c"):
        client = Conversation(core=core, principal=user).client_sends(produce(1))
        client.session.ended(now_ms=core.clock.now_ms)
    assert overload.times.close(now_ms=START_MS + 60_000)[:2] == (None, 0)


def four_answered_and_one_more(core: GatewayCore, *, whole: bool = True) -> list[Conversation]:
    """Clients that have sent all that is measured in a window, have their replies, and await one that is not."""
    clients = [Conversation(core=core, principal=user) for user in ("a", "b", "c")]
    for each in clients:
        each.client_sends(*map(produce, range(1, 5))).upstream_answers(*map(produce_reply, range(1, 5)))
        if whole:
            each.client_sends(produce(5))
        else:
            each.client_sends(produce(5, size=200_000), piece_bytes=70_000)
    return clients


def test_brokers_that_stop_are_slow_also_where_no_measured_request_awaits_its_reply() -> None:
    core, overload = core_of()
    clients = four_answered_and_one_more(core)
    close = overload.times.close
    assert close(now_ms=START_MS + 1_000)[:2] == (0, 3)
    assert close(now_ms=START_MS + 2_000)[:2] == (1_000, 3)
    assert close(now_ms=START_MS + 3_000)[:2] == (2_000, 3)
    for each in clients:
        each.at(3_000).upstream_answers(produce_reply(5))
    assert close(now_ms=START_MS + 4_000)[:2] == (None, 0)


def test_what_their_clients_hold_back_says_nothing_of_brokers_that_seem_to_have_stopped() -> None:
    core, overload = core_of()
    four_answered_and_one_more(core, whole=False)
    assert overload.times.close(now_ms=START_MS + 1_000)[:2] == (0, 3)
    for at_s in range(2, 60):
        assert overload.times.close(now_ms=START_MS + 1_000 * at_s)[:2] == (None, 0)


def test_a_request_that_is_not_measured_is_forgotten_with_its_connection() -> None:
    core, overload = core_of()
    clients = four_answered_and_one_more(core)
    overload.times.close(now_ms=START_MS + 1_000)
    for each in clients:
        each.session.ended(now_ms=core.clock.now_ms)
    assert overload.times.close(now_ms=START_MS + 2_000)[:2] == (None, 0)
    assert not overload.times._clients


def answer(error: ErrorCode, version: int = 9) -> bytes:
    partitions = [{"index": 0}, {"index": 1, "error_code": error}]
    responses = [{"name": "t", "partition_responses": partitions}]
    return wire.response("Produce", version, correlation_id=1, responses=responses)


@pytest.mark.parametrize("version", [3, 9, 12])
@pytest.mark.parametrize(
    ("error", "short"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
        (ErrorCode.REQUEST_TIMED_OUT, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        (ErrorCode.NONE, False),
    ],
)
def test_errors_of_brokers_that_are_short_are_counted_and_relayed(
    error: ErrorCode, short: bool, version: int
) -> None:
    core, overload = core_of()
    clients = [Conversation(core=core, principal=user) for user in ("a", "b", "c")]
    for each in clients:
        each.client_sends(produce(1, version=version))
    for each in clients:
        each.at(40).upstream_answers(answer(error, version)).client_sees(answer(error, version))
    health = overload.times.close(now_ms=START_MS + 1_000)
    assert health == (Health(None, 0, 1.0) if short else Health(40, 3, 0.0))


def test_without_an_overload_no_answer_is_read_for_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.session.session.shows_shortage", lambda *_: pytest.fail("was read"))
    client = Conversation(core=GatewayCore(request_percentage=1e6)).client_sends(produce(1))
    client.upstream_answers(answer(ErrorCode.NOT_ENOUGH_REPLICAS)).client_sees(answer(ErrorCode.NOT_ENOUGH_REPLICAS))


def test_requests_of_clients_that_find_more_of_their_own_in_flight_pile_up() -> None:
    core, overload = core_of()
    clients = [Conversation(core=core, principal=user) for user in ("a", "b", "c")]
    for each in clients:
        each.client_sends(produce(1))
    assert not overload.times.close(now_ms=START_MS + 1_000).growing
    for each in clients:
        each.client_sends(produce(2))
    assert overload.times.close(now_ms=START_MS + 2_000).growing
    for each in clients:
        each.upstream_answers(produce_reply(1), produce_reply(2)).client_sends(produce(3))
    assert not overload.times.close(now_ms=START_MS + 3_000).growing


def test_once_enough_requests_of_a_client_are_measured_its_shortest_queue_still_counts_and_the_next_window_too() -> (
    None
):
    core, overload = core_of()
    clients = [Conversation(core=core, principal=user) for user in ("a", "b", "c")]
    for each in clients:
        each.client_sends(produce(1))
    assert not overload.times.close(now_ms=START_MS + 1_000).growing
    for each in clients:
        each.client_sends(*map(produce, range(2, 9))).upstream_answers(*map(produce_reply, range(1, 9)))
        each.client_sends(produce(9)).upstream_answers(produce_reply(9))
    assert not overload.times.close(now_ms=START_MS + 2_000).growing  # the last one met none
    for each in clients:
        each.client_sends(produce(10))
    for each in clients:
        each.at(40).upstream_answers(produce_reply(10))
    assert overload.times.close(now_ms=START_MS + 3_000)[:2] == (40, 3)


async def test_slow_brokers_are_in_the_log_and_the_metrics_once() -> None:
    core, overload = core_of()
    quotas = core.client_quotas
    quotas.set_capacity({QuotaKey.PRODUCER_BYTE_RATE: 1000.0}, observe=False, now_ms=START_MS)
    timer = DivisionTimer(
        quotas, {"produce": quotas.produce}, asyncio.get_running_loop(), lambda: core.clock.now_ms, lambda: 0
    )
    for user in ("a", "b", "c"):
        Conversation(core=core, principal=user).client_sends(produce(1))
    with capture_logs() as lines:
        for _ in range(3):
            core.clock.advance_to(core.clock.now_ms + 1_000)
            await timer._divide()
    assert [(each["event"], each["mode"], each["clients"]) for each in lines] == [("brokers_slow", "observe", 3)]
    metrics = CapacityMetrics({"produce": quotas.produce}, lambda: overload)
    found = {each.name: each.value for family in metrics.collect() for each in family.samples}
    assert found["gateway_produce_broker_time_seconds"] == 3
    assert found["gateway_produce_usable_capacity_ratio"] == overload.usable < 1
    assert found["gateway_produce_measured_clients"] == 3
