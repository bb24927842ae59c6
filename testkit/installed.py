"""An installation of Sluice for tests: its wheel, empty environments, and the extras that modules need.

Packages come out of uv's cache where they are there, since `make` has installed the same ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[1]
COMPILED: Final = os.environ.get("SLUICE_COMPILED") == "1"
_BUILT: Final = ROOT / "build" / "compiled"
_TIMEOUT_S: Final = 300
_OF_THE_TESTS: Final = frozenset({"PYTHONPATH", "SLUICE_COMPILED"})

PIPELINE, TRACES, TOP = "pipeline", "traces", "top"
_IMPORT: Final = """
import importlib, sys
packages, *names = sys.argv[1:]
sys.path.insert(0, packages)
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as exc:
        print(f"{name}: {exc}")
"""
_EXTRAS: Final = {
    "gateway.cli.top_screen": TOP,
    "gateway.observability.otlp": TRACES,
    "gateway.observability.otlp_metrics": TRACES,
    "gateway.observability.otlp_session": TRACES,
    "pipeline": PIPELINE,
    "pipeline.cli": None,
    "pipeline.errors": None,
    "pipeline.jobs": None,
    "pipeline.plans": None,
}
"""Modules, with all below them, that need an extra; None: none of that which a module above them needs."""


def extra_of(module: str) -> str | None:
    """The extra that a module needs when it is imported; None: a plain installation has all that it needs."""
    parts = module.split(".")
    above = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((_EXTRAS[name] for name in above if name in _EXTRAS), None)


def modules() -> dict[str, Path]:
    """The files of all modules that are installed, by the names that they import each other by; no programs."""
    found = {}
    for package in copied_by_docker():
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if path.name != "__main__.py":
                found[name.removesuffix(".__init__")] = path
    return found


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree, built from what the Dockerfile copies and nothing else.

    With SLUICE_COMPILED=1 it holds the libraries that `make compiled` has built.

    Args:
        folder: for the sources and the wheel; there is nothing in it.
    """
    sources = folder / "sources"
    for name in copied_by_docker():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            sources.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, sources)
    if COMPILED:
        # As `SLUICE_COMPILED=1 pip wheel .`, which would compile for minutes.
        shutil.copytree(_BUILT, sources / "built", ignore=shutil.ignore_patterns("__pycache__", ".*"))
        program = (
            "import runpy, setuptools; setuptools.Distribution.has_ext_modules = lambda self: True; "
            "runpy.run_path('setup.py', run_name='__main__')"
        )
        words = ["-q", "build", "--build-lib", "built", "bdist_wheel", "--dist-dir", str(folder)]
        _run(sys.executable, "-W", "ignore", "-c", program, *words, cwd=sources)
    else:
        left = sources / "build" / "lib" / "gateway"
        left.mkdir(parents=True)
        (left / "left_by_an_earlier_build.py").touch()
        words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
        _run(sys.executable, "-m", "pip", *words, cwd=sources)
    (wheel,) = folder.glob("*.whl")
    return wheel


def python_of(version: str) -> str | None:
    """The Python of a version such as 3.12 on this machine: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [*sorted(pyenv.glob(f"versions/{version}.*/bin/python")), shutil.which(f"python{version}")]
    for each in filter(None, candidates):
        asked = subprocess.run([each, "-c", "import ssl, venv"], capture_output=True, check=False)
        if asked.returncode == 0:
            return str(each)
    return None


def copied_by_docker() -> list[str]:
    """Files and folders of the project that the Dockerfile copies, in its order."""
    text = (ROOT / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
    return [name for line in lines for name in line.split()[:-1]]


class Environment:
    """An environment of its own. Its programs run elsewhere than in the checkout, without PYTHONPATH.

    Attributes:
        programs: the folder of its programs.
        packages: its `site-packages`.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        """An empty one; not even pip is in it.

        Args:
            folder: where to make it, and where its programs run.
            python: the program that it is an environment of.
        """
        self._home = folder / "home"
        self._home.mkdir(parents=True)
        self._root = folder / "environment"
        _run(python, "-m", "venv", "--without-pip", str(self._root), cwd=folder)
        self.programs = self._root / "bin"
        (self.packages,) = self._root.glob("lib/python*/site-packages")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        # pytest keeps folders of the last runs, and a gigabyte of Spark in each is too much.
        shutil.rmtree(self._root)

    def install(self, *words: str) -> None:
        """Install packages: what follows ``pip install``."""
        uv = [
            str(Path(sys.executable).with_name("uv")),
            "pip",
            "install",
            "-q",
            "--python",
            str(self._python),
        ]
        pip = [sys.executable, "-m", "pip", "--python", str(self._python), "install", "-q"]
        # As the Makefile: uv does not know pip's settings, so where it cannot, pip does it.
        for command in ([*uv, "--offline"], [*uv, "--system-certs"], pip):
            done = subprocess.run(
                [*command, *words],
                cwd=self._home,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
            if done.returncode == 0:
                return
        raise RuntimeError(done.stderr[-2000:])

    def install_sluice(self, wheel: Path) -> None:
        """Sluice with the locked packages, as the Dockerfile does it; what builds packages is gone afterwards."""
        lock = str(ROOT / "requirements.lock")
        self.install("--require-hashes", "--only-binary", ":all:", "-r", lock)
        self.install("--no-deps", str(wheel))
        self.uninstall("setuptools")

    def install_extra(self, wheel: Path, extra: str) -> None:
        """What an extra brings, in the locked versions, where Sluice is installed."""
        locks = (ROOT / name for name in ("requirements-dev.lock", "requirements-pipeline.lock"))
        versions = {
            pin for lock in locks for pin in re.findall(r"^[a-z0-9-]+==[^ ]+", lock.read_text(), re.MULTILINE)
        }
        constraints = self._home / "constraints.txt"
        constraints.write_text("\n".join(sorted(versions)))
        self.install("-c", str(constraints), f"sluice[{extra}] @ {wheel.as_uri()}")

    def uninstall(self, name: str) -> None:
        """Remove a package."""
        uv = str(Path(sys.executable).with_name("uv"))
        _run(uv, "pip", "uninstall", "-q", "--python", str(self._python), name, cwd=self._home)

    def imports(self, names: Iterable[str]) -> str:
        """Import modules of Sluice, and say what could not be imported, and why."""
        return self.run("python", "-c", _IMPORT, str(self.packages / "sluice"), *names)

    def check(self) -> None:
        """Fails where a package that another one asks for is missing, or has a version that it does not take."""
        uv = str(Path(sys.executable).with_name("uv"))
        _run(uv, "pip", "check", "-q", "--python", str(self._python), cwd=self._home)

    def run(self, program: str, *words: str, code: int = 0) -> str:
        """Run one of its programs.

        Args:
            program: its name.
            words: arguments.
            code: the exit code that it must end with.

        Returns:
            What it wrote, on either output.
        """
        return _run(str(self.programs / program), *words, cwd=self._home, code=code)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """A command that runs another as `run` does."""
        return ("env", "--unset=PYTHONPATH", f"--chdir={self._home}")

    @property
    def _python(self) -> Path:
        return self.programs / "python"


def _run(*command: str, cwd: Path, code: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_TESTS}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout
