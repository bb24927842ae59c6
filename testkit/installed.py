"""An installation of Sluice for tests: its wheel, empty environments, and the extras that modules need.

Packages come from uv's cache if possible, since `make` has installed the same ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
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
"""Modules, with all modules below them, that need an extra. None: they need none although a parent module does."""


def extra_of(module: str) -> str | None:
    """The extra that a module needs for its import; None: a plain installation suffices."""
    parts = module.split(".")
    above = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((_EXTRAS[name] for name in above if name in _EXTRAS), None)


def modules() -> dict[str, Path]:
    """The files of all installed modules by their import names, without programs."""
    found = {}
    for package in copied_by_docker():
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if path.name != "__main__.py":
                found[name.removesuffix(".__init__")] = path
    return found


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of this tree, from the files that the Dockerfile copies and no others.

    With SLUICE_COMPILED=1 it contains the libraries that `make compiled` has built.

    Args:
        folder: an empty folder for the sources and the wheel.
    """
    sources = folder / "sources"
    for name in copied_by_docker():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            sources.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, sources)
    if COMPILED:
        # The result of `SLUICE_COMPILED=1 pip wheel .`, without compiling for minutes.
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
    """The Python of a version such as 3.12 on this machine: on the path, or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [*sorted(pyenv.glob(f"versions/{version}.*/bin/python")), shutil.which(f"python{version}")]
    for each in filter(None, candidates):
        asked = subprocess.run([each, "-c", "import ssl, venv"], capture_output=True, check=False)
        if asked.returncode == 0:
            return str(each)
    return None


def copied_by_docker() -> list[str]:
    """The project's files and folders that the Dockerfile copies, in its order."""
    text = (ROOT / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
    return [name for line in lines for name in line.split()[:-1]]


class Environment:
    """A separate environment. Its programs run outside the checkout, without PYTHONPATH.

    Attributes:
        programs: the folder of its programs.
        packages: its `site-packages`.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        """Creates an empty environment, even without pip.

        Args:
            folder: the environment's folder, in which its programs run.
            python: the Python program to use.
        """
        self._home = folder / "home"
        self._home.mkdir(parents=True)
        self._root = folder / "environment"
        self._like_this = python == sys.executable
        _run(python, "-m", "venv", "--without-pip", str(self._root), cwd=folder)
        self.programs = self._root / "bin"
        (self.packages,) = self._root.glob("lib/python*/site-packages")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        # pytest keeps folders of its last runs, and a gigabyte of Spark in each is too much.
        shutil.rmtree(self._root)

    def install(self, *words: str) -> None:
        """Installs packages; `words` are the arguments of ``pip install``."""
        uv = [
            str(Path(sys.executable).with_name("uv")),
            "pip",
            "install",
            "-q",
            "--python",
            str(self._python),
        ]
        pip = [sys.executable, "-m", "pip", "--python", str(self._python), "install", "-q"]
        # As in the Makefile: uv does not know pip's settings. If uv cannot install the packages, pip does.
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
                self._take_bytecode()
                return
        raise RuntimeError(done.stderr[-2000:])

    def _take_bytecode(self) -> None:
        """Takes what Python has compiled of the same packages for the tests; to compile them takes seconds.

        Python uses it only for a source of the same size and time, as uv makes them from its cache.
        """
        ours = Path(sysconfig.get_path("purelib"))
        for folder in {path.parent for path in self.packages.rglob("*.py")} if self._like_this else ():
            compiled = ours / folder.relative_to(self.packages) / "__pycache__"
            if compiled.is_dir() and not (folder / "__pycache__").exists():
                shutil.copytree(compiled, folder / "__pycache__", copy_function=_link)

    def install_sluice(self, wheel: Path) -> None:
        """Installs Sluice with the locked packages, like the Dockerfile. Build tools are removed afterwards."""
        lock = str(ROOT / "requirements.lock")
        self.install("--require-hashes", "--only-binary", ":all:", "-r", lock)
        self.install("--no-deps", str(wheel))
        self.uninstall("setuptools")

    def install_extra(self, wheel: Path, extra: str) -> None:
        """Adds the locked packages of an extra to an installation of Sluice."""
        locks = (ROOT / name for name in ("requirements-dev.lock", "requirements-pipeline.lock"))
        versions = {
            pin for lock in locks for pin in re.findall(r"^[a-z0-9-]+==[^ ]+", lock.read_text(), re.MULTILINE)
        }
        constraints = self._home / "constraints.txt"
        constraints.write_text("\n".join(sorted(versions)))
        self.install("-c", str(constraints), f"sluice[{extra}] @ {wheel.as_uri()}")

    def uninstall(self, name: str) -> None:
        """Removes a package."""
        uv = str(Path(sys.executable).with_name("uv"))
        _run(uv, "pip", "uninstall", "-q", "--python", str(self._python), name, cwd=self._home)

    def imports(self, names: Iterable[str]) -> str:
        """Imports modules of Sluice. Returns those that could not be imported, with the reasons."""
        return self.run("python", "-c", _IMPORT, str(self.packages / "sluice"), *names)

    def check(self) -> None:
        """Fails if a required package is missing or has a version that does not fit."""
        uv = str(Path(sys.executable).with_name("uv"))
        _run(uv, "pip", "check", "-q", "--python", str(self._python), cwd=self._home)

    def run(self, program: str, *words: str, code: int = 0) -> str:
        """Runs one of its programs.

        Args:
            program: its name.
            words: arguments.
            code: the exit code that it must end with.

        Returns:
            Its output and error output.
        """
        return _run(str(self.programs / program), *words, cwd=self._home, code=code)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """A command prefix that runs another command like `run` does."""
        return ("env", "--unset=PYTHONPATH", f"--chdir={self._home}")

    @property
    def _python(self) -> Path:
        return self.programs / "python"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another disk, say
        shutil.copy2(source, target)


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
