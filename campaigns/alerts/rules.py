"""The shipped alert rules with shorter times: a minute becomes a second; thresholds and queries do not change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

_MONITORING: Final = Path(__file__).resolve().parents[2] / "monitoring"
FILES: Final = (_MONITORING / "rules.yml", _MONITORING / "must_not_wait.yml")

_WINDOW: Final = re.compile(r"(?<=\[)(\d+)([mh])(?=\])")
_SHORTER: Final = {"m": "s", "h": "m"}


def shipped() -> str:
    """The shipped rules, and the shipped list of clients that must not wait, as one text."""
    groups = [group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]]
    return str(yaml.safe_dump({"groups": groups}, sort_keys=False))


def shortened(text: str) -> str:
    """The rules with every `for:` and every range in brackets divided by sixty."""
    document = yaml.safe_load(text)
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _WINDOW.sub(_shorter, rule["expr"])
            if "for" in rule:
                rule["for"] = re.sub(r"^(\d+)([mh])$", _shorter, rule["for"])
    return str(yaml.safe_dump(document, sort_keys=False))


def _shorter(found: re.Match[str]) -> str:
    return f"{found[1]}{_SHORTER[found[2]]}"


def alerts(text: str) -> list[dict[str, Any]]:
    """The rules that are alerts."""
    groups = yaml.safe_load(text)["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]
