"""Faults: one language for all schedules; each kind has its effect on a real process, and ends."""

from __future__ import annotations

import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from campaigns.chaos import schedule as chaos
from campaigns.soak import faults as soak
from campaigns.transactions import __main__ as transactions
from simulation import plan as simulation
from testkit.faults import effects
from testkit.faults.cable import cable
from testkit.faults.effects import Away, Delayed, FullDisk, Parted, SlowDisk, SmallDisk, SteppedClock, Stopped
from testkit.faults.play import play
from testkit.faults.schedule import Fault, Kind, Schedule, add_option, choose, rounds_of
from testkit.gateway import free_ports
from testkit.packages import require_package
from testkit.raw_client import HOST
from testkit.tap import Tap

ROUNDS: Final = 40
ECHO: Final = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
WRITES: Final = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for line in sys.stdin:
    try:
        begun_s = time.monotonic()
        os.pwrite(file, b'x' * 4096, int(line) * 4096)
        print(time.monotonic() - begun_s, flush=True)
    except OSError as exc:
        print(exc.strerror, flush=True)
"""
SERVER: Final = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
client = server.accept()[0]
while data := client.recv(100): client.sendall(data)
"""
CLOCK: Final = """
import sys, time
from testkit.faults import stepped_clock
stepped_clock.install()
for line in sys.stdin: print(time.time_ns() // 10**9, flush=True)
"""


# -- the language ----------------------------------------------------------------------------------------------


def drawn(seed: int) -> dict[str, tuple[Schedule, set[str]]]:
    """A schedule of each campaign, and its kinds."""
    numbers = range(ROUNDS)
    return {
        "chaos": (Schedule(seed, {at: chaos.round_of(seed, at) for at in numbers}), set(chaos.KINDS)),
        "soak": (Schedule(seed, {at: soak.minute_of(seed, at) for at in numbers}), set(soak.KINDS)),
        "transactions": (
            Schedule(seed, {at: transactions.round_of(seed, at) for at in numbers}),
            set(transactions.KINDS),
        ),
        "simulation": (
            Schedule(seed, {at: simulation.make(seed + 5 * at).faults for at in range(10 * ROUNDS)}),
            set(simulation.KINDS),
        ),
    }


@pytest.mark.parametrize("campaign", ["chaos", "soak", "transactions", "simulation"])
def test_a_schedule_is_its_seed_and_its_text(campaign: str) -> None:
    schedule, kinds = drawn(3)[campaign]
    assert str(schedule) == str(drawn(3)[campaign][0]) != str(drawn(4)[campaign][0])
    again = Schedule.parse(f"# a comment\n{schedule}", kinds)
    assert again == schedule
    assert str(again) == str(schedule)
    assert {fault.what for faults in schedule.rounds.values() for fault in faults} == kinds


@pytest.mark.parametrize(
    "line", ["at 5 ms: eat 1", "at 5 s: kill 1", "at 5 ms: kill", "kill", "round 1\nround 1", "seed one", "round -1"]
)
def test_what_is_no_line_or_no_kind_of_the_campaign_is_refused(line: str) -> None:
    Schedule.parse("seed 1\nround 0\nat 5 ms: kill 1 for 7 ms by -8", {"kill"})
    with pytest.raises(ValueError, match=r"ms|line"):
        Schedule.parse(f"seed 1\nround 0\n{line}", {"kill"})
    with pytest.raises(ValueError, match="no round"):
        Schedule.parse("at 5 ms: kill 1", {"kill"})


def test_a_campaign_reads_its_schedule_or_says_which_line_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = ArgumentParser()
    add_option(parser, {"kill"})
    file = tmp_path / "schedule"
    file.write_text("round 3\nat 5 ms: kill 1\n")
    given = parser.parse_args(["--schedule", str(file)]).schedule
    assert list(rounds_of(given, lambda number: (), range(9))) == [(3, (Fault(5, "kill", 1),))]
    assert list(rounds_of(None, lambda number: (Fault(number, "kill"),), [7])) == [(7, (Fault(7, "kill"),))]
    file.write_text("round 3\nat 5 ms: eat 1\n")
    with pytest.raises(SystemExit):
        parser.parse_args(["--schedule", str(file)])
    assert "'at 5 ms: eat 1': this campaign has kill" in capsys.readouterr().err


def test_kinds_are_drawn_by_their_weights() -> None:
    dice = random.Random(1)
    kinds = (Kind("pause", weight=3), Kind("kill"))
    found = Counter(choose(dice, kinds).what for _ in range(4_000))
    assert 2_850 < found["pause"] < 3_150


def test_each_kind_leads_one_round_of_chaos_and_a_gateway_has_one_fault_at_a_time() -> None:
    rounds = [chaos.round_of(1, at) for at in range(10 * len(chaos.KINDS))]
    assert {faults[0].what for faults in rounds[: len(chaos.KINDS)]} == set(chaos.KINDS)
    for faults in rounds:
        gateways = [each.where for each in faults if not each.what.startswith("broker-")]
        gateways += [1] * (faults[0].what == "topic-again")
        assert len(set(gateways)) == len(gateways)
        assert all(each.what != "terminate" or not faults[0].what.startswith("broker-") for each in faults)


# -- real processes --------------------------------------------------------------------------------------------


