"""What a disk may hold after the power went: what was synced, and any part of what was not.

The calls of an alteration are recorded with what they write, and played on a copy of the files as far as one likes.
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
        """What was synced, and of the rest nothing, or each write by itself or not."""
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
    """Files as they may be after the power went.

    Attributes:
        call: the last one before, as its number.
        answered: the answer had been sent.
    """

    call: int
    answered: bool
    files: dict[str, bytes]


def images(crash: CrashPoints, scenario: Scenario, *, each: int, seed: int) -> Iterator[Image]:
    """After every call: all that was not synced is lost; and, some times, any part of it.

    Args:
        crash: records it.
        scenario: what is done.
        each: how many parts are tried per call.
        seed: of their choice.
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
