"""Jars that a `pom.xml` pins: fetched once from Maven Central, into an ignored cache folder.

That is `.cache/` of the source tree, else `~/.cache/sluice`, or what SLUICE_CACHE_DIR names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "SLUICE_CACHE_DIR"

_SOURCE_TREE: Final = Path(__file__).resolve().parents[1]
_FETCH_TIMEOUT_S: Final = 600


class MissingProgramError(RuntimeError):
    """A program this machine needs is not installed; the text says what to install."""


class FetchError(RuntimeError):
    """The jars could not be fetched; the text holds what Maven said."""


def cache_dir() -> Path:
    """The folder everything that can be made again is kept in."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    if (_SOURCE_TREE / "pyproject.toml").exists():
        return _SOURCE_TREE / ".cache"
    return Path.home() / ".cache" / "sluice"


def program(name: str, *, package: str) -> str:
    """Where a program is.

    Raises:
        MissingProgramError: it is not on the path; the text names the Debian package that has it.
    """
    found = shutil.which(name)
    if found is None:
        raise MissingProgramError(f"{name} is not installed; install with: apt-get install {package}")
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel releases it when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ensure(
    folder: Path,
    pom: Path,
    called: str,
    prepare: Callable[[], None] = lambda: None,
    *,
    properties: Mapping[str, str] | None = None,
) -> None:
    """See that the jars are there, and those of this `pom.xml`.

    Safe to call from many processes at once: one fetches, the others wait for it.

    Args:
        folder: for the jars; a stamp and a lock lie beside it.
        pom: pins them.
        called: what they are and how large, for a person who waits.
        prepare: called after they were fetched, before they count as complete.
        properties: of the `pom.xml`, with other values than it has; the folder is for these values alone.

    Raises:
        MissingProgramError: Maven is not installed.
        FetchError: Maven failed, most often for want of a network.
    """
    stamp = folder.parent / "stamp"
    wanted = hashlib.sha256(pom.read_bytes()).hexdigest()
    if _content(stamp) == wanted:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / "lock"):
        if _content(stamp) != wanted:
            stamp.unlink(missing_ok=True)
            fetch(folder, pom, called, properties)
            prepare()
            stamp.write_text(wanted)


def fetch(folder: Path, pom: Path, called: str, properties: Mapping[str, str] | None = None) -> None:
    """Put the jars into a folder, which is replaced as a whole; see `ensure`."""
    maven = program("mvn", package="maven")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-q", "-B", "--strict-checksums", "-f", str(pom)]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    command += [f"-D{name}={value}" for name, value in (properties or {}).items()]
    print(f"fetching {called} into {folder.parent}, once", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as exc:
        raise FetchError(
            f"Maven was not done after {_FETCH_TIMEOUT_S} s: is Maven Central reachable?"
        ) from exc
    if done.returncode != 0:
        raise FetchError(f"Maven could not fetch the jars:\n{done.stdout[-4000:]}{done.stderr[-1000:]}")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _content(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
