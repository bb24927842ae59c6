"""Programs from Debian packages that some tests need. Without its program a test skips and names the package."""

import os
import shutil
from typing import Final

import pytest

# .ci/run looks for this text among the reasons of skipped tests.
INSTALL_COMMAND: Final = "install with: apt-get install"
REQUIRED_VARIABLE: Final = "SLUICE_REQUIRE_PACKAGES"


def require_package(package: str, program: str | None = None) -> str:
    """The path of a program from a Debian package.

    Skips the calling test if it is missing; fails it if SLUICE_REQUIRE_PACKAGES=1.

    Args:
        package: Debian's name.
        program: the program's name, if it differs from the package's.
    """
    # Debian installs haproxy in /usr/sbin, which is not on every user's path.
    path = shutil.which(program or package, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is not None:
        return path
    reason = f"missing {package}; {INSTALL_COMMAND} {package}"
    if os.environ.get(REQUIRED_VARIABLE) == "1":
        pytest.fail(reason)
    pytest.skip(reason)
