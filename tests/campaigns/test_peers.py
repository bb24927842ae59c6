"""The page of hostile clients at other proxies, and what the scoreboard says of it; no proxy is needed."""

import json
from typing import Any

from campaigns.peers.page import BESIDE, SHOWN, beside, page
from campaigns.scoreboard.__main__ import RESULTS


def _document(**row: Any) -> dict[str, Any]:
    machine = dict.fromkeys(
        ("commit", "cpu", "cores", "kernel", "python", "haproxy", "java", "load_average_before"), "?"
    )
    return {
        "command": "run",
        "started": "2026-12-01",
        "seconds": 1,
        "machine": machine,
        "kroxylicious": "K",
        "configurations": {"HAProxy": "maxconn 1"},
        "rows": [row],
    }


def test_a_figure_stands_on_the_page_and_beside_its_row() -> None:
    document = _document(row="R17", peer="HAProxy TCP", n=10, leaks=7)
    assert "| HAProxy TCP | 10 | 7 |" in page(document)
    assert "maxconn 1" in page(document)
    assert beside(document, "R17") == ("HAProxy TCP, leaks: 7",)
    assert beside(document, "R4") == ()


def test_what_a_proxy_lacks_or_failed_at_is_said_in_words() -> None:
    assert beside(_document(row="R8", peer="K", without="has none"), "R8") == ("K, has none",)
    assert "| K |  | no answer |" in page(_document(row="R8", peer="K", failed="no answer"))


def test_the_broker_itself_is_on_the_page_alone() -> None:
    document = _document(row="R17", peer="direct", n=10, leaks=10)
    assert "| direct | 10 | 10 |" in page(document)
    assert beside(document, "R17") == ()


def test_the_scoreboard_shows_a_figure_that_the_page_has() -> None:
    assert {number: BESIDE[number] in figures for number, (_, figures) in SHOWN.items()} == dict.fromkeys(
        BESIDE, True
    )


def test_the_kept_page_is_that_of_the_kept_result() -> None:
    document = json.loads((RESULTS / "peers.json").read_text())
    assert (RESULTS / "peers.md").read_text() == page(document), "run: python -m benchmarks.peers"
    assert {row["row"] for row in document["rows"]} == set(SHOWN)
