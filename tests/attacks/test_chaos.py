"""A few rounds of faults at random; `make campaigns ONLY=chaos` goes on with hundreds."""

import pytest

from testkit.chaos.campaign import ChaosCampaign

pytestmark = pytest.mark.integration


def test_l09_rounds_of_overlapping_faults_lose_nothing_that_was_acknowledged() -> None:
    # A broker and a gateway killed; a wrong clock, a pause and a drain.
    report = ChaosCampaign(seed=1).run(seconds=90, first_round=7, most_rounds=2)
    assert report.violations == []
    assert report.rounds > 0
    assert min(report.alterations, report.records, report.green, report.usage_lines) > 0
