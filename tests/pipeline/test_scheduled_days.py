"""Fourteen days by the script for schedulers, which applies its plans to a running gateway without a hand."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import gmtime, strftime, struct_time
from typing import Any, Final

import pytest

from config.sections.quota_admin import Authorize, QuotaAdminSettings
from pipeline.cli import main
from pipeline.errors import Exit
from pipeline.ingest.writer import Writer
from pipeline.plans.plan import Plan
from quota_client.client import QuotaClient
from quotas.entities import QuotaEntity, QuotaKey
from testkit.broker import ScriptedBroker
from testkit.gateway import RunningGateway, gateway_config, running_gateway
from testkit.pipeline.local_session import LocalSession, write_batch
from testkit.pipeline.usage_lines import DAY, line, place, row
from testkit.raw_client import HOST

SCRIPT: Final = Path(__file__).resolve().parents[2] / "deploy/pipeline/hourly.sh"
DAYS: Final = 14
DAY_S: Final = 86_400
FIRST_PLAN: Final = 6
"""The first day after which there are seven."""
CHANGE: Final = 8
"""From this day on one client uses far more, and one far less."""
BAD: Final = 10
"""Half of this day's records never arrive."""
NOT_CLOSED: Final = "sluice-pipeline compact: nothing was compacted"
LINE_S: Final = 2
"""Each line covers so many seconds. Longer ones would be a gap in the day, shorter ones would be more lines."""
RATE: Final = QuotaKey.PRODUCER_BYTE_RATE
PROGRAM: Final = """#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({path!r})
    asked.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, said, fault = json.loads(asked.makefile().read())
sys.stdout.write(said)
sys.stderr.write(fault)
sys.exit(code)
"""
DATE: Final = """#!{python} -IS
import sys, time
with open({path!r}) as now:
    print(time.strftime(sys.argv[2].lstrip("+"), time.gmtime(int(now.read()))))
"""


@dataclass
class Clock:
    """The time of the jobs, in place of the module `time`."""

    file: Path
    now_s: int = DAY

    def set(self, now_s: int) -> None:
        self.now_s = now_s
        self.file.write_text(str(now_s))

    def time(self) -> float:
        return self.now_s

    def gmtime(self) -> struct_time:
        return gmtime(self.now_s)

    def strftime(self, form: str, at: struct_time) -> str:
        return strftime(form, at)


class Files:
    """In place of Spark's stream of files: those of a folder that it has not had yet, as one batch."""

    def __init__(self) -> None:
        self._had: set[Path] = set()

    def open(self, _session: object, folder: str, **_: Any) -> list[Path]:
        return sorted(set(Path(folder).glob("usage-*")) - self._had)

    def run(self, files: list[Path], writer: Writer, checkpoint: str, _every_s: object) -> None:
        if files:
            write_batch(writer, Path(checkpoint), files)
        self._had.update(files)


@dataclass
class Scheduler:
    """Runs the script with jobs that are in this process, by the clock.

    Attributes:
        folder: has the usage files, the pipeline's folder and the programs.
        clock: of the jobs.
        gateway: where plans are applied.
    """

    folder: Path
    clock: Clock
    gateway: RunningGateway

    async def run(self, day: int, *, minutes: int) -> tuple[int, str]:
        """The exit code of the script so long after the end of a day, and the last line that it wrote as an error."""
        self.clock.set(DAY + (day + 1) * DAY_S + 60 * minutes)
        script = await asyncio.create_subprocess_exec(
            "/bin/sh",
            str(SCRIPT),
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "SLUICE_SOURCE": f"files:{self.folder / 'in'}",
                "SLUICE_OUT": str(self.folder / "out"),
                "SLUICE_METRICS": str(self.folder / "sluice.prom"),
                "SLUICE_APPLY_TO": f"{HOST}:{self.gateway.port}",
            },
            stderr=asyncio.subprocess.PIPE,
        )
        _, fault = await asyncio.wait_for(script.communicate(), 120)
        assert script.returncode is not None
        return script.returncode, fault.decode().rstrip("\n").rpartition("\n")[2]

    async def quotas(self) -> dict[str, float]:
        """The quotas in force, by client id."""
        found = await asyncio.to_thread(self._describe)
        assert {key for _, key in found} <= {RATE}
        return {str(entity.client_id): value for (entity, _), value in found.items()}

    def _describe(self) -> dict[tuple[QuotaEntity, QuotaKey], float]:
        with QuotaClient(f"{HOST}:{self.gateway.port}") as client:
            return client.describe()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    words = json.loads(await reader.readline())
    said, fault = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(fault):
        try:
            code = await asyncio.to_thread(main, words)
        except Exception:  # noqa: BLE001  # as a process would end
            traceback.print_exc()
            code = Exit.FAILED
    writer.write(json.dumps([int(code), said.getvalue(), fault.getvalue()]).encode())
    writer.close()


