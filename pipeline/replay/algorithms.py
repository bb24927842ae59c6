"""The names of the metering algorithms and of the client models. Needs no package of the extra."""

from __future__ import annotations

from enum import StrEnum


class Algorithm(StrEnum):
    """How use is measured; see `quotas.rate` and `quotas.token_bucket`."""

    TOKEN_BUCKET = "token_bucket"
    RATE = "rate"
    SPREAD = "spread"


class Model(StrEnum):
    """What a client does when it is throttled; see `pipeline.replay.kernels.models` and `deferral`."""

    STRICT = "strict"
    PERMISSIVE = "permissive"
    RECORDED = "recorded"  # mutations only: strict or permissive, as each client was
    CLOSED_LOOP = "closed-loop"
    DEFERRAL = "deferral"
