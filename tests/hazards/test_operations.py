"""Operators and the machine meddle with a gateway at work: reloads, the switch, stops of the process and of time."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from gateway.cli.main import main
from gateway.server.admin_access import is_this_machine
from testkit import wire
from testkit.broker import PRODUCE, BrokerConnection, Request, ScriptedBroker
from testkit.frames import produce
from testkit.gateway import GatewayProcess, broker_and_gateway, gateway_process, metric_of
from testkit.raw_client import HOST, RawClient, until

pytestmark = pytest.mark.asyncio

# 10 windows of a second: 3,800 bytes are free, and a frame of more than that is waited for. Two are within
# the bound of two windows of 11 s, beyond which nothing is answered before its time.
LIMIT = 380
FRAME_BYTES = 4_000
QUOTA = {"default_client_id": True, "producer_byte_rate": LIMIT}
QUOTA_TEXT = f"[[quotas]]\ndefault_client_id = true\nproducer_byte_rate = {LIMIT}\n"


def answer_produce(connection: BrokerConnection, request: Request) -> None:
    reply = wire.response("Produce", request.api_version, correlation_id=request.correlation_id, responses=[])
    connection.send(reply)


async def throttle_of(client: RawClient, correlation_id: int) -> int:
    """What one Produce request is answered."""
    await client.send(produce(correlation_id, version=3, size=FRAME_BYTES))
    frame = await client.receive_frame()
    assert wire.correlation_id_of(frame) == correlation_id
    return int(wire.decode_response("Produce", 3, frame).throttle_time_ms)


async def reloaded(gateway: GatewayProcess, result: str, times: int = 1) -> None:
    """Wait until a reload has ended so."""
    for _ in range(500):
        if await gateway.metric("gateway_config_reloads_total", result=result) == times:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"no reload was {result}")


async def command(capsys: pytest.CaptureFixture[str], port: int, *argv: str) -> tuple[int, str, str]:
    """Exit code and output of ``sluice`` against this admin port."""
    capsys.readouterr()
    code = await asyncio.to_thread(main, [*argv, "--admin", f"{HOST}:{port}"])
    out, err = capsys.readouterr()
    # A gateway in this process writes its log to the same place.
    told = [line for line in out.splitlines(keepends=True) if not line.startswith("20")]
    return code, "".join(told), err


async def change(port: int, path: str, *, method: str = "PUT", **options: Any) -> tuple[int, Any]:
    """Status and answer of one request that wants to change something."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{HOST}:{port}{path}", **options) as answer,
    ):
        return answer.status, await answer.json()


# -- reload --------------------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_j07_reload_by_signal_under_a_live_connection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as gateway:
        broker.script(PRODUCE, answer_produce)
        text = file.read_text()
        async with await gateway.connect() as client:
            assert await throttle_of(client, 1) == 0
            # Valid: the very next request of the same connection meets the quota.
            file.write_text(text + QUOTA_TEXT)
            gateway.signal(signal.SIGHUP)
            await reloaded(gateway, "applied")
            assert await throttle_of(client, 2) > 0
        # Invalid: answered, counted, and nothing else.
        file.write_text(text + "[log]\nlevel = 'loud'\n")
        gateway.signal(signal.SIGHUP)
        await reloaded(gateway, "invalid")
        assert await gateway.metric("gateway_config_last_reload_successful") == 0
        async with await gateway.connect() as client:
            assert await throttle_of(client, 3) > 0
        code, out, err = await command(capsys, gateway.admin_port, "reload")
        assert (code, out) == (1, "")
        assert "log.level" in err
        # What needs a restart waits for it, and the quota goes all the same.
        file.write_text(text + "[client_quota]\nwindow_num = 5\n")
        code, out, err = await command(capsys, gateway.admin_port, "reload")
        assert (code, err) == (0, "")
        assert out == "changed: quotas\nneeds a restart: client_quota.window_num\n"
        assert await gateway.metric("gateway_config_last_reload_successful") == 1
        assert await gateway.metric("gateway_config_settings_awaiting_restart") == 1
        async with await gateway.connect() as client:
            assert await throttle_of(client, 4) == 0
        gateway.signal(signal.SIGTERM)
        assert await gateway.exit_code() == 0
        log = gateway.stderr.decode()
        assert log.count("event=config_not_reloaded level=error") == 2
        assert "Traceback" not in log


