"""The gateway with a hole, which the adversary must find: `python -m campaigns.adversary.holed_gateway serve`.

The hole: a CreateTopics request of more than 10,000 partitions in total costs nothing, because the controller refuses
such a request as a whole. But the controller does not count `__cluster_metadata`, so it carries out a request that is
padded with that name (hazard K01).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from gateway.cli.main import main
from quotas.mutations import MutationQuotas, RequestDecision

MAX_PARTITIONS: Final = 10_000
_charge_request: Final = MutationQuotas.charge_request


def _charge(
    quotas: MutationQuotas, user: str, client_id: str, permits: Sequence[float], **more: Any
) -> RequestDecision:
    if sum(permits) > MAX_PARTITIONS:
        permits = [0.0] * len(permits)
    return _charge_request(quotas, user, client_id, permits, **more)


if __name__ == "__main__":
    setattr(MutationQuotas, "charge_request", _charge)  # noqa: B010 - a signature that only passes on
    sys.exit(main())
