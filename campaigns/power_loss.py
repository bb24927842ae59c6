"""Possible disk contents after a power loss: all synced data, and any part of the data that was not synced.

The system calls of an alteration are recorded with their data, and replayed on a copy of the files up to any call.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from campaigns.crash_points import CrashPoints
from campaigns.crash_scenarios import Scenario

TRACED: Final = "pwrite64,ftruncate,fdatasync,fsync,sendto"

_LINE: Final = re.compile(
    r"^(?P<call>\w+)\(\d+<(?P<path>[^>]*)>"
    r'(?:, "(?P<data>(?:\\x[0-9a-f]{2})*)")?'
    r"(?P<rest>.*)\) += \d+",
    re.MULTILINE,
)


@dataclass
class _File:
    durable: bytes
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def image(self, keep: random.Random | None) -> bytes:
        """The synced contents, plus none of the other writes, or a random selection of them."""
        content = bytearray(self.durable)
        for at, data in self.pending:
            if keep is not None and keep.random() < 0.5:
                _apply(content, at, data)
        return bytes(content)

    def sync(self) -> None:
        content = bytearray(self.durable)
        for at, data in self.pending:
            _apply(content, at, data)
        self.durable, self.pending = bytes(content), []


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        del content[at:]
    content.extend(bytes(max(0, at - len(content))))
    if data is not None:
        content[at : at + len(data)] = data


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()


@dataclass(frozen=True)
class Image:
    """Possible files after a power loss.

    Attributes:
        call: number of the last call before the power loss.
        answered: whether the answer had been sent.
    """

    call: int
    answered: bool
    files: dict[str, bytes]


def images(crash: CrashPoints, scenario: Scenario, *, each: int, seed: int) -> Iterator[Image]:
    """Images after every call: one without all unsynced data, and several with random parts of it.

    Args:
        crash: records the calls.
        scenario: the alteration.
        each: number of random parts per call.
        seed: seed of their choice.
    """
    before, log = crash.record(scenario, TRACED)
    files = {name: _File(content) for name, content in before.items()}
    dice = random.Random(seed)
    answered = False
    for number, match in enumerate(_LINE.finditer(log)):
        file = files.setdefault(Path(_bytes(match["path"]).decode()).name, _File(b""))
        if match["call"] == "pwrite64":
            file.pending.append((int(match["rest"].split(",")[-1]), _bytes(match["data"])))
        elif match["call"] == "ftruncate":
            file.pending.append((int(match["rest"].split(",")[-1]), None))
        elif match["call"] == "sendto":
            answered = True
            continue
        else:
            file.sync()
        for keep in (None, *(dice for _ in range(each))):
            yield Image(
                number,
                answered,
                {
                    name: each_file.image(keep)
                    for name, each_file in files.items()
                    if name.startswith("quotas.db")
                },
            )