@pytest.mark.integration
async def test_j09_hundred_reloads_leave_nothing_behind_and_end_no_connection(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as gateway:
        broker.script(PRODUCE, answer_produce)
        async with await gateway.connect() as client:
            await throttle_of(client, 0)
            text = file.read_text()
            before = 0
            for number in range(1, 101):
                limit = 10**12 + number
                file.write_text(text + QUOTA_TEXT.replace(f"= {LIMIT}", f"= {limit}"))
                answer = await change(gateway.admin_port, "/reload", method="POST", json={})
                assert answer[1]["applied"] == ["quotas"]
                assert await throttle_of(client, number) == 0
                if number == 10:
                    before = gateway.open_files()
            await until(lambda: gateway.open_files() <= before)  # the connection of the last reload closes soon
        assert await gateway.metric("gateway_config_reloads_total", result="applied") == 100


# -- the switch ----------------------------------------------------------------------------------------------


async def test_switch_takes_effect_at_once_and_shows_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    async with broker_and_gateway(quotas=[QUOTA]) as (broker, running):
        broker.script(PRODUCE, answer_produce)
        port = running.gateway.admin.port

        async def throttle() -> int:
            # A new connection each time: one that was muted stays so for its time.
            async with await running.connect() as client:
                return await throttle_of(client, 1)

        assert await throttle() > 0
        assert await command(capsys, port, "enforcement", "observe") == (0, "observe (was enforce)\n", "")
        assert await throttle() == 0
        assert await metric_of(port, "gateway_produce_would_throttle_total") == 1
        assert await metric_of(port, "gateway_produce_throttled_requests_total") == 1
        assert await command(capsys, port, "enforcement", "off") == (0, "off (was observe)\n", "")
        assert await throttle() == 0
        assert await metric_of(port, "gateway_produce_would_throttle_total") == 1
        assert await metric_of(port, "gateway_enforcement", mode="off") == 1
        assert await metric_of(port, "gateway_enforcement") == 1
        assert await command(capsys, port, "enforcement") == (0, "off (the configuration file says enforce)\n", "")
        assert (await command(capsys, port, "enforcement", "enforce"))[0] == 0
        assert await throttle() > 0


@pytest.mark.slow
async def test_a_brake_leaves_a_part_to_a_tier_until_it_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    # A tier that used nothing keeps a thousandth of the capacity: a frame is a second's worth.
    capacity = {"producer_byte_rate": 1000 * FRAME_BYTES}
    tier = {"default_client_id": True, "producer_byte_rate": 1000 * FRAME_BYTES, "tier": 3}
    async with broker_and_gateway(quotas=[tier], capacity=capacity) as (broker, running):
        broker.script(PRODUCE, answer_produce)
        port = running.gateway.admin.port

        async def throttled() -> bool:
            async with await running.connect() as client:
                return any([await throttle_of(client, number) for number in range(1, 3)])

        async def most() -> float:
            return await metric_of(port, "gateway_produce_byte_limit_of_tier", tier="3")

        async def until_most(bytes_per_s: float) -> None:
            for _ in range(6_000):
                if await most() == bytes_per_s:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"the limit is {await most()}")

        assert await command(capsys, port, "shed") == (0, "no tier has a brake\n", "")
        assert not await throttled()
        code, out, _ = await command(capsys, port, "shed", "--tier", "3", "--to", "10%", "--for", "2h")
        assert code == 0
        header, row = out.splitlines()
        assert header.split() == ["TIER", "KEEPS", "UNTIL", "(UTC)", "BY"]
        assert row.split()[:2] == ["3", "10%"]
        await until_most(FRAME_BYTES)
        assert await throttled()
        _, why, _ = await command(capsys, port, "why", "--user", "ANONYMOUS")
        assert re.search(
            r"cause  +brake of tier 3 until 20.* UTC, set by admin port.* keep 10 % of what they used", why
        )
        _, status = await change(port, "/status.json", method="GET")
        (brake,) = status["members"][0]["brakes"]
        assert brake["text"] in why
        assert status["capacity"]["produce"]["tiers"][3]["brake"] == FRAME_BYTES
        with capture_logs() as lines:
            assert (await command(capsys, port, "shed", "--tier", "3", "--end"))[1] == "no tier has a brake\n"
        (ended,) = [each for each in lines if each["event"] in ("tier_shed", "tier_no_longer_shed")]
        assert (ended["event"], ended["tier"]) == ("tier_no_longer_shed", 3)
        await until_most(0)
        assert not await throttled()


@pytest.mark.slow
async def test_the_end_of_a_brake_stays_the_same_each_time_it_is_shown() -> None:
    async with broker_and_gateway(capacity={"producer_byte_rate": LIMIT}) as (_, running):
        port, now = running.gateway.admin.port, asyncio.get_running_loop().time
        await change(port, "/shed", json={"tier": 3, "percent": 20, "seconds": 60})
        earliest, latest = [], []
        for _ in range(3):
            before = now()
            _, answer = await change(port, "/shed", method="GET")
            earliest.append(before + answer["tiers"][0]["seconds_left"])
            latest.append(now() + answer["tiers"][0]["seconds_left"])
            await asyncio.sleep(0.3)
        assert max(earliest) <= min(latest) + 0.002  # the gateway counts in whole milliseconds


async def test_a_brake_without_a_capacity_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    async with broker_and_gateway() as (_, running):
        port = running.gateway.admin.port
        code, _, err = await command(capsys, port, "shed", "--tier", "3", "--to", "10", "--for", "90s")
        assert (code, err) == (
            1,
            "sluice: refused: a brake needs [capacity] in the configuration: it divides what a tier has left\n",
        )


