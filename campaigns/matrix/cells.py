"""Runs clients of the matrix against one broker, each directly and through the gateway, and judges each step."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from campaigns.matrix.clients import STEPS, Client
from campaigns.matrix.versions import BY_CHANCE
from embedded_kafka.kafka import Address
from pinned_jars import FetchError, MissingProgramError
from testkit.wire_client import WireClient

OK: Final = "ok"
LACKS: Final = "lacks"
_FAILED: Final = "failed "
_PROGRAM_S: Final = 900
"""Programs limit the time of their steps themselves, so only a program that hangs reaches this limit."""

_TOPIC_S: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]
ENDINGS: Final = {"": 2, "-target": 1, "-counts-classic": 1, "-counts-streams": 1}
"""Suffixes of the names of the topics that steps need -> number of partitions."""


class Verdict(StrEnum):
    """The verdict on a step, from its results directly and through the gateway."""

    WORKS = "works"
    LACKS = "the client has no such thing"
    NEITHER = "fails directly too"
    FAILS_THROUGH = "works directly, fails through"
    ONLY_THROUGH = "fails directly, works through"
    BY_CHANCE = "works now and then, directly too"


@dataclass(frozen=True, slots=True)
class Cell:
    """One step of one client against one broker.

    Attributes:
        broker: version of the broker.
        client: name of the client.
        step: one of `STEPS`.
        direct, through: "ok", "lacks", or "failed" and the reason.
    """

    broker: str
    client: str
    step: str
    direct: str
    through: str

    @property
    def verdict(self) -> Verdict:
        """The verdict on this step."""
        if (self.broker, self.client, self.step) in BY_CHANCE:
            return Verdict.BY_CHANCE
        if self.direct == LACKS == self.through:
            return Verdict.LACKS
        if self.direct == OK:
            return Verdict.WORKS if self.through == OK else Verdict.FAILS_THROUGH
        return Verdict.ONLY_THROUGH if self.through == OK else Verdict.NEITHER


@dataclass
class Matrix:
    """Results so far.

    Attributes:
        cells: all of them.
        unavailable: client -> why its program is not available.
        leaks: addresses seen by the tap that no client may get.
    """

    cells: list[Cell] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[Cell]:
        """Steps that work directly and fail through the gateway."""
        return [cell for cell in self.cells if cell.verdict is Verdict.FAILS_THROUGH]


def try_clients(
    matrix: Matrix,
    chosen: Iterable[Client],
    *,
    version: str,
    broker: Address,
    through: Address,
    steps: Sequence[str] = STEPS,
) -> Iterator[list[Cell]]:
    """Try one client after the other; adds and yields the cells of each.

    Args:
        matrix: gets the results.
        chosen: the clients.
        version: version of the broker.
        broker: address of the broker itself.
        through: the gateway's bootstrap address.
        steps: in the order of `STEPS`.
    """
    warm_up(broker)
    for client in chosen:
        try:
            command = client.command()
        except (subprocess.SubprocessError, FetchError, MissingProgramError, OSError) as exc:
            said = getattr(exc, "stderr", None) or str(exc)
            matrix.unavailable[client.name] = re.sub(r"\s+", " ", said)[-300:]
            continue
        with ThreadPoolExecutor(2) as both:
            direct, gateways = (
                both.submit(_outcomes, command, broker, address, f"{_plain(client.name)}-{side}", steps)
                for side, address in (("direct", broker), ("gateway", through))
            )
        cells = [
            Cell(version, client.name, step, direct.result()[step], gateways.result()[step]) for step in steps
        ]
        matrix.cells += cells
        yield cells


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower())


def _outcomes(
    command: Sequence[str], broker: Address, address: Address, topic: str, steps: Sequence[str]
) -> Mapping[str, str]:
    """Step -> the outcome that the program printed."""
    create_topics(broker, {f"{topic}{ending}": partitions for ending, partitions in ENDINGS.items()})
    try:
        done = subprocess.run(
            [*command, str(address), topic, *steps],
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROGRAM_S,
            check=False,
        )
        printed, ended = (
            done.stdout,
            f"the program ended with {done.returncode}: {done.stderr.strip()[-200:]}",
        )
    except subprocess.TimeoutExpired as exc:
        said: Any = exc.stdout or b""
        printed, ended = said.decode(errors="replace"), "the program did not end"
    outcomes = dict.fromkeys(steps, _FAILED + re.sub(r"\s+", " ", ended))
    for line in printed.splitlines():
        step, _, outcome = line.partition(" ")
        if step in outcomes:
            outcomes[step] = outcome
    return outcomes


def warm_up(broker: Address) -> None:
    """Make the broker create and load the topics of groups and transactions, as in a cluster in use.

    A coordinator is loading only in the first seconds of a cluster, and not all clients retry then.
    """
    end_s = time.monotonic() + _TOPIC_S
    with WireClient(broker) as client:
        asked = [("FindCoordinator", 2, {"key": "warm-up", "key_type": kind}) for kind in (0, 1)]
        for name, version, fields in [*asked, ("ListGroups", 2, {})]:
            while client.ask(name, version, **fields).body.error_code:
                if time.monotonic() > end_s:
                    raise TimeoutError(f"{name} still fails")
                time.sleep(0.05)


def create_topics(broker: Address, names: Mapping[str, int]) -> None:
    """Create topics with these numbers of partitions and at most three replicas; wait until they accept records."""
    with WireClient(broker) as client:
        replicas = min(3, len(client.ask("Metadata", 1, topics=[]).body.brokers))
        topics = [
            {"name": name, "num_partitions": count, "replication_factor": replicas}
            for name, count in names.items()
        ]
        body = client.ask("CreateTopics", 5, topics=topics, timeout_ms=30_000, validate_only=False).body
        if codes := {topic.error_code for topic in body.topics} - {0}:
            raise RuntimeError(f"topics were not created: {codes}")
        end_s = time.monotonic() + _TOPIC_S
        while not _led(client, names):
            if time.monotonic() > end_s:
                raise TimeoutError(f"{', '.join(names)}: no leader")
            time.sleep(0.05)


def _led(client: WireClient, names: Iterable[str]) -> bool:
    topics = [{"name": name} for name in names]
    body = client.ask("Metadata", 4, topics=topics, allow_auto_topic_creation=False).body
    codes = [topic.error_code for topic in body.topics]
    codes += [partition.error_code for topic in body.topics for partition in topic.partitions]
    return not any(codes)
