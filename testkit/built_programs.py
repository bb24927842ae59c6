"""Programs of the tests in other languages, built once and cached until their sources change."""

import fcntl
import shutil
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from pinned_jars import cache_dir


def built(name: str, sources: Sequence[Path], made_with: str, build: Callable[[Path], None]) -> Path:
    """The folder with the built program.

    Args:
        name: the program's name.
        sources: the files that it is built from.
        made_with: everything else that affects the result, such as the compiler's version.
        build: writes into an empty folder; other workers of a test run wait for the one that builds.
    """
    digest = sha256(made_with.encode())
    for source in sources:
        digest.update(source.read_bytes())
    folder = cache_dir() / "built" / f"{name}-{digest.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for earlier in folder.parent.glob(f"{name}-*"):
                shutil.rmtree(earlier)
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            build(new)
            new.rename(folder)
    return folder
