"""An upgrade is disturbed: afterwards one process serves, and none is left behind (G)."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from embedded_kafka.kafka import KafkaCluster
from gateway.server.control import control_name
from testkit.process_group import members
from testkit.tap import Tap
from testkit.upgrade_load import Newcomers
from testkit.wire_client import WireClient
from tests.integration.conftest import eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

SLUICE = Path(sys.executable).with_name("sluice")
NO_USER = 65_534
DRAIN = "[drain]\ntimeout_ms = 2000\n[connections]\nmax_connections_per_ip = 200\n"


class Attacked:
    """A gateway whose processes take each other's place; found by what they hold, not by what they say."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self._asked: list[subprocess.Popen[str]] = []
        self._before: set[int] = set()

    def all(self) -> list[int]:
        """Processes in the group of the first, and those with its configuration file, wherever they are."""
        found = set(members(self.gateway.pid))
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                arguments = (each / "cmdline").read_bytes()
                if str(self.gateway.config_file).encode() in arguments and b"serve" in arguments:
                    found.add(int(each.name))
        return sorted(found)

    def holders(self) -> list[int]:
        """Processes that hold the clients' port."""
        port = self.gateway.behind_tap(0).port
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
        return [pid for pid in self.all() if inodes & descriptors(pid)]

    def serving(self) -> int:
        """The process that serves, alone; waits until that is so."""
        eventually(
            lambda: len(self.holders()) == 1 and self.gateway.http("/readyz")[0] == 200,
            within_s=60,
            told=lambda: f"processes {self.all()}, with the port {self.holders()}\n{self.log()[-4000:]}",
        )
        return self.holders()[0]

    def begin(self) -> "subprocess.Popen[str]":
        self._before = set(self.all())
        command = [str(SLUICE), "upgrade", "--admin", str(self.gateway.admin)]
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._asked.append(asked)
        return asked

    def stop(self) -> None:
        """End the gateway, and the commands of tests that failed before their end."""
        for asked in self._asked:
            asked.kill()
            asked.communicate()
        self.gateway.stop()

    def ends(self, asked: "subprocess.Popen[str]") -> tuple[int, str]:
        out, error = asked.communicate(timeout=300)
        return asked.returncode, out + error

    def next(self, *, with_ports: bool) -> int:
        """The process that is to replace the one before, as soon as it is there, or has the ports too.

        The one before may have ended by then.
        """
        found: list[int] = []

        def came() -> bool:
            among = set(self.holders() if with_ports else self.all()) - self._before
            found[:] = [pid for pid in among if parent(pid) not in among]
            return found != []

        within(came)
        return found[0]

    def settle(self, count: int = 1) -> None:
        """Wait until so many processes are left, and a client is served."""
        self.serving()
        self.gateway._process.poll()  # type: ignore[union-attr]
        within(lambda: len(self.all()) == count)
        with WireClient(self.gateway.behind_tap(0)) as client:
            client.ask("ApiVersions", 2)

    def log(self) -> str:
        return self.gateway.log_file.read_text()


def end(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def within(condition: Callable[[], bool]) -> None:
    eventually(condition, within_s=60)


def descriptors(pid: int) -> set[str]:
    found = set()
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            found.add(os.readlink(each))
    except OSError:
        pass
    return found


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@contextmanager
def attacked(directory: Path, kafka: KafkaCluster, tap: Tap, tables: str) -> Iterator[Attacked]:
    gateway = GatewayProcess(directory, kafka.brokers.values(), tap, GatewayOptions(tables=DRAIN + tables))
    found = Attacked(gateway)
    gateway.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def shared(kafka: KafkaCluster, tap: Tap, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked(tmp_path_factory.mktemp("one"), kafka, tap, "[server]\nworkers = 1\n") as found:
        yield found


@pytest.fixture
def one(shared: Attacked) -> Attacked:
    if not shared.all():
        shared.gateway.stop()
        shared.gateway.start()
    return shared


def errors_of_two(pid: int, name: str) -> list[str | None]:
    """What becomes of two upgrades: the process stands still until it has been asked for both."""
    with ExitStack() as stack:
        asking = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        os.kill(pid, signal.SIGSTOP)
        for each in asking:
            each.settimeout(60)
            each.connect(name)
            each.sendall(b"upgrade\n")
        os.kill(pid, signal.SIGCONT)
        return [json.load(stack.enter_context(each.makefile()))["error"] for each in asking]


def test_two_upgrades_at_once_are_one(one: Attacked) -> None:
    with Newcomers(one.gateway.behind_tap(0), per_s=30) as newcomers:
        old = one.serving()
        assert errors_of_two(old, control_name(*one.gateway.admin)) == [None, "an upgrade is under way"]
        assert one.serving() != old
        one.settle()
    assert set(newcomers.outcomes) == {"answered"}


def test_the_next_one_is_told_to_end(one: Attacked) -> None:
    with Newcomers(one.gateway.behind_tap(0), per_s=30) as newcomers:
        old = one.serving()
        asked = one.begin()
        os.kill(one.next(with_ports=False), signal.SIGTERM)
        code, text = one.ends(asked)
        assert code == 1, text
        assert one.serving() == old
        one.settle()
    assert set(newcomers.outcomes) == {"answered"}


@pytest.mark.parametrize("with_ports", [False, True], ids=["at once", "with the ports"])
def test_the_old_one_is_killed(one: Attacked, with_ports: bool) -> None:
    old = one.serving()
    asked = one.begin()
    new = one.next(with_ports=with_ports)
    end(old, signal.SIGKILL)
    one.ends(asked)  # it may have served a moment before
    one.gateway._process.poll()  # type: ignore[union-attr]
    assert one.serving() == new
    one.settle()
    assert one.gateway.http("/status.json")[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_may_not_ask(one: Attacked) -> None:
    old = one.serving()
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\n"
        f"s.connect('\\0sluice-control-{one.gateway.admin.host}:{one.gateway.admin.port}')\n"
        "s.sendall(b'upgrade\\n')\nprint(s.recv(100))\n"
    )
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code], user=NO_USER, capture_output=True, text=True, check=False, cwd="/"
    )
    assert "upgrade_not_allowed" in one.log(), done
    assert (done.stdout.strip() in ("b''", ""), one.serving()) == (True, old)
    one.settle()


def test_the_old_one_is_told_to_end(one: Attacked) -> None:
    old = one.serving()
    asked = one.begin()
    one.next(with_ports=True)
    end(old, signal.SIGTERM)
    code, _ = one.ends(asked)
    if code:  # before the next one served: both end, as they were asked to
        within(lambda: one.all() == [])
    else:
        one.settle()


def test_workers_serve_on_when_their_supervisor_is_killed_meanwhile(
    kafka: KafkaCluster, tap: Tap, tmp_path: Path
) -> None:
    with attacked(tmp_path, kafka, tap, "[server]\nworkers = 2\n") as two:
        with Newcomers(two.gateway.behind_tap(0), per_s=30) as newcomers:
            asked = two.begin()
            code, text = two.ends(asked)
            assert code == 0, text
            two.settle(4)  # with what forks workers
        assert set(newcomers.outcomes) == {"answered"}
        old = two.serving()
        asked = two.begin()
        new = two.next(with_ports=True)
        end(old, signal.SIGKILL)
        two.ends(asked)
        assert two.serving() == new
        two.settle(4)
