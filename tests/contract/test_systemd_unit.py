"""The files for systemd: its own tools accept them, and the gateway does nothing that the unit forbids."""

import configparser
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from config import parse
from testkit.gateway import free_ports
from testkit.packages import require_package

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy" / "systemd"
UNIT = FILES / "sluice.service"
HANGS_S = 120
CONFIG = """
[upstream]
bootstrap = ["127.0.0.1:{first}"]
[[listeners]]
name = "clients"
bind = "127.0.0.1:{second}"
first_broker_port = {third}
broker_ports = 1
[admin]
bind = "127.0.0.1:{fourth}"
[quota_store]
data_dir = "store"
[usage]
kind = "files"
directory = "usage"
"""


def read_unit() -> configparser.RawConfigParser:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    return unit


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    found = require_package("systemd", program)
    return subprocess.run([found, *words], capture_output=True, text=True, timeout=HANGS_S, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root of a machine with Sluice and the unit, and systemd's own units."""
    root = tmp_path / "machine"
    units = root / "usr/lib/systemd/system"
    own = Path("/usr/lib/systemd/system")
    if own.is_dir():
        shutil.copytree(own, units, symlinks=True)
    units.mkdir(parents=True, exist_ok=True)
    shutil.copy(UNIT, units)
    (root / "etc").mkdir()
    for program in ("opt/sluice/bin/sluice", "bin/kill"):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", root / program)
    return root


def test_systemd_accepts_the_unit_and_would_not_accept_a_misspelt_key(machine: Path) -> None:
    done = run("systemd-analyze", "verify", "--man=no", f"--root={machine}", "sluice.service")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    unit = machine / "usr/lib/systemd/system/sluice.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchDogSec="))
    done = run("systemd-analyze", "verify", "--man=no", f"--root={machine}", "sluice.service")
    assert "WatchDogSec" in done.stderr


def test_systemd_rates_the_exposure_of_the_unit_as_low() -> None:
    # 1.6 of 10 with version 252; below 2.0 is what systemd calls OK with room to "medium" at 5.
    words = ("--offline=true", "--no-pager", "--threshold=20", str(UNIT))
    done = run("systemd-analyze", "security", *words)
    assert done.returncode == 0, done.stdout
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=5", str(UNIT))
    assert done.returncode != 0, "the threshold decides"


def test_the_user_and_the_folder_of_the_configuration_are_made(machine: Path) -> None:
    assert run("systemd-sysusers", f"--root={machine}", str(FILES / "sluice.sysusers")).returncode == 0
    (user,) = [line.split(":") for line in (machine / "etc/passwd").read_text().splitlines() if "sluice" in line]
    assert (user[0], user[6]) == ("sluice", "/usr/sbin/nologin")
    done = run("systemd-tmpfiles", "--create", f"--root={machine}", str(FILES / "sluice.tmpfiles"))
    assert done.returncode == 0, done.stderr
    folder = (machine / "etc/sluice").stat()
    assert folder.st_mode & 0o777 == 0o750
    assert folder.st_gid == (int(user[3]) if os.geteuid() == 0 else os.getegid())


def test_unit_fits_the_gateway() -> None:
    service = read_unit()["Service"]
    config = parse(CONFIG.format(first=1, second=2, third=3, fourth=4), name="f")
    assert int(service["TimeoutStopSec"]) * 1000 > config.drain.timeout_ms
    assert service["User"] == "sluice"
    folder, mode = (FILES / "sluice.tmpfiles").read_text().splitlines()[-1].split()[1:3]
    assert (folder, mode) == (str(Path(service["ExecStart"].split()[-1]).parent), "0750")
    assert service["EnvironmentFile"].removeprefix("-").startswith(folder)


def allowed_calls(unit: configparser.RawConfigParser) -> set[str]:
    """The system calls of the unit's filter, which systemd-analyze resolves."""
    done = run("systemd-analyze", "syscall-filter", "--no-pager")
    assert done.returncode == 0, done.stderr
    sets: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("@"):
            members = sets.setdefault(line.strip(), [])
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.append(line.strip())

    def resolved(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        return {call for member in sets[name] for call in resolved(member)}

    filters = [
        line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith("SystemCallFilter")
    ]
    found: set[str] = set()
    for each in filters:
        found = found - resolved(each[1:]) if each.startswith("~") else found | resolved(each)
    assert unit["Service"]["SystemCallArchitectures"] == "native"
    return found


# As systemd before it executes the program: no new privileges, no memory that is writable and executable.
_RESTRICT = (
    "import ctypes, os, sys; prctl = ctypes.CDLL(None, use_errno=True).prctl; assert prctl(38, 1, 0, 0, 0) == 0; "
    "prctl(65, 1, 0, 0, 0); os.umask(0o077); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.slow
def test_gateway_lives_under_the_unit_from_ready_to_stop(tmp_path: Path) -> None:
    strace = require_package("strace")
    calls = allowed_calls(read_unit())
    if subprocess.run([strace, "-D", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    first = free_ports(4)
    config = tmp_path / "sluice.toml"
    config.write_text(CONFIG.format(first=first, second=first + 1, third=first + 2, fourth=first + 3))
    trace = tmp_path / "trace"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(HANGS_S)
        environment = os.environ | {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "1000000"}
        sluice = str(Path(sys.executable).with_name("sluice"))
        process = subprocess.Popen(
            [
                strace,
                "-D",
                "-f",
                "-qq",
                "-o",
                str(trace),
                sys.executable,
                "-c",
                _RESTRICT,
                sluice,
                "serve",
                "--config",
                str(config),
            ],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

        def await_message(text: str) -> None:
            while text not in systemd.recv(4096).decode().splitlines():
                pass

        try:
            await_message("READY=1")
            await_message("WATCHDOG=1")
            socket.create_connection(("127.0.0.1", first + 1), timeout=HANGS_S).close()
            process.send_signal(signal.SIGHUP)
            await_message("RELOADING=1")
            await_message("READY=1")
            process.send_signal(signal.SIGTERM)
            await_message("STOPPING=1")
            _, log = process.communicate(timeout=HANGS_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, log.decode()
    after_start = trace.read_text().split("serve", 1)[1]
    used = {
        line.split(None, 1)[1].split("(", 1)[0].removeprefix("<... ").split(" ")[0]
        for line in after_start.splitlines()[1:]
        if line[:1].isdigit()
    }
    used = {call for call in used if call.replace("_", "").isalnum()}
    assert {"epoll_pwait", "accept4", "sendto"} & used
    if os.geteuid() == 0:
        used.discard("fchown")  # SQLite gives its files the owner of the folder, as root alone
    assert used <= calls, f"the unit forbids {sorted(used - calls)}"
