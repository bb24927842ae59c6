"""Runs a job of the pipeline from its command line; measures its time, and CPU and memory by kind of process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.process_tree import ProcessKinds

_LOOK_S: Final = 0.1
_DRIVER: Final = "driver"
_WORKER: Final = "python"
_JVM: Final = "java"


@dataclass(frozen=True, slots=True)
class JobRun:
    """One job, from its command to its end.

    Attributes:
        driver_cpu_s, worker_cpu_s, jvm_cpu_s: CPU time of the job's own Python, of Spark's Python workers, of JVMs.
        driver_mb, worker_mb, jvm_mb: resident memory of the largest process of each kind.
        said: last line of its output.
    """

    what: str
    wall_s: float
    driver_cpu_s: float
    worker_cpu_s: float
    jvm_cpu_s: float
    driver_mb: int
    worker_mb: int
    jvm_mb: int
    said: str

    @property
    def cpu_s(self) -> float:
        """CPU time of all processes."""
        return self.driver_cpu_s + self.worker_cpu_s + self.jvm_cpu_s


def run_job(
    *arguments: str, environment: Mapping[str, str] | None = None, beside: Sequence[int] = ()
) -> JobRun:
    """Run a job and sample its processes ten times a second.

    Args:
        arguments: its name and arguments.
        environment: variables added to those of this process.
        beside: ids of other processes that work for the job, such as a cluster; their descendants count, too.

    Raises:
        RuntimeError: the job has failed; the text contains its output.
    """
    began = time.perf_counter()
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=said, stderr=errors, text=True, env={**os.environ, **(environment or {})}
        )
        seen = ProcessKinds([process.pid, *beside], lambda pid, name: _kind(name, pid == process.pid))
        ended = None
        while ended is None:
            time.sleep(_LOOK_S)
            # The process stays a zombie, so that the last sample finds all its CPU time.
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            seen.look()
        process.wait()
        wall_s = time.perf_counter() - began
        errors.seek(0)
        said.seek(0)
        lines = said.read().splitlines()
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {process.returncode}: {errors.read()[-3000:]}")
    return JobRun(
        what=arguments[0],
        wall_s=round(wall_s, 1),
        driver_cpu_s=round(seen.cpu_s(_DRIVER), 1),
        worker_cpu_s=round(seen.cpu_s(_WORKER), 1),
        jvm_cpu_s=round(seen.cpu_s(_JVM), 1),
        driver_mb=seen.largest_mb(_DRIVER),
        worker_mb=seen.largest_mb(_WORKER),
        jvm_mb=seen.largest_mb(_JVM),
        said=lines[-1] if lines else "",
    )


def _kind(name: str, is_job: bool) -> str:
    if is_job:
        return _DRIVER
    return _WORKER if name.startswith(("python", "pt_main")) else name
