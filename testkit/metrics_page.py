"""docs/metrics.md, written from the registry of a gateway that has everything: `python -m testkit.metrics_page`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from config import Config
from gateway.app import Gateway
from gateway.server.merged_metrics import ProcessMetrics
from testkit.gateway import gateway_config

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
NOT_OURS: Final = frozenset({"up"})
"""Made by Prometheus itself."""

_HEAD: Final = """# Metrics

Every series of /metrics, written by `python -m testkit.metrics_page` from a gateway that has everything. What to
watch is in [operations.md](operations.md), alerts in [runbook.md](runbook.md). `user`, `client_id` and `ip` have as
many values as `admin.max_entity_series` says, all other labels those of closed lists. `broker` is there with
`[client_quota] scope = "broker"`; series of usage records, traces, workers and a fleet are there while these are on.

| Series | Type | Labels | What it is |
|---|---|---|---|
"""


class Family(NamedTuple):
    """One family of /metrics.

    Attributes:
        name: as in queries: a counter's with its `_total`.
        type: Prometheus's.
        labels: of each sample.
        help: what it is.
    """

    name: str
    type: str
    labels: tuple[str, ...]
    help: str

    @property
    def series(self) -> set[str]:
        """The names of its samples."""
        if self.type == "histogram":
            return {f"{self.name}_{end}" for end in ("bucket", "count", "sum")}
        return {self.name}


class _OneProcess:
    """A pool of workers that has this process alone."""

    restarts = 0

    def processes(self) -> Iterable[tuple[str, int, int]]:
        """See `ProcessMetrics`."""
        return [("0", os.getpid(), 0)]


@cache
def families() -> list[Family]:
    """All of them, by name."""
    with TemporaryDirectory() as folder:
        found = {
            family.name: family
            for scope in ("fleet", "broker")
            for family in asyncio.run(_families(Path(folder), scope))
        }
    found |= {family.name: family for family in map(_family, ProcessMetrics(_OneProcess()).collect())}
    return sorted(found.values())


async def _families(folder: Path, scope: str) -> list[Family]:
    usual = gateway_config([9], upstream={}, quota_store={"kind": "sqlite", "data_dir": str(folder / "data")})
    config = Config.model_validate(
        usual.model_dump()
        | {
            "usage": {"kind": "files", "directory": str(folder / "usage")},
            "traces": {"endpoint": "http://127.0.0.1:9/v1/traces"},
            "client_quota": {"scope": scope},
        }
    )
    gateway = Gateway(config)
    try:
        return [_family(family) for family in gateway.registry.collect()]
    finally:
        await gateway.stop()


def _family(family: Metric) -> Family:
    return Family(
        f"{family.name}_total" if family.type == "counter" else family.name,
        family.type,
        tuple(getattr(family, "_labelnames", ())) + (("le",) if family.type == "histogram" else ()),
        family.documentation,
    )


def page() -> str:
    """The page's text."""
    rows = [
        f"| `{each.name}` | {each.type} | {', '.join(f'`{label}`' for label in each.labels)} | {_text(each.help)} |"
        for each in families()
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _text(help_: str) -> str:
    return help_.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
