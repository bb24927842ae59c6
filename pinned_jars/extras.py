"""The command that installs the packages of an extra, for messages of programs that lack them."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import requires


def install_command(extra: str) -> str:
    """A command for a shell.

    It names the packages, because the place that Sluice was installed from may be gone.

    Args:
        extra: of `pyproject.toml`.
    """
    marker = f'extra == "{extra}"'
    wanted = [each.partition(";")[0].strip() for each in requires("sluice") or () if marker in each]
    return shlex.join([sys.executable, "-m", "pip", "install", *wanted])
