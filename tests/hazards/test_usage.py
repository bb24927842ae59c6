"""Hazards G02, G18, I11, I13, I14: what the disk, a kill and hostile names do to usage records, and not to clients.

The file systems are real: a small tmpfs that is full, or read-only. Where nothing can be mounted those tests are
skipped; tests/gateway/usage/test_part_file.py shows the same with failing system calls.
"""

import asyncio
import gzip
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from config.sections.usage import UsageSettings
from gateway.usage.names import Names
from quotas.usage_record import Row
from testkit import wire
from testkit.broker import ScriptedBroker
from testkit.faults.effects import FullDisk, SmallDisk
from testkit.frames import fetch
from testkit.gateway import RunningGateway, gateway_config, gateway_process, running_gateway
from testkit.raw_client import RawClient, until
from testkit.usage_lines import usage_lines


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


@asynccontextmanager
async def recording(directory: Path, **usage: Any) -> AsyncIterator[RunningGateway]:
    """A gateway that records to a directory, in front of a scripted broker."""
    given = {"kind": "files", "directory": str(directory), "gateway_id": "a", "rotate_seconds": 1, **usage}
    async with ScriptedBroker() as broker:
        config = gateway_config([broker.port])
        config = config.model_copy(update={"usage": UsageSettings.model_validate(given)})
        async with running_gateway(config=config) as running:
            await running.discovered()
            yield running


async def served(client: RawClient, count: int = 50) -> None:
    """The client is answered as ever: no request waits for a disk."""
    for at in range(count):
        await client.send(fetch(at))
        assert wire.correlation_id_of(await client.receive_frame()) == at


def whole(directory: Path, requests: int) -> None:
    """Every line is there once, and every request in one of them."""
    found = usage_lines(directory)
    assert [line["seq"] for line in found] == list(range(len(found)))
    rows = [row for line in found for row in line["rows"] if row[Row.API] == "fetch"]
    assert sum(row[Row.REQUESTS] for row in rows) == requests


def sample(running: RunningGateway, name: str, **labels: str) -> float:
    return running.gateway.registry.get_sample_value(name, labels) or 0.0


async def failing(running: RunningGateway, yes: bool = True) -> None:
    await until(lambda: sample(running, "gateway_usage_sink_failing") == yes)


@pytest.mark.slow
async def test_g02_i13_a_full_disk_delays_records_and_not_clients(small_disk: Callable[[str], SmallDisk]) -> None:
    disk = small_disk("128k")
    async with recording(disk.folder / "usage") as running, await running.connect() as client:
        await served(client)
        with FullDisk(disk):
            await served(client)
            await failing(running)
            await served(client)
        await failing(running, False)
        await served(client)
        assert sample(running, "gateway_usage_lines_total", result="dropped") == 0
    whole(disk.folder / "usage", 200)


@pytest.mark.slow
async def test_g02_i13_what_a_full_disk_never_takes_is_dropped_and_counted(
    small_disk: Callable[[str], SmallDisk],
) -> None:
    disk = small_disk("64k")
    disk.fill(4_096)
    async with recording(disk.folder / "usage") as running, await running.connect() as client:
        await served(client)
        await failing(running)
        usage = running.gateway.usage
    assert usage is not None
    sink = usage.sink
    assert sink.made.lines == sink.writer.delivered.lines + sink.dropped().lines
    assert sink.made.rows == sink.writer.delivered.rows + sink.dropped().rows
    assert sink.dropped().lines > 0


@pytest.mark.slow
async def test_g18_a_read_only_disk_delays_records_and_not_clients(small_disk: Callable[[str], SmallDisk]) -> None:
    disk = small_disk("1m").folder
    (disk / "usage").mkdir()
    remount(disk, "ro")
    async with recording(disk / "usage") as running, await running.connect() as client:
        await served(client)
        await failing(running)
        await served(client)
        assert running.gateway.why_not_ready() is None
        remount(disk, "rw")
        await failing(running, False)
        await served(client)
    whole(disk / "usage", 150)


