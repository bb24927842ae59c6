"""Describes the machine of a measurement."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any


def _first_line(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "not found"
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def _cpu_model() -> str:
    said = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    names = [line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("Model name:")]
    return names[0] if names else platform.processor()


def load_average() -> list[float]:
    """Runnable tasks over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def describe_machine() -> dict[str, Any]:
    """Processor, kernel and the versions of everything that takes part."""
    packages = {}
    for name in ("uvloop", "kafka-python", "prometheus-client"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "tcp_congestion_control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "libc": " ".join(platform.libc_ver()),
        "python": sys.version.split()[0],
        "packages": packages,
        "haproxy": _first_line("haproxy", "-v"),
        "compiler": _first_line("cc", "--version"),
        "java": _first_line("java", "-version"),
        "commit": _first_line("git", "describe", "--always", "--dirty", "--exclude=*"),
        "load_average_before": load_average(),
    }