@asynccontextmanager
async def scheduler_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scheduler]:
    """A scheduler and its gateway."""
    clock, files = Clock(folder / "now"), Files()
    for job in ("arguments", "ingest", "prune", "recommend"):
        monkeypatch.setattr(f"pipeline.jobs.{job}.time", clock)
    for job in ("ingest", "compact"):
        monkeypatch.setattr(f"pipeline.jobs.{job}.open_session", lambda *_, **__: LocalSession(1))
    monkeypatch.setattr("pipeline.spark.runner.OnSpark", lambda session: session)
    monkeypatch.setattr("pipeline.ingest.sources.files_stream", files.open)
    monkeypatch.setattr("pipeline.ingest.sources.stream", files.run)
    (folder / "bin").mkdir()
    asked = str(folder / "jobs")
    for name, text, path in (("sluice-pipeline", PROGRAM, asked), ("date", DATE, str(clock.file))):
        program = folder / "bin" / name
        program.write_text(text.format(python=sys.executable, path=path))
        program.chmod(0o755)
    async with ScriptedBroker() as broker:
        config = gateway_config([broker.port])
        admin = QuotaAdminSettings(authorize=Authorize.ANYONE)
        async with running_gateway(config=config.model_copy(update={"quota_admin": admin})) as gateway:
            await gateway.discovered()
            server = await asyncio.start_unix_server(_serve, asked)
            async with server:
                yield Scheduler(folder, clock, gateway)


def use_of(client: int, day: int, minute: int) -> int:
    """Bytes of a client in a second: its own size, a little more or less each minute."""
    size = 10_000 * (client + 1) * (990 + (7 * client + 13 * day + 31 * minute) % 21) // 1_000
    if day >= CHANGE and client == 0:
        return 50 * size
    return size // 50 if day >= CHANGE and client == 1 else size


def write_day(folder: Path, day: int, quotas: dict[str, float]) -> None:
    """What a gateway writes on a day with these quotas. Its clients are busy in the first second of each minute."""
    begin = day * DAY_S
    lines = (
        line(
            (begin + second) // LINE_S,
            *(
                row(f"c{at}", use_of(at, day, second // 60), user="", requests=1, quota=quotas.get(f"c{at}"))
                for at in (() if second % 60 else range(6))
            ),
            ts=DAY + begin + second,
            dur_ms=1_000 * LINE_S,
        )
        for second in range(0, DAY_S, LINE_S)
        if day != BAD or not DAY_S // 4 <= second < DAY_S * 3 // 4
    )
    place(folder, f"usage-a-{day:02}.jsonl.gz", *lines)


@pytest.mark.campaign
async def test_fourteen_days_without_a_hand_and_one_bad_day_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, factors = [], []
    async with scheduler_of(tmp_path, monkeypatch) as scheduler:
        for day in range(DAYS):
            before = await scheduler.quotas()
            write_day(tmp_path / "in", day, before)
            # Half an hour after its end the day may still get lines, and is left.
            waits = f"{NOT_CLOSED}: {date_of(day)} not closed"
            assert await scheduler.run(day, minutes=30) == (Exit.DONE, waits)
            assert await scheduler.quotas() == before
            code, fault = await scheduler.run(day, minutes=90)
            codes.append(code)
            after = await scheduler.quotas()
            metrics = (tmp_path / "sluice.prom").read_text()
            assert "sluice_pipeline_days_not_compacted 0.0" in metrics
            if day < FIRST_PLAN:
                assert "a history of 7 days to" in fault
                assert after == {}
            elif day == BAD:
                assert "plan.json is for a person to decide: " in fault
                assert f"{date_of(day)}: a is 50.0% complete, without records" in fault
                assert "this day of 6 clients is left out; nothing was done" in fault
                assert after == before
            else:
                assert fault == ""
                assert after.keys() == {f"c{client}" for client in range(6)}
            factors += [max(value / before[of], before[of] / value) for of, value in after.items() if of in before]
        (last,) = (tmp_path / "out/results/plan").glob(f"run={date_of(DAYS)}T*/plan.json")
        plan = Plan.from_json(last.read_bytes())
    assert codes == [Exit.REFUSED if day == BAD else Exit.DONE for day in range(DAYS)]
    # The two clients that changed need more than is allowed at once, so the limit is reached and never passed.
    assert max(factors) == pytest.approx(4, rel=1e-3)
    assert {str(entry.entity.client_id): entry.value for entry in plan.entries} == after


def date_of(day: int) -> str:
    """The date so many days after the first."""
    return strftime("%Y-%m-%d", gmtime(DAY + day * DAY_S))
