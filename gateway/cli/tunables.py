"""Settings of glibc that must be set before ``sluice serve`` starts.

On AMD's Zen 3 and 4, glibc before 2.40 copies with ``rep movsb``, which takes ten times as long between some
addresses (glibc's bug 30994). So some processes need 2.4 times as much time for 1 MB frames as others. glibc reads
the threshold when a process starts. So this process starts again in place, with the same process id and descriptors.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TUNABLES: Final = "GLIBC_TUNABLES"
_THRESHOLD: Final = "glibc.cpu.x86_rep_movsb_threshold"
NEVER: Final = f"{_THRESHOLD}=1000000000"
_MENDED: Final = (2, 40)
_AGAIN: Final = "SLUICE_STARTED_AGAIN"
_ONE_PROCESSOR: Final = 4096


def start_with_tunables() -> None:
    """Starts this process again if it needs other tunables; otherwise returns."""
    # A program with privileges of its own (setcap) never gets tunables. It must not start again for ever.
    if os.environ.pop(_AGAIN, None) is not None:
        return
    tunables = tunables_wanted(os.environ, _c_library(), _processors())
    if tunables is None:
        return
    environment = {**os.environ, TUNABLES: tunables, _AGAIN: "1"}
    # If that fails, copies may be slower, but the gateway can still serve.
    with contextlib.suppress(OSError):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def tunables_wanted(environment: Mapping[str, str], library: str, processors: str) -> str | None:
    """The tunables with which this process should start again.

    Args:
        environment: the environment of this process.
        library: name and version of its C library, as from confstr(3).
        processors: the first processor in ``/proc/cpuinfo``.

    Returns:
        The value of GLIBC_TUNABLES; None: continue as it is.
    """
    present = environment.get(TUNABLES, "")
    name, _, version = library.partition(" ")
    if name != "glibc" or _THRESHOLD in present:
        return None
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= _MENDED:
        return None
    # Zen 3 was AMD's first processor that reports `rep movsb` as fast; glibc relies on that report.
    if "AuthenticAMD" not in processors or " erms" not in processors:
        return None
    return f"{present}:{NEVER}" if present else NEVER


def _c_library() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def _processors() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as file:
            return file.read(_ONE_PROCESSOR)
    except OSError:
        return ""
