"""Samples of what brokers store: one an hour of each broker, whatever a broker answers, and no client notices."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from structlog.testing import capture_logs

from config.sections.usage import UsageSettings
from gateway.upstream.stored_sampler import StoredSampler
from gateway.usage.service import UsageService
from gateway.usage.stored import StoredBytes
from testkit import broker as scripts
from testkit import wire
from testkit.broker import HOST, Node, ScriptedBroker
from testkit.frames import fetch
from testkit.gateway import RunningGateway, gateway_config, running_gateway
from testkit.raw_client import until
from testkit.usage_lines import usage_lines

DESCRIBE_LOG_DIRS = 35
HOUR_S = 3_600
NOON_S = 1_790_553_600 + 12 * HOUR_S


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall clock of samplers, in seconds, which looks often."""
    now = [NOON_S]
    monkeypatch.setattr("gateway.upstream.stored_sampler._LOOK_S", 0.01)
    monkeypatch.setattr("gateway.app.StoredSampler", partial(StoredSampler, wall_ms=lambda: now[0] * 1000))
    return now


def log_dirs(topics: dict[str, int]) -> scripts.Script:
    """A broker with a partition of this size of each topic."""
    body = b"".join(
        pack(">h", len(name)) + name.encode() + pack(">iiqqb", 1, 0, size, 0, 0) for name, size in topics.items()
    )
    body = pack(">iihhi", 0, 1, 0, 0, len(topics)) + body

    def script(connection: scripts.BrokerConnection, request: scripts.Request) -> None:
        connection.send(wire.framed(pack(">i", request.correlation_id) + body))

    return script


@asynccontextmanager
async def sampling(
    directory: Path, script: scripts.Script, *, nodes: Callable[[int], list[Node]] | None = None, **usage: Any
) -> AsyncIterator[tuple[ScriptedBroker, RunningGateway, StoredBytes]]:
    """A gateway that asks a broker what it stores."""
    broker = ScriptedBroker(scripts_discovery=True)
    broker.offers[DESCRIBE_LOG_DIRS] = (1, 4)
    broker.script(DESCRIBE_LOG_DIRS, script)
    async with broker:
        if nodes is not None:
            broker.nodes = nodes(broker.port)
        section = {"kind": "files", "directory": str(directory), "gateway_id": "a", "stored": True, **usage}
        config = gateway_config([broker.port]).model_copy(update={"usage": UsageSettings.model_validate(section)})
        async with running_gateway(config=config) as running:
            await running.discovered()
            assert isinstance(running.gateway.usage, UsageService)
            assert running.gateway.usage.stored is not None
            yield broker, running, running.gateway.usage.stored


def parts(directory: Path) -> list[list[Any]]:
    return [part for line in usage_lines(directory) for part in line.get("stored", [])]


def shown(running: RunningGateway, result: str) -> float | None:
    return running.gateway.registry.get_sample_value("gateway_usage_stored_samples_total", {"result": result})


@pytest.mark.slow
async def test_what_a_broker_stores_is_in_the_records_once_an_hour(tmp_path: Path, clock: list[int]) -> None:
    async with sampling(tmp_path, log_dirs({"orders": 70, "empty": 0})) as (broker, running, stored):
        await until(lambda: stored.taken == 1 and not stored.waiting)
        clock[0] += HOUR_S // 2
        broker.script(DESCRIBE_LOG_DIRS, log_dirs({"orders": 80}))
        await until(lambda: sum(len(each.requests) for each in broker.connections) > 0)
        assert stored.taken == 1
        clock[0] += HOUR_S // 2 + 700
        await until(lambda: stored.taken == 2 and not stored.waiting)
        assert (shown(running, "taken"), shown(running, "failed")) == (2, 0)

    first, second = parts(tmp_path)
    assert first[:4] == ["scripted", 1, NOON_S, 70]
    assert sorted(first[4]) == [["empty", 0], ["orders", 70]]
    assert second == ["scripted", 1, clock[0], 80, [["orders", 80]]]


async def test_without_the_setting_no_broker_is_asked_and_no_series_is_shown(tmp_path: Path) -> None:
    broker = ScriptedBroker()
    broker.offers[DESCRIBE_LOG_DIRS] = (1, 4)
    section = UsageSettings.model_validate({"kind": "files", "directory": str(tmp_path)})
    async with broker:
        config = gateway_config([broker.port]).model_copy(update={"usage": section})
        async with running_gateway(config=config) as running:
            await running.discovered()
            assert shown(running, "taken") is None
    assert DESCRIBE_LOG_DIRS not in {each.api_key for one in broker.connections for each in one.requests}
    assert parts(tmp_path) == []


