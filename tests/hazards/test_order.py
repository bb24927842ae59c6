"""The short version of ``benchmarks.order``, and that its two ends would notice (hazards A38, C03)."""

from pathlib import Path

import pytest

from campaigns.order.frames import Kind, kinds
from campaigns.order.run import run

REQUESTS = 10_000


@pytest.mark.integration
async def test_thousands_of_small_frames_keep_their_order_through_throttles_and_chaos(tmp_path: Path) -> None:
    outcome = await run(REQUESTS, folder=tmp_path, seed=4, limit_s=300, tighter=4)
    assert outcome.faults == []
    assert outcome.requests == REQUESTS
    throttled = {what.split()[0] for what, count in outcome.throttled_requests.items() if count}
    assert throttled == {"produce", "fetch", "request"}
    assert set(outcome.closed) == {"client_closed"}


# -- would they notice? --------------------------------------------------------------------------------------


def produce() -> Kind:
    return kinds()[0]
