"""Hypothesis profiles and the fixtures that every room's tests share.

``HYPOTHESIS_PROFILE=thorough`` runs twenty times as many examples as the default, ``quick``; ``brief``, which
``make check`` takes, a fifth.
"""

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from testkit import leftovers
from testkit.clock import FakeClock
from testkit.secrets import secrets_in

# No deadline: a shared machine makes single examples slow, which is not what the properties are about.
settings.register_profile("brief", max_examples=20, deadline=None)
settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile("thorough", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# See there.
pytest_configure = leftovers.pytest_configure
pytest_sessionstart = leftovers.pytest_sessionstart
pytest_sessionfinish = leftovers.pytest_sessionfinish
pytest_terminal_summary = leftovers.pytest_terminal_summary
pytest_testnodedown = leftovers.pytest_testnodedown


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway runs on, which takes protocols without the base classes of asyncio."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands at an instant with no meaning, so that code relying on zero fails."""
    return FakeClock(now_ms=7_300_000)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A `testkit.tls.Pki`: an authority with the certificates that it has issued."""
    from testkit.tls import Pki  # most tests do without the gateway's packages that it needs

    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    """Fails a test whose gateway, in this process and at DEBUG, wrote a secret of the suite (hazard H15)."""
    report: pytest.TestReport = yield
    told = [hit for _, text in report.sections for hit in secrets_in(text.encode(errors="replace"))]
    if told and report.when == "teardown":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: a secret was written: {told[:3]}"
    return report