@pytest.mark.parametrize(
    "body",
    [
        {"tier": 4, "percent": 20, "seconds": 60},
        {"tier": 3, "percents": 20, "seconds": 60},
        {"tier": True, "percent": 20, "seconds": 60},
        {"tier": 3, "percent": 0, "seconds": 60},
        {"tier": 3, "percent": 101, "seconds": 60},
        {"tier": 3, "percent": True, "seconds": 60},
        {"tier": 3, "percent": 20},
        {"tier": 3, "percent": 20, "seconds": 86_401},
        {"tier": 3, "percent": 20, "seconds": 0.5},
        [3],
    ],
)
async def test_no_brake_without_a_tier_a_part_and_an_end(body: Any) -> None:
    async with broker_and_gateway(capacity={"producer_byte_rate": LIMIT}) as (_, running):
        port = running.gateway.admin.port
        assert (await change(port, "/shed", json=body))[0] == 400
        assert await change(port, "/shed", method="GET") == (200, {"tiers": [], "fault": None})


@pytest.mark.parametrize(
    "argv",
    [
        ("--tier", "3"),
        ("--tier", "3", "--to", "20%"),
        ("--tier", "3", "--end", "--for", "60s"),
        ("--to", "20%", "--for", "60s"),
        ("--end",),
        ("--tier", "3", "--to", "0%", "--for", "60s"),
        ("--tier", "3", "--to", "20%", "--for", "25h"),
        ("--tier", "3", "--to", "20%", "--for", "60"),
    ],
)
async def test_the_command_asks_for_a_whole_brake(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["shed", *argv])
    assert ended.value.code == 2
    assert "sluice shed: " in capsys.readouterr().err


@pytest.mark.slow
async def test_issued_mute_keeps_its_time_when_enforcement_ends() -> None:
    quota = {"default_client_id": True, "producer_byte_rate": FRAME_BYTES // 11}
    async with broker_and_gateway(quotas=[quota]) as (broker, running), await running.connect() as client:
        broker.script(PRODUCE, answer_produce)
        started = time.monotonic()
        wait_ms = await throttle_of(client, 1)
        assert 0 < wait_ms < 3_000
        assert (await change(running.gateway.admin.port, "/enforcement", json={"mode": "off"}))[0] == 200
        assert await throttle_of(client, 2) == 0
        assert (time.monotonic() - started) * 1000 >= wait_ms - 5


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"json": {"mode": "off"}, "headers": {"Origin": "http://127.0.0.1:9644"}}, 403),
        ({"data": '{"mode": "off"}', "headers": {"Content-Type": "text/plain"}}, 415),
        ({"data": {"mode": "off"}}, 415),
        ({"data": b"{", "headers": {"Content-Type": "application/json"}}, 400),
        ({"data": b"[" * 10_000, "headers": {"Content-Type": "application/json"}}, 400),
        ({"json": {"mode": "on"}}, 400),
        ({"json": {"mode": ["off"]}}, 400),
        ({"json": ["off"]}, 400),
        ({"json": None}, 415),
    ],
)
async def test_switch_is_not_thrown_by_web_pages_or_by_mistake(options: dict[str, Any], status: int) -> None:
    async with broker_and_gateway() as (_, running):
        found, answer = await change(running.gateway.admin.port, "/enforcement", **options)
        assert found == status
        assert answer["error"]
        assert await metric_of(running.gateway.admin.port, "gateway_enforcement", mode="enforce") == 1


async def test_switch_is_thrown_from_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_and_gateway() as (_, running):
        monkeypatch.setattr("gateway.server.admin_access.is_this_machine", lambda address: address != HOST)
        for path, method in (("/enforcement", "PUT"), ("/reload", "POST")):
            found = await change(running.gateway.admin.port, path, method=method, json={"mode": "off"})
            assert found[0] == 403
        assert (await change(running.gateway.admin.port, "/enforcement", method="GET"))[0] == 200


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("localhost", False),
        (None, False),
    ],
)
async def test_this_machine_is_known_by_its_loopback_addresses(address: str | None, here: bool) -> None:
    assert is_this_machine(address) is here


# -- the machine ---------------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_f06_stopped_process_grants_no_more_than_one_burst_when_it_goes_on(tmp_path: Path) -> None:
    limit, size = 20_000, 1_000
    tables = f"[client_quota]\nwindow_num = 3\n[[quotas]]\ndefault_client_id = true\nproducer_byte_rate = {limit}\n"
    burst = 2 * limit
    async with (
        ScriptedBroker() as broker,
        gateway_process(tmp_path, broker.port, tables=tables) as gateway,
        await gateway.connect() as client,
    ):
        broker.script(PRODUCE, answer_produce)
        flood = asyncio.create_task(client.send(b"".join(produce(n, version=3, size=size) for n in range(400))))
        started = time.monotonic()
        await asyncio.sleep(0.5)
        gateway.signal(signal.SIGSTOP)
        await asyncio.sleep(2.5)
        gateway.signal(signal.SIGCONT)
        await asyncio.sleep(1.0)
        (upstream,) = broker.client_connections
        await until(lambda: upstream.received_bytes >= burst * 0.9)
        received = upstream.received_bytes
        seconds = time.monotonic() - started
        # One burst at the start, one when the time that stood still has passed, one frame over each.
        assert received <= 2 * burst + limit * (seconds - 2.5) + 2 * (size + 200)
        flood.cancel()