class Answering:
    """A process that answers each line."""

    def __init__(
        self, code: str, *arguments: str, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self._command = [*prefix, sys.executable, "-c", code, *arguments]
        self._env = {**os.environ, **(env or {})}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=self._env
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout):
            assert file is not None
            file.close()

    def running(self) -> bool:
        return self.process.poll() is None

    def ask(self, line: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def answering(
    code: str, *arguments: str, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Iterator[Answering]:
    process = Answering(code, *arguments, prefix=prefix, env=env)
    try:
        yield process
    finally:
        process.kill()


def test_a_stopped_process_answers_when_it_is_over() -> None:
    with answering(ECHO) as one:
        one.ask("before")
        assert one.answer() == "before"
        with Stopped([one.process.pid]):
            one.ask("meanwhile")
            assert select.select([one.process.stdout], [], [], 0.2)[0] == []
        assert one.answer() == "meanwhile"


def test_a_stopped_process_that_is_killed_does_not_stand_still_any_more() -> None:
    with answering(ECHO) as one, Stopped([one.process.pid]):
        one.kill()


def test_a_killed_process_is_another_one_afterwards() -> None:
    with answering(ECHO) as one:
        pid = one.process.pid
        with Away(one.kill, one.start, one.running):
            assert not Path(f"/proc/{pid}").exists()
        one.ask("again")
        assert one.answer() == "again"
        assert one.process.pid != pid


def test_nothing_can_be_written_to_a_full_disk(small_disk: Callable[[str], SmallDisk]) -> None:
    disk = small_disk("64k")
    with answering(WRITES, str(disk.folder / "file")) as one:
        with FullDisk(disk):
            one.ask(0)
            assert one.answer() == "No space left on device"
        one.ask(0)
        assert float(one.answer()) >= 0


def test_writes_to_a_slow_disk_take_their_time(tmp_path: Path) -> None:
    require_package("strace")
    with answering(WRITES, str(tmp_path / "file")) as one:
        one.ask(0)
        assert one.answer()
        with SlowDisk(one.process.pid, delay_ms=120):
            one.ask(1)
            assert float(one.answer()) >= 0.12
        assert "TracerPid:\t0\n" in Path(f"/proc/{one.process.pid}/status").read_text()


def test_a_process_sees_another_time_while_its_clock_is_ahead(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    with answering(CLOCK, env={"CLOCK_OFFSET": str(file)}) as one:
        for effect, ahead_s in ((SteppedClock(file, 86_400), 86_400), (SteppedClock(file, -7_200), -7_200)):
            with effect:
                one.ask("now")
                assert int(one.answer()) - time.time() == pytest.approx(ahead_s, abs=60)
            one.ask("now")
            assert int(one.answer()) - time.time() == pytest.approx(0, abs=60)


def test_a_delayed_relay_takes_its_time_both_ways() -> None:
    port = free_ports(2)
    tap = Tap(HOST, ["nothing is looked for"])
    try:
        with answering(SERVER, HOST, str(port + 1)) as server:
            assert server.answer() == "ready"
            tap.relay(port, (HOST, port + 1))
            with socket.create_connection((HOST, port), 60) as client:
                echo(client)
                with Delayed(tap, 60):
                    begun_s = time.monotonic()
                    echo(client)
                    assert time.monotonic() - begun_s >= 0.12
                assert tap.delay_s == 0
    finally:
        tap.close()


def test_what_is_sent_into_a_partition_arrives_when_it_is_over() -> None:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(cable("part", "10.231.78"))
        except OSError as exc:
            pytest.skip(str(exc))
        server = stack.enter_context(answering(SERVER, made.theirs, "9", prefix=made.prefix))
        assert server.answer() == "ready"
        client = stack.enter_context(socket.create_connection((made.theirs, 9), 60))
        echo(client)
        with Parted(made.link):
            client.sendall(b"x")
            client.settimeout(0.1)
            with pytest.raises(TimeoutError):
                client.recv(1)
        client.settimeout(60)
        assert client.recv(1) == b"x"


def echo(client: socket.socket) -> None:
    """Ask and get the answer."""
    client.sendall(b"x")
    assert client.recv(1) == b"x"


# -- the executor ----------------------------------------------------------------------------------------------


def test_faults_come_at_their_times_and_overlap() -> None:
    played: list[str] = []
    began = threading.Barrier(2)

    def act(fault: Fault) -> None:
        began.wait(60)
        played.append(fault.what)

    assert play([Fault(1, "kill"), Fault(2, "pause")], act, within_s=60) == []
    assert sorted(played) == ["kill", "pause"]


class Forgotten(Stopped):
    """The end of the fault is forgotten."""

    def _end(self) -> None:
        pass


class Harmless(Stopped):
    """The fault does nothing."""

    def _begin(self) -> None:
        pass


@pytest.mark.parametrize(("planted", "found"), [(Forgotten, "is still in force"), (Harmless, "has no effect")])
def test_a_fault_that_does_not_end_or_does_nothing_is_found(
    planted: type[Stopped], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "TAKES_S", 0.05)
    with answering(ECHO) as one:

        def act(fault: Fault) -> None:
            with (planted if fault.where else Stopped)([one.process.pid]):
                pass

        assert play([Fault(0, "pause")], act, within_s=60) == []
        assert play([Fault(0, "pause", 1)], act, within_s=60) == [
            f"pause could not be put right: {planted.__name__} {found}"
        ]


def test_a_fault_that_lasts_too_long_is_found() -> None:
    over = threading.Event()
    assert play([Fault(0, "kill")], lambda _: over.wait(60) and None, within_s=0.05) == [
        "kill has not been put right"
    ]
    over.set()
