"""Sluice from its wheel and requirements.lock alone, run from elsewhere; with SLUICE_COMPILED=1 the compiled one.

`make test` runs it as sources, and once more with the libraries that `make compiled` has built.
"""

import asyncio
import contextlib
import os
import re
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gateway.cli.main import make_parser
from pipeline import cli as pipeline_cli
from testkit.broker import FETCH, ScriptedBroker
from testkit.command_line import parsers
from testkit.crowd import is_served
from testkit.gateway import GatewayProcess, gateway_process
from testkit.installed import COMPILED, ROOT, Environment, copied_by_docker, extra_of, modules

pytestmark = pytest.mark.slow

HELP: Final = """
import os, sys
from sluice.__main__ import main, pipeline
os.environ["SLUICE_STARTED_AGAIN"] = "1"  # `serve` is not to begin this program anew
for command in sys.argv[1:]:
    sys.argv = [*command.split(), "--help"]
    try:
        code = {"sluice": main, "sluice-pipeline": pipeline}[sys.argv[0]]()
    except SystemExit as exc:
        code = exc.code
    print("::", command, "ended with", code)
"""


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with Sluice and the locked packages."""
    with Environment(tmp_path_factory.mktemp("installed")) as environment:
        environment.install_sluice(wheel)
        yield environment


def works(environment: Environment) -> None:
    """It reads a configuration, with all that its commands import."""
    example = environment.packages / "sluice" / "config" / "examples" / "minimal.toml"
    assert "ok" in environment.run("sluice", "check-config", "--strict", str(example))


# -- what is in it -------------------------------------------------------------------------------------------------
def test_the_wheel_carries_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        inside = {name.partition(".dist-info/")[2]: name for name in found.namelist()}
        assert found.read(inside["licenses/LICENSE"]) == (ROOT / "LICENSE").read_bytes()
        assert found.read(inside["licenses/NOTICE"]) == (ROOT / "NOTICE").read_bytes()
        assert b"License-Expression: Apache-2.0\n" in found.read(inside["METADATA"])


def test_the_wheel_has_one_package_at_its_top_and_every_file_of_the_others_inside(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == {"sluice"}
    packages = [ROOT / name for name in copied_by_docker() if (ROOT / name).is_dir()]
    files = (path for package in packages for path in package.rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert {f"sluice/{name.removeprefix('sluice/')}" for name in wanted} == {
        name for name in names if not name.endswith((".so", "compiled_core.json"))
    }
    assert any(name.endswith(".so") for name in names) == COMPILED


def test_the_lock_has_every_package_that_the_wheel_asks_for(installed: Environment) -> None:
    installed.check()


def test_it_starts_and_reads_a_configuration(installed: Environment) -> None:
    core = "compiled core" if COMPILED else "pure Python"
    for program in (["sluice"], ["python", "-m", "sluice"]):
        assert re.fullmatch(rf"sluice [\d.]+, {core}\n", installed.run(*program, "--version"))
    works(installed)
    assert installed.run("sluice", "check-config", "--schema").startswith("{")


def test_every_command_and_job_shows_its_help(installed: Environment) -> None:
    commands = [name for name, _ in parsers("sluice", make_parser())] + ["sluice-pipeline"]
    for job in pipeline_cli.JOBS:
        commands += [name for name, _ in parsers(f"sluice-pipeline {job}", pipeline_cli.make_parser(job))]
    assert len(commands) > 25
    said = installed.run("python", "-c", HELP, *commands)
    ended = [line for line in said.splitlines() if line.startswith("::")]
    assert ended == [f":: {each} ended with 0" for each in commands]
    assert [each for each in commands if f"usage: {each}" not in said] == []


def test_every_module_that_needs_no_extra_can_be_imported(installed: Environment) -> None:
    names = [name for name in modules() if extra_of(name) is None]
    assert len(names) > 200
    assert installed.imports(names) == ""


@pytest.mark.parametrize(("words", "missing"), [
    (("sluice-pipeline", "report", "--out", "out"), "pyspark"), (("sluice", "top"), "textual"),
])  # fmt: skip
def test_what_needs_an_extra_says_in_one_line_what_to_install(
    words: tuple[str, ...], missing: str, installed: Environment
) -> None:
    said = installed.run(*words, code=1)
    assert re.fullmatch(rf".* is missing: \S+/python\d? -m pip install .*{missing}.*\n", said)


# -- serving -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [1, 2])
async def test_it_relays_requests_and_a_process_of_it_takes_anothers_place(
    workers: int, installed: Environment, tmp_path: Path
) -> None:
    async with (
        ScriptedBroker() as broker,
        gateway_process(
            tmp_path,
            broker.port,
            prefix=installed.elsewhere,
            program=installed.programs / "sluice",
            tables=f"[server]\nworkers = {workers}",
        ) as gateway,
    ):
        await is_relayed(broker, gateway)
        said = await asyncio.to_thread(
            installed.run, "sluice", "upgrade", "--admin", f"http://127.0.0.1:{gateway.admin_port}"
        )
        (pid,) = map(int, re.findall(r"process (\d+)", said)[:1])
        try:
            await is_relayed(broker, gateway)
        finally:
            await asyncio.to_thread(end, pid)
        assert await gateway.exit_code(seconds=60) == 0


async def is_relayed(broker: ScriptedBroker, gateway: GatewayProcess) -> None:
    """A client's request reaches the broker, and the answer comes back."""
    relayed = fetches(broker)
    client = await gateway.connect()
    assert await is_served(client)
    client.close()
    assert fetches(broker) == relayed + 1


