"""Hypothesis profiles and the fixtures that every room's tests share.

``HYPOTHESIS_PROFILE=thorough`` runs twenty times as many examples as the default, ``quick``, and others each time;
``brief``, which ``make check`` takes, a fifth. The examples of these two are the same in each run.
"""

import asyncio
import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings, strategies

from testkit import ended_early, leftovers, marked_files, rewritten_files, shared_brokers
from testkit.clock import FakeClock
from testkit.secrets import OUTPUTS, secrets_in

ROOT: Final = Path(__file__).parent
_THRESHOLDS: Final = (2_000, 10, 50)
"""Of the garbage collector: those of Python 3.13, and full collections more rarely, as tests keep little."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
_IGNORED: Final = {number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN}
"""By what started the run, such as nohup."""

# No deadline: a shared machine makes single examples slow, which is not what the properties are about.
settings.register_profile("brief", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("quick", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Of the files, these take longest, the longest first. One that began last would keep one worker busy alone.
LONG_FILES: Final = (
    "simulation/test_seeds.py",
    "integration/test_page_sessions.py",
    "attacks/test_mutations.py",
    "integration/test_sasl_matrix.py",
    "integration/test_quota_topic.py",
    "integration/test_one_port.py",
    "integration/test_sasl.py",
    "integration/test_fleet.py",
    "integration/test_upgrade.py",
    "hazards/test_processes.py",
    "integration/test_upgrade_attacks.py",
    "integration/test_restarts.py",
    "integration/test_kip599.py",
    "integration/test_throttled_clients.py",
    "attacks/test_memory.py",
    "integration/test_quota_tools.py",
    "integration/test_clients.py",
    "gateway/server/test_supervisor_gone.py",
    "hazards/test_faults.py",
    "attacks/test_own_topics.py",
    "gateway/test_app.py",
    "integration/test_workers.py",
    "integration/test_usage.py",
    "integration/test_embedded_kafka.py",
    "integration/test_seen.py",
    "integration/test_operations.py",
    "integration/test_broker_limits.py",
    "pipeline/test_erase.py",
    "gateway/server/clusters/test_serving.py",
    "simulation/test_attacks.py",
    "pipeline/test_foreign.py",
    "install/test_installed.py",
    "pipeline/test_pruning.py",
    "pipeline/test_storage.py",
    "fuzz/test_charged_is_what_came.py",
    "pipeline/test_gaps.py",
    "pipeline/test_raw_rows.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Spares the garbage collector all that lives as long as the run: a full collection of it takes half a second."""
    _begin_hypothesis()
    gc.disable()
    rewritten_files.import_part(session)
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # DuckDB complains of what is left when the process has ended
        gc.enable()
        gc.set_threshold(*_THRESHOLDS)


@settings(max_examples=1, database=None)
@given(strategies.none())
def _begin_hypothesis(_nothing: None) -> None:
    """Makes Hypothesis keep a generator of random numbers for good.

    It warns of one that nothing refers to, and does not see what frozen objects refer to. Before it looks, it
    collects garbage, which takes no time as long as no tests are collected.
    """


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of the longest files first, after pytest-randomly has shuffled them."""
    order = {(ROOT / name).resolve(strict=True): at for at, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


# See there.
pytest_runtest_logstart = ended_early.pytest_runtest_logstart
pytest_runtest_logfinish = ended_early.pytest_runtest_logfinish
pytest_testnodeready = ended_early.pytest_testnodeready
pytest_unconfigure = ended_early.pytest_unconfigure
pytest_sessionstart = leftovers.pytest_sessionstart
pytest_sessionfinish = leftovers.pytest_sessionfinish
pytest_terminal_summary = leftovers.pytest_terminal_summary
pytest_testnodedown = leftovers.pytest_testnodedown
pytest_ignore_collect = marked_files.pytest_ignore_collect
pytest_xdist_make_scheduler = shared_brokers.pytest_xdist_make_scheduler


def pytest_configure(config: pytest.Config) -> None:
    """See there."""
    leftovers.pytest_configure(config)
    ended_early.pytest_configure(config)


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on, which takes protocols without the base classes of asyncio."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands at an instant with no meaning, so that code relying on zero fails."""
    return FakeClock(now_ms=7_300_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Callable[[str], Any]]:
    """Mounts a `testkit.faults.effects.SmallDisk` of a size; skips the test where none may be mounted."""
    from testkit.faults.effects import SmallDisk

    made = []

    def mount(size: str) -> SmallDisk:
        made.append(SmallDisk(tmp_path / f"disk-{len(made)}", size))
        if not made[-1].mounted:
            pytest.skip("a small disk can only be mounted by root")
        return made[-1]

    yield mount
    for each in made:
        each.unmount()


@pytest.fixture
def signal_handlers() -> Generator[None]:
    """Puts back the handlers that a gateway in this process replaces."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _forking_ends() -> Generator[None]:
    yield
    if forked := sys.modules.get("testkit.forked_sluice"):
        forked.stop_forking()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A `testkit.tls.Pki`: an authority with the certificates that it has issued."""
    from testkit.tls import Pki  # most tests do without the gateway's packages that it needs

    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """The same as after each test: what runs longer than a test may have asked the collector meanwhile."""
    _free_the_collector()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Takes back what a gateway in this process has asked of the collector; fails if a signal is ignored."""
    _free_the_collector()
    ignored = [each for each in _SIGNALS if each not in _IGNORED and signal.getsignal(each) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    if ignored:
        pytest.fail(f"processes that later tests start would ignore {ignored}", pytrace=False)


def _free_the_collector() -> None:
    for asked in [each for each in gc.callbacks if getattr(each, "__module__", "") == "gateway.runtime.collector"]:
        gc.callbacks.remove(asked)
        gc.set_threshold(*_THRESHOLDS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    """Fails a test whose gateway, in this process and at DEBUG, wrote a secret of the suite (hazard H15).

    A failed test shows what its gateways in processes of their own wrote last: their logs are gone after the run.
    """
    report: pytest.TestReport = yield
    if report.failed and report.when == "call":
        report.sections += [(f"End of {log}", text) for log, text in OUTPUTS.latest().items()]
    told = [hit for _, text in report.sections for hit in secrets_in(text.encode(errors="replace"))]
    if told and report.when == "teardown":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: a secret was written: {told[:3]}"
    return report
