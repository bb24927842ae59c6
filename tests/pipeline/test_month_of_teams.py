"""A month of three teams whose pods come and go: what each pays, and a quota for each at a running gateway."""

from __future__ import annotations

import asyncio
import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from config.sections.quota_admin import Authorize, QuotaAdminSettings
from pipeline.cli import main
from pipeline.errors import Exit
from pipeline.plans.plan import Plan
from pipeline.teams.members import NO_TEAM
from quota_client.client import QuotaClient
from quotas.entities import QuotaEntity, QuotaKey
from testkit.broker import ScriptedBroker
from testkit.gateway import gateway_config, running_gateway
from testkit.pipeline.local_session import compact_all, ingest_files
from testkit.pipeline.usage_lines import LONG_AFTER, line, place, row
from testkit.raw_client import HOST

FIRST: Final = 3 * 86_400
"""The first second of October 2026, since the day of `usage_lines`."""
DAYS: Final = 10
"""Days of the month with any records."""
BUSY_S: Final = 10
"""Seconds of a day in which clients do anything."""
GROUPS: Final[list[dict[str, Any]]] = [
    {"name": "orders", "users": ["orders", "orders-*"]},
    {"name": "search", "users": ["search"], "client_ids": ["indexer-*"]},
    {"name": "lab", "client_ids": ["spark-*"]},
]
STAY: Final = (
    *((f"orders-{at}", "worker", "orders") for at in range(8)),
    # A client chooses its client id, and pays for its user.
    ("orders", "spark-own", "orders"),
    *(("search", f"page-{at}", "search") for at in range(3)),
    ("eve", "tool", ""),
    ("", "script", ""),
)
"""Clients that are there each day: user, client id and team."""


@dataclass
class Month:
    """What was written.

    Attributes:
        folder: has the pipeline's folder and the file of groups.
        sums: bytes in and out of each team, of all lines.
        clients: all that wrote a line.
        pods: client ids that were there on one day alone.
    """

    folder: Path
    sums: dict[str, list[int]] = field(default_factory=dict)
    clients: set[tuple[str, str]] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)

    def lines(self, chance: random.Random) -> Iterator[bytes]:
        """The lines of all days."""
        for day in range(DAYS):
            pods = [("", f"indexer-{day}-{chance.randrange(1 << 30):x}", "search") for _ in range(3)]
            pods += [(f"bot-{at}", f"spark-{day}-{chance.randrange(1 << 30):x}", "lab") for at in range(3)]
            self.pods |= {client_id for _, client_id, _ in pods}
            for second in sorted(chance.sample(range(86_400), BUSY_S)):
                yield line(FIRST + 86_400 * day + second, *self._rows((*STAY, *pods), chance))

    def _rows(self, clients: tuple[tuple[str, str, str], ...], chance: random.Random) -> Iterator[list[Any]]:
        for user, client_id, team in clients:
            self.clients.add((user, client_id))
            sums = self.sums.setdefault(team, [0, 0])
            for api in ("produce", "fetch"):
                # Beyond 2**53 a float would lose bytes: the month's sums are far above it.
                in_, out = chance.randrange(1 << 50), chance.randrange(1 << 50)
                sums[0] += in_
                sums[1] += out
                units = in_ if api == "produce" else out
                yield row(client_id, units, user=user, api=api, bytes_in=in_, bytes_out=out)


@pytest.fixture(scope="module")
def october(tmp_path_factory: pytest.TempPathFactory) -> Month:
    """The month, read and compacted."""
    month = Month(tmp_path_factory.mktemp("october"))
    file = place(month.folder / "in", "usage-a.jsonl.gz", *month.lines(random.Random(7)))
    out = str(month.folder / "out")
    ingest_files(out, month.folder / "checkpoint", file)
    compact_all(out)
    tables = (
        "".join(["[[groups]]\n", *(f"{key} = {value!r}\n" for key, value in group.items())]) for group in GROUPS
    )
    (month.folder / "groups.toml").write_text("\n".join(tables))
    return month


def job(month: Month, *words: str) -> int:
    """Runs a job. Gateways that are busy for some seconds of a day alone leave gaps, as a rule."""
    groups = ("--groups", str(month.folder / "groups.toml"))
    return main([words[0], "--out", str(month.folder / "out"), *words[1:], *groups, "--allow-gaps"])


def plan_for(month: Month, entities: str, file: Path) -> Plan:
    assert job(month, "recommend", "--for", entities, "--plan", str(file)) == Exit.DONE
    return Plan.from_json(file.read_bytes())


@pytest.fixture(autouse=True)
def all_days_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the date is."""
    for name in ("recommend", "cost"):
        monkeypatch.setattr(f"pipeline.jobs.{name}.expectation_of", lambda _: LONG_AFTER)


@pytest.mark.slow
def test_what_teams_pay_for_are_the_records_to_the_byte(october: Month, tmp_path: Path) -> None:
    assert len(october.clients) == len(STAY) + DAYS * 6
    assert job(october, "cost", "--month", "2026-10", "--to-dir", str(tmp_path)) == Exit.DONE

    with (tmp_path / "cost.csv").open() as text:
        found = {row["team"]: [int(row["bytes_in"]), int(row["bytes_out"])] for row in csv.DictReader(text)}
    assert found == {name or NO_TEAM: sums for name, sums in october.sums.items()}


@pytest.mark.slow
async def test_each_team_gets_a_quota_at_a_running_gateway_which_is_taken_back(
    october: Month, tmp_path: Path
) -> None:
    plan = plan_for(october, "team", tmp_path / "plan.json")
    quotas = {(entry.entity, entry.key): entry.value for entry in plan.entries}
    keys = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)
    assert quotas.keys() == {(QuotaEntity(group=group["name"]), key) for group in GROUPS for key in keys}

    async with ScriptedBroker() as broker:
        config = gateway_config([broker.port], groups=GROUPS)
        admin = QuotaAdminSettings(authorize=Authorize.ANYONE)
        async with running_gateway(config=config.model_copy(update={"quota_admin": admin})) as gateway:
            await gateway.discovered()
            where = ("--bootstrap", f"{HOST}:{gateway.port}")

            def applied() -> dict[tuple[QuotaEntity, QuotaKey], float]:
                with QuotaClient(where[1]) as client:
                    return client.describe()

            apply = ["plan", "apply", str(tmp_path / "plan.json"), "--unattended", *where]
            assert await asyncio.to_thread(main, apply) == Exit.DONE
            assert await asyncio.to_thread(applied) == quotas
            revert = ["plan", "revert", str(tmp_path / "plan.revert.json"), *where]
            assert await asyncio.to_thread(main, revert) == Exit.DONE
            assert await asyncio.to_thread(applied) == {}


@pytest.mark.slow
def test_no_quota_is_for_a_name_that_will_never_come_back(october: Month, tmp_path: Path) -> None:
    entities = {entry.entity for entry in plan_for(october, "prefix", tmp_path / "plan.json").entries}

    assert october.pods.isdisjoint(entity.client_id for entity in entities)
    stay = {QuotaEntity(user=user or None, client_id=client_id) for user, client_id, _ in STAY}
    prefixes = {QuotaEntity(client_id="indexer-*"), QuotaEntity(user="orders", client_id="spark-*")}
    prefixes |= {QuotaEntity(user=f"bot-{at}", client_id="spark-*") for at in range(3)}
    assert entities == (stay - {QuotaEntity(user="orders", client_id="spark-own")}) | prefixes
