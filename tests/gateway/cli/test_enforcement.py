"""What the switch prints; the switch itself is tested at the admin port."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cli import admin_port
from gateway.cli.main import main


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the admin port is asked, and what it answers."""
    exchange: dict[str, Any] = {"answer": (200, {})}

    def ask(url: str, path: str, *, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        exchange.update(url=url, path=path, method=method, body=body)
        if isinstance(exchange["answer"], Exception):
            raise exchange["answer"]
        answer: tuple[int, Any] = exchange["answer"]
        return answer

    monkeypatch.setattr(admin_port, "ask", ask)
    return exchange


@pytest.mark.parametrize(
    ("configured", "text"),
    [("observe", "observe\n"), ("enforce", "observe (the configuration file says enforce)\n")],
)
def test_mode_is_shown_with_what_the_file_says(
    asked: dict[str, Any], configured: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked["answer"] = (200, {"mode": "observe", "configured": configured})
    assert main(["enforcement"]) == 0
    assert capsys.readouterr().out == text
    assert (asked["url"], asked["method"], asked["path"]) == (admin_port.DEFAULT_URL, "GET", "/enforcement")


@pytest.mark.parametrize(("before", "text"), [("enforce", "off (was enforce)\n"), ("off", "off\n")])
def test_change_is_shown_with_what_was_before(
    asked: dict[str, Any], before: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked["answer"] = (200, {"mode": "off", "before": before})
    assert main(["enforcement", "off", "--admin", "gw:1"]) == 0
    assert capsys.readouterr().out == text
    assert asked["url"] == "http://gw:1"
    assert (asked["method"], asked["body"]) == ("PUT", {"mode": "off"})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((403, {"error": "only from this machine"}), "sluice: refused: only from this machine\n"),
        (admin_port.AdminPortError("no gateway answers"), "sluice: no gateway answers\n"),
        ((200, {"unexpected": 1}), f"sluice: what answers at {admin_port.DEFAULT_URL} is no admin port\n"),
        ((200, []), f"sluice: what answers at {admin_port.DEFAULT_URL} is no admin port\n"),
    ],
)
def test_refusal_is_one_line_and_code_1(
    asked: dict[str, Any], answer: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked["answer"] = answer
    assert main(["enforcement", "off"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", text)


def test_unknown_mode_is_told_before_anybody_is_asked(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["enforcement", "on"])
    assert caught.value.code == 2
    assert "invalid choice: 'on'" in capsys.readouterr().err
    assert "url" not in asked
