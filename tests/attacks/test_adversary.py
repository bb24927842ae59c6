"""Random clients find no way around their quotas; `make campaign-adversary` goes on for half an hour."""

import asyncio
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
    report = _run(Stage(), seconds=20, shrunk_per_kind=1)
    # Stalls are for the campaign, on a machine that does nothing else.
    found = [(each.violation, each.script.text()) for each in report.findings if each.violation.kind != "stall"]
    assert found == []
    assert report.episodes > 50
    assert len(report.honest_ms) > 50
