"""The id of a gateway in the records of one of its clusters."""

from __future__ import annotations

import hashlib
from typing import Final

from config import Config
from gateway.usage.service import host_id

_MOST: Final = 64
_HASH: Final = 8


def with_own_id(config: Config, cluster: str) -> Config:
    """The configuration with a unique gateway id: that of the file, or one made of host and cluster."""
    if config.usage.gateway_id is not None:
        return config
    usage = config.usage.model_copy(update={"gateway_id": f"{_host(_MOST - len(cluster) - 1)}.{cluster}"})
    return config.model_copy(update={"usage": usage})


def _host(most: int) -> str:
    name = host_id()
    if len(name) <= most:
        return name
    return f"{name[: most - _HASH - 1]}-{hashlib.sha256(name.encode()).hexdigest()[:_HASH]}"
