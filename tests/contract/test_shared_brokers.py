"""Files of tests that share brokers go to one worker, and no worker is without work for that."""

from collections import OrderedDict
from pathlib import Path

from testkit.shared_brokers import BROKERS, choose, fixtures_of

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