def fetches(broker: ScriptedBroker) -> int:
    """Fetches that the broker has got."""
    return sum(request.api_key == FETCH for each in broker.connections for request in each.requests)


def end(pid: int) -> None:
    """Stop a process that is not this one's child."""
    until_s = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGTERM)
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until_s, "it goes on"
        time.sleep(0.02)


# -- beside others -------------------------------------------------------------------------------------------------
def neighbour(folder: Path) -> Path:
    """The wheel of a distribution whose packages have the names of ours."""
    names = sorted({name.partition(".")[0] for name in modules()} - {"sluice"})
    files = {f"{name}/__init__.py": f"THEIRS = {name!r}\n" for name in names}
    files |= {
        "neighbour-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: neighbour\nVersion: 1\n",
        "neighbour-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["neighbour-1.dist-info/RECORD"] = "".join(
        f"{name},,\n" for name in (*files, "neighbour-1.dist-info/RECORD")
    )
    wheel = folder / "neighbour-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return wheel


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Environment]:
    """An environment with nothing in it yet."""
    with Environment(tmp_path / "shared") as environment:
        yield environment


def test_packages_of_another_distribution_with_the_same_names_stay_as_they_are(
    wheel: Path, shared: Environment, tmp_path: Path
) -> None:
    theirs = neighbour(tmp_path)

    def neighbour_works() -> None:
        program = "import config, protocol, gateway; print(config.THEIRS, protocol.THEIRS, gateway.THEIRS)"
        assert shared.run("python", "-c", program) == "config protocol gateway\n"

    shared.install("--no-deps", str(theirs))
    before = {path.name for path in shared.packages.iterdir()}
    neighbour_works()
    shared.install_sluice(wheel)
    neighbour_works()
    works(shared)
    shared.uninstall("sluice")
    neighbour_works()
    assert list(shared.packages.glob("sluice*")) == []
    assert before <= {path.name for path in shared.packages.iterdir()}
    shared.uninstall("neighbour")
    shared.install("--no-deps", str(wheel))
    shared.install("--no-deps", str(theirs))
    neighbour_works()
    works(shared)
    shared.uninstall("neighbour")
    works(shared)


def test_packages_where_it_is_started_do_not_stand_before_its_own(installed: Environment, tmp_path: Path) -> None:
    for name in ("config", "gateway", "pipeline"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    for program in ("sluice", "sluice-pipeline"):
        words = (str(installed.programs / program), "--help")
        assert "usage" in installed.run("/usr/bin/env", f"--chdir={tmp_path}", f"PYTHONPATH={tmp_path}", *words)
