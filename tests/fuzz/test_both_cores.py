"""The compiled core does what the sources do, whatever peers send; and what would not is found.

A fault is planted in a copy of the sources, which stands for the other core: what mypyc makes otherwise, a case each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Final

import pytest

from gateway.runtime.compiled_core import core_name
from testkit import wire
from testkit.planted_fault import Fault
from tests.fuzz.both_cores import __main__ as both_cores
from tests.fuzz.both_cores import messages, tls
from tests.fuzz.both_cores.__main__ import COMPILED, ROOT, Core, compare
from tests.fuzz.both_cores.conversations import FAILED
from tests.fuzz.both_cores.one_core import play

SEEDS: Final = 4_000
"""Each planted fault is found within so many."""
SEEDS_OF_TESTS: Final = 1_500
"""Ten seconds of CPU for two cores. The campaign `both-cores` plays them for five minutes."""


FAULTS: Final = {
    "a slice that ends before it begins": Fault(
        "protocol/plain_topics.py",
        "            if not 0 <= at - name_at < 0x7F:  # below 0: null\n",
        "            if at < name_at:\n                raise SystemError('Negative size')\n"
        "            if at - name_at >= 0x7F:\n",
    ),
    "an integer of 32 bits": Fault(
        "protocol/topic_sizes.py",
        "        at += size\n    return at\n\n\ndef _called",
        "        at = (at + size + 2**31) % 2**32 - 2**31\n    return at\n\n\ndef _called",
    ),
    "an error of another class": Fault(
        "protocol/plain_topics.py", "    except IndexError:\n", "    except OverflowError:\n", places=2
    ),
    "an attribute that may be None": Fault(
        "gateway/tls/transport.py",
        '    return cast("Any", error).reason or ""\n',
        "    if not isinstance(error.reason, str):\n        raise TypeError('str object expected; got None')\n"
        "    return error.reason\n",
    ),
    "a whole number that becomes a float": Fault(
        "gateway/session/parts.py",
        "            self._row.add(came_bytes)\n        if not self._left_bytes:\n",
        "            self._row.add(float(came_bytes))\n        if not self._left_bytes:\n",
    ),
    "a list that takes all or nothing": Fault(
        "gateway/handlers/fetch.py",
        "                for called in named:\n",
        "                for called in list(named):\n",
    ),
    "a bug of the shell's": Fault(
        "gateway/session/chunk_relay.py",
        "            write(data)\n            return TO_PUMP if session.muted else RELAYED\n",
        "            write(data)\n            return TO_PUMP if session.muted / (len(data) - 40) else RELAYED\n",
    ),
}


QUICK_FAULT: Final = "a whole number that becomes a float"
QUICK_SEED: Final = 2
"""Finds it. The other faults take up to 20 s each."""


@pytest.mark.skipif(core_name() != "compiled core", reason="make test-compiled")
def test_m04_both_cores_do_the_same_with_whatever_peers_send() -> None:
    with Core(ROOT) as sources, Core(COMPILED) as compiled:
        assert (sources.name, compiled.name) == ("pure Python", "compiled core")
        found = compare(sources, compiled, range(SEEDS_OF_TESTS))
    assert found is None, found


def test_every_fault_can_be_planted() -> None:
    assert [name for name, fault in FAULTS.items() if not fault.can_be_planted] == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == QUICK_FAULT else pytest.mark.campaign) for name in FAULTS],
)
def test_fault_of_one_core_is_found(name: str, tmp_path: Path) -> None:
    FAULTS[name].plant(tmp_path)
    with Core(ROOT) as sources, Core(tmp_path) as faulty:
        assert faulty.name == "pure Python"
        found = compare(sources, faulty, [QUICK_SEED] if name == QUICK_FAULT else range(SEEDS))
    assert found is not None
    assert "to repeat it: python -m tests.fuzz.both_cores --seed " in found


def test_sources_are_not_compared_with_themselves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    core = SimpleNamespace(name="pure Python")
    monkeypatch.setattr(both_cores, "Core", lambda _packages: nullcontext(core))
    monkeypatch.setattr(sys, "argv", ["both_cores", "--seed", "0"])
    assert both_cores.main() == 2
    assert "holds no core of these sources, but pure Python" in capsys.readouterr().out


@pytest.fixture
def no_certificates_left() -> Iterator[None]:
    yield
    tls.forget_certificates()


@pytest.mark.slow
@pytest.mark.usefixtures("no_certificates_left")
def test_seeds_are_played_alike_twice_and_do_nothing_that_no_core_may() -> None:
    for seed in range(20):
        lines = play(seed)
        assert [line for line in lines if line.startswith(FAILED)] == []
        assert play(seed) == lines


@pytest.mark.parametrize("kind", ["request", "response"])
def test_messages_without_lies_are_read_by_kafka_python(kind: str) -> None:
    for name, version in wire.every_version():
        if (name, kind) == ("ApiVersions", "response"):
            continue  # with an error it is of version 0
        make, read = getattr(messages, kind), getattr(wire, f"decode_{kind}")
        read(name, version, make(Random(version), name, version, correlation_id=1))
