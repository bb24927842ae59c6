"""A real Prometheus with the shipped rules, and the alerts that fire."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from testkit.gateway import free_ports
from testkit.raw_client import HOST

_JOB: Final = "sluice"


class Prometheus:
    """One process; used as a context manager."""

    def __init__(self, program: str, folder: Path, rules: str, targets: Sequence[str]) -> None:
        """Prepare the process without starting it.

        Args:
            program: path of Prometheus.
            folder: existing folder for its files.
            rules: the text of a rule file.
            targets: admin ports of gateways.
        """
        self._address = f"{HOST}:{free_ports(1)}"
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}\n"
            f"rule_files: [{folder}/rules.yml]\n"
            "scrape_configs:\n"
            f"  - {{job_name: {_JOB}, static_configs: [{{targets: {json.dumps(list(targets))}}}]}}\n"
        )
        self._command = [
            program,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={self._address}",
            "--log.level=warn",
        ]
        self._log = folder / "prometheus.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)

    def firing(self) -> dict[str, Mapping[str, str]]:
        """Alerts that fire now, each with the labels of one of its series; empty while Prometheus does not answer."""
        return {
            each["labels"]["alertname"]: each["labels"]
            for each in self._alerts()
            if each["state"] == "firing"
        }

    def scraped(self) -> set[str]:
        """Targets that have answered."""
        data = self._ask("targets?state=active")
        return {
            each["labels"]["instance"] for each in data.get("activeTargets", ()) if each["health"] == "up"
        }

    def _alerts(self) -> list[dict[str, Any]]:
        return list(self._ask("alerts").get("alerts", ()))

    def _ask(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)["data"]
                return found
        except OSError:
            return {}