@pytest.mark.slow
async def test_twenty_thousand_topics_go_into_lines_in_parts_while_clients_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.usage.stored.TOPICS_PER_LINE", 5_000)
    topics = {f"topic-{at}": at for at in range(20_000)}
    async with sampling(tmp_path, log_dirs(topics)) as (_, running, stored):
        async with await running.connect() as client:
            correlation_id = 0
            while not stored.taken or stored.waiting:
                correlation_id += 1
                await client.send(fetch(correlation_id))
                assert wire.correlation_id_of(await client.receive_frame()) == correlation_id
        assert stored.failed == 0

    found = parts(tmp_path)
    assert max(len(part[4]) for part in found) == 250
    assert max(len(line.get("stored", ())) for line in usage_lines(tmp_path)) == 20
    assert {name: size for part in found for name, size in part[4]} == topics
    assert [part[3] for part in found if part[3] is not None] == [sum(topics.values())]
    assert found[-1][3] is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (scripts.close, "closed the connection"),
        (scripts.reset, "closed the connection"),
        (scripts.wrong_correlation_id, "a reply to another question"),
        (scripts.answer, "MalformedBody"),
        (scripts.huge(17 * 1024 * 1024), "reply of"),
        (log_dirs({"a": 2**62}), "MalformedBody more than"),
        (log_dirs({"a": -5}), "MalformedBody a partition of less than no bytes"),
    ],
)
async def test_a_broker_that_answers_nonsense_is_one_line_of_the_log_an_hour_and_no_record(
    tmp_path: Path, clock: list[int], script: scripts.Script, reason: str
) -> None:
    with capture_logs() as lines:
        async with sampling(tmp_path, script) as (broker, running, stored):
            await until(lambda: stored.failed == 1)
            clock[0] += HOUR_S + 700
            await until(lambda: stored.failed == 2)
            assert shown(running, "failed") == 2
            async with await running.connect() as client:
                await client.send(fetch(8))
                assert wire.correlation_id_of(await client.receive_frame()) == 8
            broker.script(DESCRIBE_LOG_DIRS, log_dirs({"a": 1}))
            clock[0] += HOUR_S
            await until(lambda: stored.taken == 1 and not stored.waiting)
    (said,) = [line for line in lines if line["event"] == "stored_bytes_not_sampled"]
    assert reason in said["error"]
    assert [part[4] for part in parts(tmp_path)] == [[["a", 1]]]


@pytest.mark.slow
async def test_a_broker_that_never_answers_is_given_up_and_the_next_one_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.upstream.discovery._ANSWER_TIMEOUT_S", 0.2)
    waiting: list[scripts.Request] = []

    def script(connection: scripts.BrokerConnection, request: scripts.Request) -> None:
        # Both brokers are at one address: the first question gets no answer.
        if not waiting:
            waiting.append(request)
        else:
            log_dirs({"a": 1})(connection, request)

    def nodes(port: int) -> list[Node]:
        return [Node(1, HOST, port), Node(2, HOST, port)]

    with capture_logs() as lines:
        async with sampling(tmp_path, script, nodes=nodes) as (_, _, stored):
            await until(lambda: (stored.failed, stored.taken) == (1, 1) and not stored.waiting)
    assert [line["error"] for line in lines if line["event"] == "stored_bytes_not_sampled"] == ["no answer in time"]
    assert len(parts(tmp_path)) == 1


async def test_a_broker_without_the_right_or_the_api_is_named(tmp_path: Path) -> None:
    def refused(connection: scripts.BrokerConnection, request: scripts.Request) -> None:
        connection.send(wire.framed(pack(">iii", request.correlation_id, 0, 0)))

    with capture_logs() as lines:
        async with sampling(tmp_path, refused) as (_, _, stored):
            await until(lambda: stored.failed == 1)
    (said,) = [line for line in lines if line["event"] == "stored_bytes_not_sampled"]
    assert "the right DESCRIBE on the cluster" in said["error"]


async def test_brokers_that_do_not_offer_the_api_are_not_asked(tmp_path: Path) -> None:
    broker = ScriptedBroker()
    section = UsageSettings.model_validate({"kind": "files", "directory": str(tmp_path), "stored": True})
    async with broker:
        config = gateway_config([broker.port]).model_copy(update={"usage": section})
        async with running_gateway(config=config) as running:
            await running.discovered()
            await until(lambda: shown(running, "failed") == 1)
            assert any("usage records have no stored bytes" in lack for lack in running.gateway.discovery.lacks)
    assert DESCRIBE_LOG_DIRS not in {each.api_key for one in broker.connections for each in one.requests}


async def test_no_sample_begins_so_late_that_its_lines_are_of_the_next_hour(tmp_path: Path, clock: list[int]) -> None:
    clock[0] = NOON_S + HOUR_S - 60
    async with sampling(tmp_path, log_dirs({"a": 1})) as (broker, _, stored):
        await until(lambda: len(broker.connections) >= 2)
        assert (stored.taken, stored.failed) == (0, 0)
        clock[0] = NOON_S + HOUR_S
        await until(lambda: stored.taken == 1)


@pytest.mark.slow
async def test_names_of_topics_are_hashed_where_names_are(tmp_path: Path) -> None:
    async with sampling(tmp_path, log_dirs({"secret-project": 9}), privacy="hashed") as (_, _, stored):
        await until(lambda: stored.taken == 1 and not stored.waiting)
    ((part),) = parts(tmp_path)
    ((name, size),) = part[4]
    assert (name[0], size, part[3]) == ("#", 9, 9)
