"""``python -m campaigns.spark_versions``: the pipeline's tests with each supported version of Spark; 10 minutes.

Each Spark is fetched into the cache, for this Python, and precedes the pinned one in the path. The last line has the
versions with which all tests passed. Exit code 1 when any test failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from pinned_jars import cache_dir

VERSIONS: Final = ("3.5.7", "4.0.4", "4.1.1")
_TESTS: Final = (
    "tests/pipeline/test_runners.py",
    "tests/pipeline/test_compaction.py",
    "tests/pipeline/test_ingest.py",
    "tests/pipeline/test_simulation.py",
)
_COUNT: Final = re.compile(r"(\d+) passed")
_ROOT: Final = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the tests with all versions; the exit code."""
    passed: list[str] = []
    failed = False
    for version in VERSIONS:
        done = _tests(fetched(f"pyspark=={version}"), *_TESTS)
        count = _COUNT.search(done.stdout)
        failed |= bool(done.returncode)
        print(
            done.stdout[-4_000:] if done.returncode else f"Spark {version}: {done.stdout.splitlines()[-1]}",
            flush=True,
        )
        if not done.returncode and count:
            passed.append(f"Spark {version}: {count[1]} tests")
    print(f"**{', '.join(passed) or 'no Spark passed'}**")
    return int(failed)


def fetched(*packages: str) -> Path:
    """A folder with these packages and their dependencies."""
    folder = cache_dir() / "spark-versions" / packages[0]
    if not (folder / ".whole").exists():
        command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "-q", "--system-certs"]
        command += ["--python", sys.executable, "--target", str(folder), *packages]
        subprocess.run(command, check=True)
        (folder / ".whole").touch()
    return folder


def _tests(folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "spark and not campaign"]
    # A JVM ends with the process that started it. A worker's JVM ends before the run checks for leftovers.
    command += ["-n", "1"]
    # Spark 3.5 reads versions in a way that is deprecated in Python 3.11.
    command += ["-W", "ignore::DeprecationWarning", *files]
    return subprocess.run(
        command,
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
