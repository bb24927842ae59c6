"""Records of a whole gateway: they agree with what clients sent and with the gateway's own metrics, exactly."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from config import Config
from config.sections.client_quota import ClientQuotaSettings
from config.sections.usage import UsageSettings
from gateway.usage.service import UsageService, counter_scope, host_id
from quotas.usage_record import Row
from testkit import wire
from testkit.broker import ScriptedBroker
from testkit.gateway import LISTENER, RunningGateway, gateway_config, running_gateway
from testkit.raw_client import until
from testkit.usage_lines import usage_lines


@asynccontextmanager
async def recording(
    directory: Path, *, usage: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[RunningGateway]:
    """A gateway that records, in front of a scripted broker."""
    async with (
        ScriptedBroker() as broker,
        running_gateway(config=configured(directory, broker.port, usage, **options)) as running,
    ):
        await running.discovered()
        yield running


def configured(directory: Path, port: int, usage: dict[str, Any] | None = None, **options: Any) -> Config:
    given = {"kind": "files", "directory": str(directory), "gateway_id": "a", **(usage or {})}
    section = UsageSettings.model_validate(given)
    return gateway_config([port], **options).model_copy(update={"usage": section})


def totals(directory: Path) -> dict[tuple[str, str], Counter[Row]]:
    """Sums by API and client id."""
    found: dict[tuple[str, str], Counter[Row]] = {}
    for line in usage_lines(directory):
        for row in line["rows"]:
            sums = found.setdefault((row[Row.API], row[Row.CLIENT_ID]), Counter())
            for at in range(Row.REQUESTS, Row.QUOTA):
                sums[Row(at)] += row[at]
    return found


def produce(correlation_id: int, *, client_id: str, size: int, acks: int = 1) -> bytes:
    frame = wire.request(
        "Produce", 3, correlation_id=correlation_id, client_id=client_id, acks=acks, timeout_ms=1, topic_data=[]
    )
    payload = frame[4:] + bytes(size - (len(frame) - 4))
    return size.to_bytes(4, "big") + payload


def sample(running: RunningGateway, name: str, **labels: str) -> float:
    """A counter of the gateway's, summed over the labels not given."""
    return sum(
        each.value
        for family in running.gateway.registry.collect()
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    )


async def test_connections_of_the_records_are_those_of_the_metrics(tmp_path: Path) -> None:
    async with recording(tmp_path, connections={"max_connections_per_ip": 2}) as running:
        clients = [await running.connect() for _ in range(4)]
        refused_or_opened = ("gateway_connections_opened_total", "gateway_connections_refused_total")
        await until(lambda: sum(sample(running, name) for name in refused_or_opened) == 4)
        for client in clients:
            client.close()
        opened = sample(running, "gateway_connections_opened_total")
        refused = sample(running, "gateway_connections_refused_total")
    row = totals(tmp_path)["connect", "127.0.0.1"]
    assert (row[Row.ADMITTED], row[Row.REJECTED]) == (opened, refused) == (2, 2)
    assert row[Row.OFFERED] == 4


async def test_each_line_says_what_one_counter_covers(tmp_path: Path) -> None:
    async with recording(tmp_path):
        pass
    assert {line["scope"] for line in usage_lines(tmp_path)} == {"gateway"}
    config = gateway_config([1])
    assert counter_scope(config, "cluster") == counter_scope(config, None) == "gateway"
    config = config.model_copy(update={"client_quota": ClientQuotaSettings(scope="fleet")})
    assert counter_scope(config, None) == ""
    assert counter_scope(config, "one") == "fleet:one/__sluice_usage_shares"
    assert counter_scope(config, "two") != counter_scope(config, "one")


@pytest.mark.parametrize("readable_salt", [True, False])
async def test_i11_hashed_records_name_nobody(tmp_path: Path, readable_salt: bool) -> None:
    salt = tmp_path / "salt"
    if not readable_salt:
        salt.write_bytes(b"short")
    usage = {"privacy": "hashed", "salt_file": str(salt)}
    async with recording(tmp_path, usage=usage) as running, await running.connect() as client:
        await client.send(produce(1, client_id="secret-app", size=200))
        await client.receive_frame()
    text = json.dumps(usage_lines(tmp_path))
    assert '"produce"' in text
    assert LISTENER in text
    assert not any(name in text for name in ("secret-app", "ANONYMOUS", "127.0.0.1"))


async def test_a_directory_that_can_not_be_made_does_not_keep_gateway_from_serving(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with recording(tmp_path / "file" / "usage") as running:
        async with await running.connect() as client:
            await client.send(produce(1, client_id="app", size=200))
            await client.receive_frame()
        # Its thread may not have tried yet.
        await until(lambda: sample(running, "gateway_usage_sink_failing") == 1)
        usage = running.gateway.usage
    assert usage is not None
    assert usage.sink.made.lines == usage.sink.dropped().lines > 0


async def test_the_hosts_name_names_a_gateway_without_another(tmp_path: Path) -> None:
    async with recording(tmp_path, usage={"gateway_id": None}) as running:
        assert isinstance(running.gateway.usage, UsageService)
    assert {line["gw"] for line in usage_lines(tmp_path)} == {host_id()}
