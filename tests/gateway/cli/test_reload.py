"""What the command prints; the reload itself is tested at the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cli import admin_port
from gateway.cli.main import main


@pytest.mark.parametrize(
    ("answer", "code", "out", "err"),
    [
        ((200, {"faults": [], "applied": [], "needs_restart": []}), 0, "changed: nothing\n", ""),
        ((200, {"faults": [], "applied": ["quotas", "log.level"], "needs_restart": ["admin.bind"]}), 0,
         "changed: quotas, log.level\nonly after a restart: admin.bind\n", ""),
        ((422, {"faults": ["f: a", "f: b"], "applied": [], "needs_restart": []}), 1,
         "", "sluice: not reloaded: f: a\nsluice: not reloaded: f: b\n"),
        ((403, {"error": "no"}), 1, "", "sluice: not reloaded: no\n"),
        (admin_port.AdminPortError("no gateway answers"), 1, "", "sluice: no gateway answers\n"),
        ((200, []), 1, "", "sluice: what answers at http://gw:1 is no admin port\n"),
    ],
)  # fmt: skip
def test_j07_outcome_is_told_and_decides_the_exit_code(
    answer: Any,
    code: int,
    out: str,
    err: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []

    def ask(*arguments: Any, **options: Any) -> Any:
        asked.append((arguments, options))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(admin_port, "ask", ask)
    assert main(["reload", "--admin", "gw:1"]) == code
    assert capsys.readouterr() == (out, err)
    assert asked == [(("http://gw:1", "/reload"), {"method": "POST", "body": {}})]
