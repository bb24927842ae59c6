"""Random clients find no way around their quotas; `make campaigns ONLY=adversary` goes on for half an hour."""

import asyncio
import sys
from typing import Any

import pytest

from testkit.adversary.campaign import Campaign, Report
from testkit.adversary.stage import Stage
from testkit.adversary.watch import EVENT_CPU_MS

pytestmark = pytest.mark.integration


def _run(stage: Stage, **options: Any) -> Report:
    async def run() -> Report:
        async with stage:
            return await Campaign(stage, **options).run()

    return asyncio.run(run())


def test_k16_random_clients_get_no_more_than_their_quotas() -> None:
    timed = (sys.executable, "-m", "testkit.adversary.timed_gateway")
    # Other tests run beside this one: CPU time is longer then, too. The campaign has the true bound.
    report = _run(Stage(program=timed), seconds=20, shrunk_per_kind=1, event_cpu_ms=3 * EVENT_CPU_MS)
    assert [(each.violation, each.script.text()) for each in report.findings] == []
    assert report.most_event_cpu_ms > 0
    assert report.episodes > 50
    assert len(report.honest_ms) > 50
