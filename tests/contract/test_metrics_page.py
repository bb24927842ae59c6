"""Each metric that docs, rules, dashboard or screens name exists, with its labels; each that exists is documented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from monitoring.dashboard import annotation_queries, panels
from testkit import metrics_page
from testkit.metrics_page import Family, families

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final[list[dict[str, Any]]] = [
    rule
    for name in ("must_not_wait.yml", "rules.yml")
    for group in yaml.safe_load((ROOT / "monitoring" / name).read_text())["groups"]
    for rule in group["rules"]
]
NAMING: Final = (
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts),
    ROOT / "README.md",
    ROOT / "gateway" / "server" / "status_page.html",
    *sorted((ROOT / "gateway" / "cli").glob("*.py")),
    *sorted((ROOT / "testkit").rglob("*.py")),
    *sorted((ROOT / "campaigns").rglob("*.py")),
)
NO_METRICS: Final = frozenset(
    {
        "gateway_id",
        "gateway_config",
        "gateway_process",
        "gateway_core",
        "gateway_class",
        "gateway_index",
        "gateway_day",
    }
)
OF_A_SCRAPE: Final = frozenset({"instance", "job", "cluster"})
"""Not of the gateway's own series: the last one is there with several clusters."""

_IN_TEXT: Final = re.compile(r"(?<![\w./-])gateway_[a-z0-9_]+(?![\w(/])")
_QUOTED: Final = re.compile(r"[`\"](gateway_[a-z0-9_]+)(?=[`\"{])")
_IN_QUERY: Final = re.compile(r"\b(gateway_[a-z0-9_]+|sluice:\w+:?\w*)(?:\{([^}]*)\})?")
_LABELS: Final = re.compile(r"\b(?:by|on|group_left|ignoring|without)\s*\(([^)]*)\)")
_MADE: Final = re.compile(r"label_replace\(.*?\"(\w+)\", \"[^\"]*\", \"\", \"\"\)", re.DOTALL)


@pytest.fixture(scope="module")
def known() -> dict[str, Family]:
    """Every series of the gateway."""
    return {name: family for family in families() for name in family.series}


def test_the_page_has_every_metric_of_a_gateway_and_no_other() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run: python -m testkit.metrics_page"


def test_every_metric_that_is_named_somewhere_exists(known: dict[str, Family]) -> None:
    names = {
        (name, str(path.relative_to(ROOT)))
        for path in NAMING
        for name in (_IN_TEXT if path.suffix == ".md" else _QUOTED).findall(path.read_text(encoding="utf-8"))
    }
    assert len(names) > 80
    histograms = {family.name for family in known.values() if family.type == "histogram"}
    assert sorted(each for each in names if each[0] not in known.keys() | histograms | NO_METRICS) == []


def test_rules_and_dashboard_ask_for_metrics_and_labels_that_exist(known: dict[str, Family]) -> None:
    labels = {name: set(family.labels) for name, family in known.items()}
    for rule in RULES:
        if "record" in rule:
            labels[rule["record"]] = _all_labels(rule["expr"], labels) | set(rule.get("labels", ()))
    queries = [(rule["expr"], rule.get("annotations", {}).get("summary", "")) for rule in RULES]
    queries += [query for panel in panels() for query in panel.queries]
    queries += [(query, "") for query in annotation_queries()]
    assert len(queries) > 50
    for query, legend in queries:
        there = _all_labels(query, labels) | OF_A_SCRAPE
        for name, selector in _IN_QUERY.findall(query):
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert asked <= labels[name] | OF_A_SCRAPE, query
        asked = {label.strip() for group in _LABELS.findall(query) for label in group.split(",") if label.strip()}
        asked |= set(re.findall(r"\{\{\s*(?:(?:with )?\$labels\.)?(\w+)", legend)) - {"end"}
        assert asked <= there, (query, legend)


def _all_labels(query: str, labels: dict[str, set[str]]) -> set[str]:
    found = set(_MADE.findall(query))
    for name, _ in _IN_QUERY.findall(query):
        assert name in labels, f"{name} does not exist"
        found |= labels[name]
    return found
