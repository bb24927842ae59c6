import os
import subprocess
import sys

import pytest

from gateway.cli.tunables import NEVER, TUNABLES, tunables_wanted

ZEN = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu erms fsrm\n"
GLIBC = "glibc 2.36"


def test_zen_with_an_older_glibc_gets_the_threshold_and_keeps_the_user_s_tunables() -> None:
    assert tunables_wanted({}, GLIBC, ZEN) == NEVER
    assert tunables_wanted({TUNABLES: "glibc.malloc.check=1"}, GLIBC, ZEN) == f"glibc.malloc.check=1:{NEVER}"


@pytest.mark.parametrize(
    ("environment", "library", "processors"),
    [
        ({TUNABLES: "glibc.cpu.x86_rep_movsb_threshold=4096"}, GLIBC, ZEN),
        ({}, "glibc 2.40", ZEN),
        ({}, "glibc 3.0", ZEN),
        ({}, "", ZEN),
        ({}, GLIBC, ZEN.replace("AuthenticAMD", "GenuineIntel")),
        ({}, GLIBC, ZEN.replace(" erms", "")),
        ({}, GLIBC, ""),
    ],
    ids=["set by the user", "mended", "of the future", "another library", "Intel", "Zen 2", "unknown"],
)
def test_others_go_on_as_they_are(environment: dict[str, str], library: str, processors: str) -> None:
    assert tunables_wanted(environment, library, processors) is None


@pytest.mark.slow
@pytest.mark.parametrize("privileged", [False, True])
@pytest.mark.parametrize("command", ["serve", "quotas"])
def test_serve_starts_again_once_in_place(command: str, privileged: bool) -> None:
    # As the loader does for a program with privileges: tunables never arrive.
    hidden = "os.environ.pop(tunables.TUNABLES, None)" if privileged else "pass"
    code = f"""
import os, sys
from gateway.cli import main, tunables
tunables._processors = lambda: {ZEN!r}
tunables._c_library = lambda: {GLIBC!r}
sys.argv = ["sluice", {command!r}, "--unknown"]
{hidden}
print(os.getpid(), os.environ.get(tunables.TUNABLES), flush=True)
sys.exit(main.main())
"""
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert (ended.returncode, ended.stderr) == (2, "sluice: unrecognized arguments: --unknown (see sluice --help)\n")
    starts = [line.split() for line in ended.stdout.splitlines()]
    assert len({pid for pid, _ in starts}) == 1
    seen = [tunables for _, tunables in starts]
    assert seen == (["None", "None" if privileged else NEVER] if command == "serve" else ["None"])
