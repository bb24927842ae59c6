"""Compiles the C programs of the benchmark, once per change of their sources."""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = Path(__file__).resolve().parent / "native"
CACHE: Final = ROOT / ".cache" / "bench"
FLAGS: Final = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-D_GNU_SOURCE")


@dataclass(frozen=True, slots=True)
class NativePrograms:
    """Where the compiled programs lie."""

    null_broker: Path
    load: Path
    relay: Path


def compile_native() -> NativePrograms:
    """Returns the programs, compiled if their sources changed since the last time.

    Raises:
        SystemExit: no C compiler, or the compiler refused.
    """
    header = (SOURCES / "wire.h").read_bytes()
    names = ("null_broker", "load", "relay")
    return NativePrograms(**{name: compile_program(SOURCES / f"{name}.c", header) for name in names})


def compile_program(source: Path, header: bytes = b"") -> Path:
    """Returns one program, compiled if its source or `header` changed since the last time.

    Raises:
        SystemExit: no C compiler, or the compiler refused.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("the benchmark needs a C compiler: apt-get install gcc libc6-dev")
    CACHE.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(" ".join(FLAGS).encode() + header + source.read_bytes()).hexdigest()[:12]
    program = CACHE / f"{source.stem}-{digest}"
    if not program.exists():
        unfinished = program.with_suffix(f".{os.getpid()}")
        done = subprocess.run([compiler, *FLAGS, "-o", str(unfinished), str(source)], check=False)
        if done.returncode:
            raise SystemExit(f"cannot compile {source.name}")
        unfinished.rename(program)
    return program
