"""The processes of one cluster: started again with longer and longer waits, followed after an upgrade, ended."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from gateway.server.clusters import process as process_module
from gateway.server.clusters.notices import Notices
from gateway.server.clusters.process import ClusterProcess, ClusterState
from testkit.raw_client import until

WAITS = ["sleep", "600"]


class Starter:
    """Starts commands in place of gateways."""

    def __init__(self, *command: str) -> None:
        self.command: tuple[str, ...] = command
        self.started: list[int] = []

    def __call__(self, _cluster: ClusterProcess) -> int:
        process = subprocess.Popen(self.command)
        process.returncode = 0  # the cluster waits for it
        self.started.append(process.pid)
        return process.pid


@pytest.fixture
async def starter() -> AsyncIterator[Starter]:
    starter = Starter(*WAITS)
    yield starter
    for pid in starter.started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def cluster_of(starter: Starter, stalled_s: float = 600) -> ClusterProcess:
    admin = socket.socket(socket.AF_UNIX)
    return ClusterProcess("a", admin, starter, read_notices=lambda: None, stalled_s=stalled_s)


async def ended(cluster: ClusterProcess) -> None:
    cluster.stop()
    cluster.kill()
    await asyncio.wait_for(cluster.over(), 60)
    cluster.admin.close()


async def test_waits_get_longer_up_to_a_bound_and_short_again_after_a_good_time(
    starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(starter)
    waits: list[float] = []
    monkeypatch.setattr(cluster, "_start_later", lambda: waits.append(cluster._wait_s()))
    starter.command = ("true",)
    for count in range(1, 10):
        cluster.start()
        await until(lambda: cluster.pid is None)
        assert cluster.restarts == count
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    monkeypatch.setattr(process_module, "GOOD_S", 0.0)
    starter.command = tuple(WAITS)
    cluster.start()
    assert cluster.pid is not None
    cluster.notice(cluster.pid, "READY=1")
    os.kill(cluster.pid, signal.SIGKILL)
    await until(lambda: cluster.pid is None)
    assert waits[-1] == 0.5
    await ended(cluster)


async def test_program_that_is_missing_is_tried_again(starter: Starter) -> None:
    starter.command = ("/does/not/exist",)
    cluster = cluster_of(starter)
    cluster.start()
    assert (cluster.pid, cluster.restarts) == (None, 0)
    starter.command = tuple(WAITS)
    await until(lambda: cluster.pid is not None)
    await ended(cluster)


async def test_process_that_feeds_no_watchdog_is_killed_but_not_before_it_serves(starter: Starter) -> None:
    cluster = cluster_of(starter, stalled_s=0)
    cluster.start()
    (first,) = starter.started
    await asyncio.sleep(0)
    cluster.look()
    assert cluster.pid == first
    cluster.notice(first, "READY=1")
    assert (cluster.serves, cluster.settled) == (True, True)
    await until(lambda: cluster._loop.time() > (cluster._fed_at or 0))
    cluster.look()
    await until(lambda: len(starter.started) == 2)
    assert cluster.restarts == 1
    await ended(cluster)


async def test_process_that_took_over_is_followed_and_the_one_before_may_end(starter: Starter) -> None:
    cluster = cluster_of(starter)
    cluster.start()
    (old,) = starter.started
    new = starter(cluster)
    assert cluster.notice(old, f"MAINPID={new}")
    assert (cluster.pid, cluster.serves, sorted(cluster.state().older)) == (new, True, [old])
    os.kill(old, signal.SIGKILL)
    await until(lambda: cluster.state().older == [])
    assert (cluster.pid, cluster.restarts) == (new, 0)
    os.kill(new, signal.SIGKILL)
    await until(lambda: cluster.restarts == 1)
    await ended(cluster)


async def test_process_that_feeds_the_watchdog_serves_even_if_its_first_message_was_lost(starter: Starter) -> None:
    cluster = cluster_of(starter, stalled_s=0)
    cluster.start()
    (pid,) = starter.started
    cluster.notice(pid, "WATCHDOG=1")
    assert (cluster.serves, cluster.settled) == (True, True)
    # It is watched from now on.
    await until(lambda: cluster._loop.time() > (cluster._fed_at or 0))
    cluster.look()
    await until(lambda: cluster.restarts == 1)
    await ended(cluster)


IGNORES_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
NAMES_ITS_SUCCESSOR = """
import os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
    for line in ("READY=1", "WATCHDOG=1", "WATCHDOG=1", "MAINPID=" + sys.argv[2]):
        sock.sendto(line.encode(), chr(0) + sys.argv[1][1:])
