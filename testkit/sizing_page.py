"""``python -m testkit.sizing_page``: writes the capacity of a core into docs/how-to/size-the-gateway.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
RESULT: Final = ROOT / "benchmarks" / "results" / "cost-formula.json"
PAGE: Final = ROOT / "docs" / "how-to" / "size-the-gateway.md"
BUSY: Final = 0.7
"""The part of a core to plan with. Above it clients wait for each other more and more."""

_WORKER_MB: Final = 30
"""Memory of each worker besides the supervisor's (docs/how-to/workers.md)."""

_SIZES: Final = ((1_000, "1 kB"), (10_000, "10 kB"), (100_000, "100 kB"), (1_000_000, "1 MB"))
_BEGIN, _END = "<!-- sizing -->", "<!-- /sizing -->"


def sizing(document: dict[str, Any]) -> str:
    """The part of the page that is made from a stored result of `benchmarks.cost_formula`."""
    formula, memory = document["formula"], document["memory"]
    lines = [
        "| Requests of | Produced, per second | MB/s | Fetched, per second | MB/s |",
        "|---|---|---|---|---|",
    ]
    for size, name in _SIZES:
        cells = [name]
        for term in ("gb_in", "gb_out"):
            per_s = BUSY / (formula["requests"] + formula[term] * size / 1e9)
            cells += [_rounded(per_s), _rounded(per_s * size / 1e6)]
        lines.append(f"| {' | '.join(cells)} |")
    numbers = {
        "busy": BUSY,
        "worker": _WORKER_MB,
        "requests": formula["requests"] * 1e6,
        "mb-in": formula["gb_in"] * 1e3,
        "mb-out": formula["gb_out"] * 1e3,
        "connections": formula["connections"] * 1e6,
        "gateway": memory["process_bytes"] / 1e6,
        "connection": memory["connection_bytes"] / 1024,
    }
    data = [f'data-{name}="{number:.4g}"' for name, number in numbers.items()]
    return "\n".join([*lines, "", '<form id="sizing"', *data[:-1], f"{data[-1]}></form>"])


def page(text: str, document: dict[str, Any]) -> str:
    """The page with that part."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{sizing(document)}\n\n{_END}{after}"


def _rounded(number: float) -> str:
    """A number with two significant digits."""
    digits = len(f"{number:.0f}") - 2
    return f"{round(number, -digits):,.0f}"


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULT.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
