"""Files of tests that share brokers go to one worker, and no worker is without work for that."""

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest

from testkit import leftovers, shared_brokers
from testkit.shared_brokers import BROKERS, SPREAD, choose, fixtures_of

ROOT = Path(__file__).parents[1]
KAFKA, THREE, NONE = frozenset({"kafka"}), frozenset({"kafka3"}), frozenset[str]()


def test_a_file_says_which_brokers_it_needs() -> None:
    """By its functions' arguments; a gateway before three brokers needs these."""
    assert fixtures_of(ROOT / "integration" / "test_metadata.py") == THREE
    assert fixtures_of(ROOT / "integration" / "test_sasl_matrix.py") == {"secure_kafka"}
    assert fixtures_of(ROOT / "contract" / "test_leftovers.py") == NONE


def test_a_worker_goes_on_with_the_brokers_that_it_has() -> None:
    """Before files that need none, and before those that need other ones."""
    waiting = OrderedDict(plain=NONE, three=THREE, one=KAFKA)
    assert choose(waiting, mine=KAFKA, others=NONE) == "one"
    assert choose(waiting, mine=THREE, others=KAFKA) == "three"


def test_brokers_are_started_again_only_when_nothing_else_waits() -> None:
    """And the fewer first."""
    assert choose(OrderedDict(one=KAFKA, plain=NONE), mine=NONE, others=KAFKA) == "plain"
    assert choose(OrderedDict(three=THREE, one=KAFKA), mine=NONE, others=KAFKA | THREE) == "one"
    assert choose(OrderedDict(one=KAFKA), mine=NONE, others=KAFKA) == "one"


def test_files_that_cost_the_same_keep_their_order() -> None:
    """The longest begin first."""
    assert choose(OrderedDict(long=NONE, short=NONE), mine=NONE, others=NONE) == "long"
    assert choose(OrderedDict(three=THREE, one=KAFKA), mine=NONE, others=NONE) == "three"


def test_a_run_starts_each_cluster_on_few_workers() -> None:
    """The files of this project, each as long as the others, on three workers."""
    waiting = OrderedDict((path.name, fixtures_of(path)) for path in sorted((ROOT / "integration").glob("test_*.py")))
    fewest = sum(BROKERS.values())
    started = [NONE, NONE, NONE]
    while waiting:
        for at in range(3):
            others = frozenset().union(*(started[other] for other in range(3) if other != at))
            if waiting:
                chosen = choose(waiting, mine=started[at], others=others)
                started[at] |= waiting.pop(chosen)
    assert sum(BROKERS[name] for each in started for name in each) <= fewest + 2 * BROKERS["kafka"]


def run_with_two_workers(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=loadfile", "-p", "no:randomly"]
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent)}
    return subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_tests_of_a_file_that_takes_minutes_go_to_all_workers(tmp_path: Path) -> None:
    """Each of two tests waits for the other one to begin."""
    (tmp_path / "conftest.py").write_text("from testkit.shared_brokers import pytest_xdist_make_scheduler\n")
    (file := tmp_path / min(SPREAD)).parent.mkdir(parents=True)
    file.write_text(
        "import pathlib, time\n\ndef meet(mine: str, other: str) -> None:\n    pathlib.Path(mine).touch()\n"
        "    until = time.monotonic() + 60\n"
        "    while not pathlib.Path(other).exists():\n"
        "        assert time.monotonic() < until\n        time.sleep(0.02)\n\n"
        "def test_a() -> None:\n    meet('a', 'b')\n\ndef test_b() -> None:\n    meet('b', 'a')\n"
    )
    done = run_with_two_workers(tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_test_that_a_worker_ends_in_is_run_once_and_the_others_of_its_file_are_run(tmp_path: Path) -> None:
    """One that hangs is ended with its worker after minutes: again in each new worker, that would be hours."""
    (tmp_path / "conftest.py").write_text("from testkit.shared_brokers import pytest_xdist_make_scheduler\n")
    names = [f"test_{at}" for at in range(5)]
    (tmp_path / "test_it.py").write_text(
        "import os, pathlib\n\ndef begin(name: str) -> None:\n"
        "    with pathlib.Path('begun').open('a') as file:\n        print(name, file=file)\n\n"
        + "\n".join(f"def {name}() -> None:\n    begin('{name}')\n" for name in names)
        + "    os._exit(1)\n"
        + "\ndef test_last() -> None:\n    begin('test_last')\n"
    )
    done = run_with_two_workers(tmp_path)
    assert "1 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running 'test_it.py::test_4'" in done.stdout
    assert (tmp_path / "begun").read_text().split() == [*names, "test_last"]


@pytest.mark.slow
def test_runs_without_xdist_take_no_offence_at_its_hooks() -> None:
    manager = pytest.PytestPluginManager()
    manager.register(shared_brokers)
    manager.register(leftovers)
    manager.check_pending()
