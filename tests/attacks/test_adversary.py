"""Random clients find no way around their quotas in a minute, and the one that is planted before long."""

import asyncio
import sys
from typing import Any

import pytest

from testkit.adversary.campaign import Campaign, Report
from testkit.adversary.stage import Stage

pytestmark = pytest.mark.integration


def _run(stage: Stage, **options: Any) -> Report:
    async def run() -> Report:
        async with stage:
            return await Campaign(stage, **options).run()

    return asyncio.run(run())


def test_k16_random_clients_get_no_more_than_their_quotas() -> None:
    report = _run(Stage(), seconds=40, shrunk_per_kind=1)
    assert [(finding.violation, finding.script.text()) for finding in report.findings] == []
    assert report.episodes > 50
    assert len(report.honest_ms) > 50


def test_k01_a_hole_that_was_put_back_is_found_and_the_script_for_it_is_short() -> None:
    holed = Stage(program=(sys.executable, "-m", "testkit.adversary.holed_gateway"))
    report = _run(holed, episodes=500, seconds=300, ends_at=frozenset({"partitions"}))
    found = [finding for finding in report.findings if finding.violation.kind == "partitions"]
    assert found, "not found in 500 scripts"
    assert len(found[0].script.steps) <= found[0].steps