"""


def ignores(pid: int, number: int) -> bool:
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("SigIgn")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


async def test_process_that_named_its_successor_and_ended_while_the_parent_stood_still_has_one(
    starter: Starter,
) -> None:
    """The parent started another one, which could not listen, and did not know the successor."""
    notices = Notices(lambda pid, line: cluster.notice(pid, line))
    asyncio.get_running_loop().remove_reader(notices.sock.fileno())  # so the end comes first
    cluster = ClusterProcess("a", socket.socket(socket.AF_UNIX), starter, read_notices=notices.read)
    new = starter(cluster)
    starter.command = (sys.executable, "-c", NAMES_ITS_SUCCESSOR, notices.address, str(new))
    cluster.start()
    await until(lambda: cluster.pid != starter.started[-1])
    assert (cluster.pid, cluster.serves, cluster.restarts) == (new, True, 0)
    await ended(cluster)
    notices.stop()


async def test_process_is_watched_once_there_are_descriptors_again(
    starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_WATCH_AGAIN_S", 0.01)
    cluster = cluster_of(starter)
    cluster.start()
    (old,) = starter.started
    new = starter(cluster)
    with monkeypatch.context() as without:
        without.setattr(os, "pidfd_open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert cluster.notice(old, f"MAINPID={new}")
        os.kill(old, signal.SIGKILL)
        await until(lambda: cluster.state().older == [])
    os.kill(new, signal.SIGKILL)
    await until(lambda: cluster.restarts == 1)
    await ended(cluster)


@pytest.mark.parametrize("killed", [False, True])
async def test_process_that_takes_over_while_the_parent_ends_all_is_ended_too(starter: Starter, killed: bool) -> None:
    cluster = cluster_of(starter)
    cluster.start()
    (old,) = starter.started
    if killed:
        starter.command = (sys.executable, "-c", IGNORES_SIGTERM)
    new = starter(cluster)
    if killed:
        await until(lambda: ignores(new, signal.SIGTERM))
    cluster.stop()
    if killed:
        cluster.kill()
    assert cluster.notice(old, f"MAINPID={new}")
    await asyncio.wait_for(cluster.over(), 60)
    cluster.admin.close()


async def test_strange_notices_change_nothing(starter: Starter) -> None:
    cluster = cluster_of(starter)
    cluster.start()
    (pid,) = starter.started
    for line in ("", "MAINPID=", "MAINPID=-1", "MAINPID=x", "READY", "=", "READY=1=2\0"):
        cluster.notice(os.getpid(), line)
    assert not cluster.notice(os.getpid(), "READY=1")
    for line in ("", "MAINPID=", "MAINPID=-1", "MAINPID=0", f"MAINPID={10**20}", "MAINPID=x", "="):
        assert cluster.notice(pid, line)
    assert (cluster.pid, cluster.serves) == (pid, False)
    # One that is gone already counts as ended.
    cluster.notice(pid, "MAINPID=4194303")
    await until(lambda: cluster.restarts == 1)
    await ended(cluster)


async def test_next_program_of_the_parent_takes_over_what_runs(starter: Starter) -> None:
    before = cluster_of(starter)
    before.start()
    (pid,) = starter.started
    before.notice(pid, "READY=1")
    before.control, before.since, before.not_ready = "x", before.since - 100, None
    state = before.state()
    before.let_go()
    after = ClusterProcess("a", before.admin, starter, read_notices=lambda: None)
    after.adopt(ClusterState(**json.loads(json.dumps(asdict(state)))))
    assert (after.pid, after.serves, after.settled, after.control) == (pid, True, True, "x")
    assert after.not_ready is None
    assert after._loop.time() - after.since >= 100
    os.kill(pid, signal.SIGKILL)
    await until(lambda: after.restarts == 1)
    await ended(after)


async def test_process_that_only_starts_is_not_killed_by_the_next_program_of_the_parent(starter: Starter) -> None:
    before = cluster_of(starter)
    before.start()
    (pid,) = starter.started
    state = before.state()
    before.let_go()
    after = ClusterProcess("a", before.admin, starter, read_notices=lambda: None, stalled_s=-1)
    after.adopt(state)
    assert (after.pid, after.serves, after.not_ready, after._fed_at) == (pid, False, "starting", None)
    after.look()
    after.notice(pid, "READY=1")
    assert (after.pid, after.serves) == (pid, True)
    await ended(after)


def send_as_another_user(sock: socket.socket, data: bytes) -> None:
    pid = os.fork()
    if not pid:
        os.setuid(65_534)
        sock.send(data)
        os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_notices_name_their_sender_and_those_of_other_users_are_ignored() -> None:
    found: list[tuple[int, str]] = []
    notices = Notices(lambda pid, line: found.append((pid, line)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(f"\0{notices.address[1:]}")
        sock.send(b"READY=1\nWATCHDOG=1\n")
        await until(lambda: len(found) == 2)
        send_as_another_user(sock, b"MAINPID=1\n")
        sock.send(b"STOPPING=1\n")
        await until(lambda: len(found) >= 3)
    assert found == [(os.getpid(), each) for each in ("READY=1", "WATCHDOG=1", "STOPPING=1")]
    notices.stop()
