"""The wheel and the locked packages work with every Python from 3.11 on that this machine has.

`test_installed.py` shows it for the one that runs the tests.
"""

import sys
from pathlib import Path
from typing import Final

import pytest

from testkit.broker import ScriptedBroker
from testkit.crowd import is_served
from testkit.gateway import gateway_process
from testkit.installed import Environment, python_of

pytestmark = pytest.mark.slow

OTHERS: Final = [each for each in ("3.11", "3.12", "3.13", "3.14") if not sys.version.startswith(f"{each}.")]
FIRST: Final = "3.13"
"""The others are for campaigns."""


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=[pytest.mark.campaign] if each != FIRST else []) for each in OTHERS]
)
async def test_configuration_is_checked_and_a_client_is_served(version: str, wheel: Path, tmp_path: Path) -> None:
    if (python := python_of(version)) is None:
        pytest.skip(f"no Python {version}")
    with Environment(tmp_path, python) as environment:
        environment.install_sluice(wheel)
        assert f"Python {version}." in environment.run("python", "--version")
        example = environment.packages / "sluice" / "config" / "examples" / "minimal.toml"
        assert "ok" in environment.run("sluice", "check-config", "--strict", str(example))
        assert environment.run("sluice", "check-config", "--schema").startswith("{")
        async with (
            ScriptedBroker() as broker,
            gateway_process(
                tmp_path, broker.port, prefix=environment.elsewhere, program=environment.programs / "sluice"
            ) as gateway,
            await gateway.connect() as client,
        ):
            assert await is_served(client)
