"""Distributes the files of a run to pytest-xdist's workers so that few of them start the same brokers.

Each worker has its own fixtures of session scope. A broker takes several seconds of CPU to start, and a few percent
of a core while it runs. So files that need the same brokers go to the worker that has them, as long as other workers
have work.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

BROKERS: Final = {"kafka": 1, "kafka3": 3, "secure_kafka": 1}
"""Fixtures of session scope, and the number of brokers that each starts."""

_BEHIND: Final = {"gateway3": "kafka3"}
"""Fixtures that use one of these."""

SPREAD: Final = frozenset({"tests/simulation/test_seeds.py"})
"""Files whose tests go to workers one by one: they share nothing, and one worker would take minutes for all."""

_PARAMETER: Final = re.compile(rf"\b({'|'.join([*BROKERS, *_BEHIND])}): ")


def fixtures_of(path: Path) -> frozenset[str]:
    """The names in `BROKERS` that a file of tests uses, by the annotated arguments of its functions."""
    asked = _PARAMETER.findall(path.read_text())
    return frozenset(_BEHIND.get(name, name) for name in asked)


def choose(files: Mapping[str, frozenset[str]], mine: frozenset[str], others: frozenset[str]) -> str:
    """The next file of a worker: the one for which the fewest brokers are started again.

    Args:
        files: waiting files in their order, with their fixtures; at least one.
        mine: fixtures that this worker has.
        others: fixtures that any other worker has.

    Returns:
        Among files of equal cost, the one for which this worker has most brokers, and among these the first.
    """

    def cost(fixtures: frozenset[str]) -> tuple[int, int]:
        return _brokers((fixtures - mine) & others), -_brokers(fixtures & mine)

    return min(files, key=lambda name: cost(files[name]))  # the first of equal ones


class SharedBrokers(LoadFileScheduling):  # type: ignore[misc]
    """pytest-xdist's ``loadfile``, with `choose` for the order of files."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._fixtures: dict[str, frozenset[str]] = {}
        self._started: dict[object, frozenset[str]] = {}

    def _assign_work_unit(self, node: object) -> None:
        waiting: OrderedDict[str, Any] = self.workqueue
        mine = self._started.get(node, frozenset())
        others = _union(started for other, started in self._started.items() if other is not node)
        chosen = choose({name: self._fixtures_of(name) for name in waiting}, mine, others)
        self._started[node] = mine | self._fixtures_of(chosen)
        waiting.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: object) -> str | None:
        """Handles the end of a worker: its remaining tests go to others, except the test in which it ended.

        pytest-xdist would give that test to each new worker in turn. So a test that hangs would block the run for
        hours.
        """
        ended_in = None
        for unit in self.assigned_work[node].values():
            ended_in = next((test for test, has_ended in unit.items() if not has_ended), None)
            if ended_in is not None:
                unit[ended_in] = True
                break
        super().remove_node(node)
        return ended_in

    def _split_scope(self, nodeid: str) -> str:
        """The name of what goes to one worker: a file, or a test of `SPREAD`."""
        file = str(super()._split_scope(nodeid))
        return nodeid if file in SPREAD else file

    def _fixtures_of(self, name: str) -> frozenset[str]:
        found = self._fixtures.get(name)
        if found is None:
            file = super()._split_scope(name)
            found = self._fixtures[name] = fixtures_of(self.config.rootpath / file)
        return found


def _brokers(fixtures: frozenset[str]) -> int:
    return sum(BROKERS[name] for name in fixtures)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Replaces ``--dist loadfile``; other ways to distribute tests are unchanged."""
    return SharedBrokers(config, log) if config.getvalue("dist") == "loadfile" else None