@pytest.mark.slow
async def test_i13_a_killed_gateway_loses_a_second_at_most_and_the_next_publishes_the_rest(tmp_path: Path) -> None:
    directory = tmp_path / "usage"
    tables = f'[usage]\nkind = "files"\ndirectory = "{directory}"\ngateway_id = "a"\n'
    async with ScriptedBroker() as broker:
        async with gateway_process(tmp_path, broker.port, tables=tables) as killed:
            async with await killed.connect() as client:
                await served(client)
            made = await killed.metric("gateway_usage_lines_total", result="made")
            while await killed.metric("gateway_usage_lines_total", result="made") == made:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            # The line of the last request is made; it is written at once.
            await killed.metric_is("gateway_usage_queued_bytes", 0)
            killed.signal(signal.SIGKILL)
            await killed.exit_code()
        assert usage_lines(directory) == []
        async with gateway_process(tmp_path, broker.port, tables=tables) as started:
            await until(lambda: any(directory.glob("usage-*.jsonl.gz")))
            started.signal(signal.SIGTERM)
            assert await started.exit_code() == 0
    by_boot: dict[int, list[int]] = {}
    for line in usage_lines(directory):
        by_boot.setdefault(line["boot"], []).append(line["seq"])
    assert len(by_boot) == 2
    assert all(seqs == list(range(len(seqs))) for seqs in by_boot.values())
    rows = [row for line in usage_lines(directory) for row in line["rows"] if row[Row.API] == "fetch"]
    assert sum(row[Row.REQUESTS] for row in rows) == 50


HOSTILE: Final = (
    b'","rows":[',
    b"a\nb\r\n",
    b"\x00\x01\x1f\x7f",
    b"\xff\xfe\x80 no utf-8",
    b"\xed\xa0\x80 half a surrogate",
    b'\\"\\u0000\\',
    "\u2028\u2029\ufeff\U0001f703".encode(),
    b"]]}",
    b"~other",
    b"x" * 32_000,
    b"NaN",
    b"",
)


async def test_i14_client_ids_of_any_bytes_leave_every_line_readable(tmp_path: Path) -> None:
    async with recording(tmp_path / "usage") as running, await running.connect() as client:
        for at, name in enumerate(HOSTILE):
            await client.send(fetch(at, client_id=name))
            await client.receive_frame()
    texts = []
    for path in (tmp_path / "usage").glob("usage-*.jsonl.gz"):
        with gzip.open(path, "rb") as file:
            texts += [text.decode("utf-8", "strict") for text in file]
    told = [json.loads(text, strict=True) for text in texts]
    rows = [row for line in told for row in line["rows"] if row[Row.API] == "fetch"]
    written = Names().written
    assert sorted(row[Row.CLIENT_ID] for row in rows) == sorted(
        written(name.decode("utf-8", "replace")) for name in HOSTILE
    )
    assert all(row[Row.REQUESTS] == 1 for row in rows)


async def test_i13_ten_thousand_clients_a_second_take_no_more_rows_than_allowed(tmp_path: Path) -> None:
    async with recording(tmp_path / "usage", max_rows=100) as running, await running.connect() as client:
        for first in range(0, 1_000, 50):
            await client.send(b"".join(fetch(at, client_id=f"app-{at}") for at in range(first, first + 50)))
            for _ in range(50):
                await client.receive_frame()
        usage = running.gateway.usage
        assert usage is not None
        assert len(usage.table) <= 100
    found = usage_lines(tmp_path / "usage")
    rows = [row for line in found for row in line["rows"] if row[Row.API] == "fetch"]
    assert sum(row[Row.REQUESTS] for row in rows) == 1_000
    assert sum(line["dropped_rows"] for line in found) >= 800
    assert max(len(line["rows"]) for line in found) <= 103
