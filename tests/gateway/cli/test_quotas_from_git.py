"""A month of a repository of quotas and its pipeline, against the admin port of a gateway with a store on disk.

Every morning the pipeline runs `diff`. What happens on some days is what happens to such repositories: changes that
were reviewed, changes by hand, two pipelines at once, a bad file, an attempt to remove what belongs to others.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.cli.main import main
from gateway.cli.quota_endpoints import GatewayEndpoint, Source
from gateway.cli.quota_plan import Step
from gateway.quota_admin.store.interface import Alteration
from quotas.entities import QuotaEntity
from quotas.layered_quotas import Owner, QuotaChange
from testkit.admin_commands import sluice
from testkit.gateway import RunningGateway, running_gateway
from testkit.quota_stores import ALICE, APP, AT_MS, FETCH, PRODUCE
from testkit.raw_client import HOST

pytestmark = pytest.mark.asyncio
Capsys = pytest.CaptureFixture[str]

DAY_MS = 86_400_000
IN_SYNC, FAULT, DRIFT = 0, 1, 2
OTHERS = QuotaEntity(user="payments")
NEW = QuotaEntity(user="ad-hoc")
FIRST = """\
scope: [user=alice, user=ad-*, client-id=*]
quotas:
- user: alice
  producer_byte_rate: 10MiB
- client-id: app
  consumer_byte_rate: 1MB
