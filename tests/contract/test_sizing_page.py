"""The page that sizes a gateway says what was measured, and its calculator computes it."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from testkit.sizing_page import PAGE, RESULT, page

DOCUMENT = json.loads(RESULT.read_text())
SCRIPT = PAGE.with_suffix(".js")


def computed(load: dict[str, float]) -> Any:
    """What the calculator of the page says."""
    data = re.findall(r'data-([a-z-]+)="([\d.]+)"', PAGE.read_text())
    costs = {re.sub("-(.)", lambda found: found[1].upper(), name): float(number) for name, number in data}
    program = f"{SCRIPT.read_text()}\nconsole.log(JSON.stringify(sizeOf({json.dumps(costs)}, {json.dumps(load)})));"
    return json.loads(subprocess.run(["node", "-e", program], capture_output=True, check=True, timeout=60).stdout)


def test_the_page_is_up_to_date() -> None:
    assert page(PAGE.read_text(), DOCUMENT) == PAGE.read_text(), "python -m testkit.sizing_page"


@pytest.mark.slow
def test_the_calculator_is_right_for_loads_that_the_formula_was_not_fitted_on() -> None:
    checked = [each["mix"] for each in DOCUMENT["mixes"] if not each["fitted"]]
    assert len(checked) == 3
    for mix in checked:
        rows = [row for row in DOCUMENT["rows"] if row["mix"] == mix]
        measured = sorted(row["cpu_s"] for row in rows)[len(rows) // 2]
        load = {
            "requests": rows[0]["requests"],
            "mbIn": rows[0]["gb_in"] * 1e3,
            "mbOut": rows[0]["gb_out"] * 1e3,
            "connections": 0,
            "open": 1_000,
        }
        size = computed(load)
        assert 0.85 < size["cores"] * 0.7 / measured < 1.15, mix
        assert size["mb"] > 50


def test_an_idle_gateway_has_one_worker() -> None:
    size = computed(dict.fromkeys(("requests", "mbIn", "mbOut", "connections", "open"), 0))
    assert size["workers"] == 1
    assert size["cores"] == 0
