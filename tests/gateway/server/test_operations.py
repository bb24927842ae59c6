"""The kill switch and the reload, without a gateway around them."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from config import Config, ConfigError
from config.sections.log import LogSettings
from gateway.observability.events import ReloadResult
from gateway.server.operations import ConfigSource, Operations, ReloadReport
from gateway.server.reload import ReloadPlan
from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import LayeredQuotas, QuotaChange
from quotas.lending import Brake
from quotas.limits import Enforcement
from testkit.gateway import gateway_config, running_gateway
from testkit.quota_stores import Seen, alteration, sqlite_store

ALICE = QuotaEntity(user="alice")
PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
BASE: dict[str, Any] = {"upstream": {"bootstrap": ["k:1"]}, "listeners": [{"name": "a", "bind": "127.0.0.1:19092"}]}


def quota(limit: int, **more: Any) -> list[dict[str, Any]]:
    return [{"user": "alice", "producer_byte_rate": limit, **more}]


class Setup:
    """Operations whose file is a dict."""

    def __init__(self, *, source: bool = True, check: Any = None, **sections: Any) -> None:
        self.file: dict[str, Any] | list[str] = {**BASE, **sections}
        self.logs: list[LogSettings] = []
        self.plans: list[ReloadPlan] = []
        self.reports: list[ReloadReport] = []
        self.use = 8_000.0
        config = self.read()
        self.limits = config.quota_limits()
        self.quotas = LayeredQuotas(self.limits)
        self.operations = Operations(
            config,
            self.quotas,
            ConfigSource(self.read, self.logs.append) if source else None,
            check=check or (lambda _config: None),
            apply=self.plans.append,
            on_reload=self.reports.append,
            tier_use=self.tier_use,
        )

    async def tier_use(self, tier: int) -> dict[QuotaKey, float]:
        return {PRODUCE: self.use} if tier == 3 else {}

    def read(self) -> Config:
        if isinstance(self.file, list):
            raise ConfigError(self.file)
        return Config.model_validate(self.file)

    def reload(self, **sections: Any) -> ReloadReport:
        """The file gets these sections and is read again."""
        self.file = {**BASE, **sections}
        return asyncio.run(self.operations.reload(by="test"))


def test_reload_changes_quotas_and_log_as_the_file_does() -> None:
    setup = Setup(quotas=quota(5))
    assert setup.reload(quotas=quota(7, observe=True)).applied == ("quotas",)
    assert setup.limits.get(ALICE, PRODUCE) == 7
    assert setup.limits.observes(ALICE)
    setup.reload()
    assert not setup.limits.enabled(PRODUCE)
    assert not setup.limits.observes(ALICE)
    setup = Setup()
    setup.reload(quotas=quota(5))
    assert setup.logs == []
    setup.reload(log={"level": "debug"})
    assert setup.logs == [LogSettings(level="debug")]


@pytest.mark.parametrize("faults", [["f: one", "f: two"]])
def test_j07_invalid_file_changes_nothing_and_each_fault_is_a_line_at_error(faults: list[str]) -> None:
    setup = Setup(quotas=quota(5))
    version = setup.limits.version
    before = setup.operations.config
    setup.file = faults
    with capture_logs() as lines:
        report = asyncio.run(setup.operations.reload(by="test"))
    assert report == ReloadReport(ReloadResult.INVALID, faults=("f: one", "f: two"))
    assert [(line["event"], line["log_level"], line["fault"]) for line in lines] == [
        ("config_not_reloaded", "error", "f: one"),
        ("config_not_reloaded", "error", "f: two"),
    ]
    assert (setup.limits.version, setup.operations.config) == (version, before)
    assert setup.plans == []
    assert setup.reports == [report]


def test_j07_what_can_not_be_read_or_done_here_changes_nothing() -> None:
    def check(config: Config) -> None:
        if config.quotas:
            raise ConfigError(["too much"])

    setup = Setup(check=check)
    assert setup.reload(quotas=quota(5)).faults == ("too much",)
    assert not setup.limits.enabled(PRODUCE)
    setup = Setup(source=False)
    report = setup.reload()
    assert setup.reports == [report]
    assert report.result is ReloadResult.NO_FILE
    assert report.faults == ("this gateway was started without --config, so there is no file to read again",)


def test_setting_that_needs_a_restart_is_a_warning_at_every_reload_and_the_rest_is_applied() -> None:
    setup = Setup()
    for applied in (("quotas",), ()):
        with capture_logs() as lines:
            report = setup.reload(quotas=quota(5), client_quota={"window_num": 5})
        assert report == ReloadReport(ReloadResult.NEEDS_RESTART, applied, ("client_quota.window_num",))
        warned = [line["setting"] for line in lines if line["event"] == "config_needs_restart"]
        assert warned == ["client_quota.window_num"]
    assert setup.limits.get(ALICE, PRODUCE) == 5
    assert setup.operations.config.client_quota.window_num == 11


def test_what_a_new_file_comes_to_is_logged_errors_as_such() -> None:
    named = {"user": "<default>", "producer_byte_rate": 1}
    with capture_logs() as lines:
        Setup().reload(quotas=[named], quota_admin={"authorize": "anyone"})
    found = [
        (line["log_level"], line["detail"].partition(":")[0])
        for line in lines
        if line["event"] == "config_suspicious"
    ]
    assert found == [("error", "quotas.0.user"), ("warning", "quota_admin.authorize")]


def test_a_file_that_contradicts_the_store_is_logged_and_put_in_force() -> None:
    setup = Setup(quotas=quota(20))
    setup.quotas.apply([QuotaChange(ALICE, QuotaKey.PRODUCER_BYTE_GUARANTEE, 10.0)])
    more = "producer_byte_guarantee is more than producer_byte_rate, the most that this entity gets"
    for limit, found in ((19, []), (5, [("config_suspicious", "warning", f"user=alice: {more}")])):
        with capture_logs() as lines:
            setup.reload(quotas=quota(limit))
        logged = [(line["event"], line["log_level"], line.get("detail", "")) for line in lines]
        assert [each for each in logged if "guarantee" in each[2]] == found
    assert setup.limits.get(ALICE, PRODUCE) == 5


async def test_a_file_that_contradicts_the_store_is_logged_at_the_start_too(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    await store.open(Seen())
    await store.write(alteration((ALICE, QuotaKey.PRODUCER_BYTE_GUARANTEE, 10.0)))
    await store.close()
    found = gateway_config([9], quota_store={"kind": "sqlite", "data_dir": str(tmp_path)}, quotas=quota(5))
    with capture_logs() as lines:
        async with running_gateway(config=found):
            pass
    (detail,) = [line["detail"] for line in lines if line["event"] == "config_suspicious"]
    assert detail.startswith("user=alice: producer_byte_guarantee is more than producer_byte_rate")


def test_the_switch_is_an_audit_line_and_outlives_a_reload_about_something_else() -> None:
    setup = Setup()
    with capture_logs() as lines:
        setup.operations.set_mode(Enforcement.OFF, by="somebody")
    (line,) = lines
    assert (line["event"], line["mode"], line["before"], line["by"]) == (
        "enforcement_set",
        "off",
        "enforce",
        "somebody",
    )
    assert setup.operations.mode is setup.limits.mode is Enforcement.OFF
    setup = Setup()
    setup.operations.set_mode(Enforcement.OFF, by="test")
    setup.reload(quotas=quota(5))
    assert setup.operations.mode is Enforcement.OFF
    setup.reload(quotas=quota(5), enforcement={"mode": "observe"})
    assert setup.operations.mode is Enforcement.OBSERVE
    setup.reload(quotas=quota(5))
    assert setup.operations.mode is Enforcement.ENFORCE


def test_file_is_read_off_the_loop_and_reloads_do_not_overlap() -> None:
    setup = Setup()
    together = threading.Barrier(2)
    overlaps = []
    threads: set[int] = set()

    def read() -> Config:
        threads.add(threading.get_ident())
        try:
            together.wait(0.05)
            overlaps.append(True)
        except threading.BrokenBarrierError:
            together.reset()
        return setup.read()

    setup.operations._source = ConfigSource(read, setup.logs.append)

    async def twice() -> None:
        await asyncio.gather(*(setup.operations.reload(by="test") for _ in range(2)))

    asyncio.run(twice())
    assert len(setup.reports) == 2
    assert overlaps == []
    assert threading.get_ident() not in threads


def test_a_brake_keeps_what_its_tier_used_when_the_first_one_began() -> None:
    setup = Setup()

    def used_after(now_ms: int, part: float) -> Mapping[QuotaKey, float]:
        brake = Brake(part, now_ms + 10_000, "ops")
        assert asyncio.run(setup.operations.brake(3, brake, by="ops", now_ms=now_ms)) is None
        assert setup.limits.brakes[3].part == part
        return setup.limits.brakes[3].used

    assert used_after(0, 0.2) == {PRODUCE: 8_000}
    setup.use = 1_600  # what the brake leaves
    assert used_after(9_999, 0.5) == {PRODUCE: 8_000}
    assert used_after(19_999, 0.5) == {PRODUCE: 1_600}
    fault = asyncio.run(setup.operations.brake(2, Brake(0.2, 30_000, "ops"), by="ops", now_ms=20_000))
    assert fault == "it is not known yet what the tier uses; try again in a few seconds"
    assert asyncio.run(setup.operations.brake(3, None, by="ops", now_ms=20_000)) is None
    assert not setup.limits.brakes