"""


class Repository:
    """The file in Git, the pipeline that applies it, and the gateway."""

    def __init__(self, path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = path / "quotas.yaml"
        self.digests: set[str] = set()
        self.day = 0
        self.running: RunningGateway
        self._store = path / "store"
        self._capsys = capsys
        monkeypatch.setenv("LOGNAME", "pipeline")

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[None]:
        store = {"kind": "sqlite", "data_dir": str(self._store)}
        base = [{"user": "alice", "producer_byte_rate": 100}]
        async with running_gateway(9, quota_store=store, quotas=base) as running:
            running.gateway.live_quotas.store._now_ms = lambda: AT_MS + self.day * DAY_MS  # type: ignore[attr-defined]
            self.running = running
            yield

    def merge(self, text: str) -> None:
        self.file.write_text(text)
        self.digests.add(sha256(text.encode()).hexdigest())

    async def run(self, command: str, *options: str) -> tuple[int, str, str]:
        return await sluice(self.running, self._capsys, "quotas", command, str(self.file), *options)

    async def by_hand(self, *changes: tuple[QuotaEntity, float | None]) -> None:
        made = tuple(QuotaChange(entity, PRODUCE, value, Owner.API) for entity, value in changes)
        await self.running.gateway.live_quotas.alter(Alteration("User:bob", "clients, 10.0.0.7:4242", made))

    def limit(self, entity: QuotaEntity) -> float | None:
        return self.running.gateway.live_quotas.quotas.override(entity, PRODUCE)

    @property
    def version(self) -> int:
        return self.running.gateway.live_quotas.store.version


async def days(repository: Repository, until: int) -> None:
    """Quiet days: the pipeline runs, and nothing has changed."""
    while repository.day < until:
        repository.day += 1
        version = repository.version
        assert (await repository.run("diff", "--prune"))[:2] == (IN_SYNC, "no difference\n")
        assert repository.version == version


@pytest.mark.slow
async def test_a_month_of_a_repository(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(tmp_path, capsys, monkeypatch)
    with capture_logs() as audit:
        async with repository.gateway():
            await first_half(repository)
        async with repository.gateway():
            await second_half(repository, tmp_path)
            history = await repository.running.gateway.live_quotas.history(1_000)
    applied = [entry for entry in history if "file quotas.yaml" in entry.via]
    assert {entry.by for entry in history} == {"admin port", "User:bob"}
    assert len(applied) == 8
    short = {digest[:12] for digest in repository.digests}
    for entry in applied:
        assert entry.via.startswith("admin port, 127.0.0.1, pipeline, file quotas.yaml, sha256 ")
        assert entry.via.rpartition(" ")[2] in short
        assert (entry.at_ms - AT_MS) % DAY_MS == 0
    lines = [line for line in audit if line["event"] == "quota_changed" and "file" in line]
    assert [(line["entity"], line["new"]) for line in reversed(lines)] == [
        (str(entry.entity), entry.new) for entry in applied
    ]
    assert {line["user"] for line in lines} == {"pipeline"}
    assert {line["sha256"] for line in lines} <= repository.digests


async def first_half(repository: Repository) -> None:
    repository.day = 1
    await repository.by_hand((OTHERS, 7.0))
    repository.merge(FIRST)
    assert (await repository.run("diff"))[0] == DRIFT
    code, out, _ = await repository.run("apply", "--yes")
    assert (code, out.splitlines()[:3]) == (IN_SYNC, [
        "+ client-id=app consumer_byte_rate 1MB", "+ user=alice producer_byte_rate 10MiB", "2 to change",
    ])  # fmt: skip
    await days(repository, 4)

    repository.day = 5  # drift by hand: one quota changed, one made, one removed
    await repository.by_hand((ALICE, 5e6), (NEW, 1e9))
    repository.day = 6
    code, out, _ = await repository.run("diff", "--prune")
    bob = "set by User:bob, clients, 10.0.0.7:4242, 2023-11-19 22:13:20+00:00"
    assert (code, out.splitlines()[:2]) == (DRIFT, [
        f"- user=ad-hoc producer_byte_rate 1GB ({bob})", f"~ user=alice producer_byte_rate 5MB -> 10MiB ({bob})",
    ])  # fmt: skip
    assert (await repository.run("apply", "--yes", "--prune"))[0] == IN_SYNC
    assert (repository.limit(ALICE), repository.limit(NEW), repository.limit(OTHERS)) == (10 * 2**20, None, 7.0)
    await days(repository, 8)

    repository.day = 9
    await repository.by_hand((ALICE, None))
    code, out, _ = await repository.run("diff")
    assert code == DRIFT
    assert out.startswith("+ user=alice producer_byte_rate 10MiB (removed by User:bob, clients, 10.0.0.7:4242, 2023-")
    assert (await repository.run("apply", "--yes"))[0] == IN_SYNC
    await days(repository, 14)


async def second_half(repository: Repository, tmp_path: Path) -> None:
    await days(repository, 16)  # after the restart
    version = repository.version

    repository.merge(FIRST.replace("client-id: app", "clientid: app").replace("10MiB", "10mib"))
    assert (await repository.run("apply", "--yes"))[0] == FAULT
    assert (await repository.run("diff"))[0] == FAULT

    repository.merge(FIRST + "- user: payments\n  producer_byte_rate: 1\n")  # of another team
    code, out, err = await repository.run("apply", "--yes")
    assert (code, out) == (FAULT, "")
    assert "line 7: user=payments is outside the scope, which is user=alice or user=ad-* or client-id=*" in err
    repository.merge(FIRST.partition("\n")[2])  # without a scope nothing is to be removed
    code, _, err = await repository.run("apply", "--yes", "--prune")
    assert (code, "--prune needs a scope" in err) == (FAULT, True)
    repository.merge(FIRST)
    code, _, err = await repository.run("apply", "--yes", "--prune", "--scope", "user=*")
    assert (code, "client-id=app is outside the scope, which is user=*" in err) == (FAULT, True)
    assert repository.version == version
    assert repository.limit(OTHERS) == 7.0
    await days(repository, 20)

    repository.merge(FIRST.replace("10MiB", "20MiB"))  # two pipelines at once
    codes = await two_writers(repository, tmp_path)
    assert sorted(codes.values()) == [IN_SYNC, DRIFT]
    winner = next(unit for unit, code in codes.items() if code == IN_SYNC)
    assert repository.limit(ALICE) == int(winner.removesuffix("MiB")) * 2**20

    repository.merge(FIRST.replace("10MiB", "40MiB").replace("- client-id: app\n  consumer_byte_rate: 1MB\n", ""))
    assert (await repository.run("diff"))[0] == DRIFT
    assert (await repository.run("apply", "--yes", "--prune"))[0] == IN_SYNC
    assert repository.running.gateway.live_quotas.quotas.override(APP, FETCH) is None
    assert repository.limit(OTHERS) == 7.0
    await days(repository, 30)


async def two_writers(repository: Repository, tmp_path: Path) -> dict[str, int]:
    """Two pipelines that have made their plans before either of them applies its own; the exit code of each."""
    both_have_plans = threading.Barrier(2, timeout=60)
    apply = GatewayEndpoint.apply

    def wait_and_apply(endpoint: GatewayEndpoint, steps: Sequence[Step], source: Source) -> int | None:
        both_have_plans.wait()
        return apply(endpoint, steps, source)

    async def writer(unit: str) -> int:
        file = tmp_path / unit / "quotas.yaml"
        file.parent.mkdir()
        file.write_text(text := FIRST.replace("10MiB", unit))
        repository.digests.add(sha256(text.encode()).hexdigest())
        return await run_alone(repository, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GatewayEndpoint, "apply", wait_and_apply)
        codes = await asyncio.gather(writer("20MiB"), writer("30MiB"))
    return dict(zip(("20MiB", "30MiB"), codes, strict=True))


async def run_alone(repository: Repository, file: Path) -> int:
    admin = f"{HOST}:{repository.running.gateway.admin.port}"
    return await asyncio.to_thread(main, ["quotas", "apply", str(file), "--yes", "--admin", admin])


async def test_a_gateway_that_does_not_answer_is_a_fault_and_no_difference(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path, capsys, monkeypatch)
    repository.merge(FIRST)
    async with repository.gateway():
        pass
    assert (await repository.run("diff"))[0] == FAULT
    assert (await repository.run("apply", "--yes"))[0] == FAULT
