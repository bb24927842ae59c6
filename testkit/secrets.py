"""Secrets of the tests, and the search for them in everything that a gateway emits (hazard H15).

Every secret of the suite begins with `CANARY`. So one search finds all of them, even if they were encoded: in Base64
at any of its three alignments, in hexadecimal, or as the numbers of their bytes.
"""

from __future__ import annotations

import base64
import gzip
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from testkit.tap import Scanner

CANARY: Final = "canary-of-"


def needles(secret: bytes = CANARY.encode()) -> list[bytes]:
    """The possible encodings of a secret, without those that contain another one."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode()]
    found += [", ".join(map(str, secret)).encode(), secret.decode("latin-1").encode("utf-16-le")]
    for shift in range(3):
        # The bytes before the secret decide its alignment; the first and last characters depend on the neighbours.
        encoded = base64.b64encode(bytes(shift) + secret)
        inner = encoded[-(-shift * 8 // 6) : len(encoded) // 4 * 4 - (4 if encoded.endswith(b"=") else 0)]
        found += {inner, inner.replace(b"+", b"-").replace(b"/", b"_")}
    return found


def secrets_in(data: bytes, secrets: Iterable[bytes] = (CANARY.encode(),)) -> list[bytes]:
    """The parts of secrets that were found, with some bytes around them."""
    hits: list[bytes] = []
    Scanner([needle for secret in secrets for needle in needles(secret)], hits).feed(data)
    return hits


class Outputs:
    """The outputs of all gateways of this test process so far.

    Attributes:
        hits: ``where: what``, one for each secret that was found.
        looked_at_bytes: the number of bytes that were searched.
    """

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.looked_at_bytes = 0
        self._logs: dict[Path, tuple[int, Scanner]] = {}

    def watch(self, log: Path) -> None:
        """Searches a log from its beginning with each `look`."""
        self._logs.setdefault(log, (0, Scanner(needles(), [])))

    def watches(self, log: Path) -> bool:
        """Whether `watch` was called for a log."""
        return log in self._logs

    def look(self) -> None:
        """Searches new bytes of the logs."""
        for log, (at, scanner) in list(self._logs.items()):
            if not log.exists():
                continue
            with log.open("rb") as file:
                file.seek(at)
                more = file.read()
            self._logs[log] = (at + len(more), scanner)
            self.looked_at_bytes += len(more)
            scanner.feed(more)
            self.hits += [f"{log}: {hit!r}" for hit in scanner.hits]
            scanner.hits.clear()

    def latest(self, lines: int = 100) -> dict[Path, str]:
        """The last lines of each log that grew since the last `look`."""
        found = {}
        for log, (at, _) in self._logs.items():
            if log.exists() and (more := log.read_bytes()[at:]):
                found[log] = "\n".join(more.decode(errors="replace").splitlines()[-lines:])
        return found

    def look_at(self, where: str, data: bytes) -> None:
        """Searches some bytes."""
        self.looked_at_bytes += len(data)
        self.hits += [f"{where}: {hit!r}" for hit in secrets_in(data)]

    def look_at_process(self, pid: int, admin: str) -> None:
        """Searches the command line, environment and metrics of a running gateway."""
        for name in ("cmdline", "environ"):
            self.look_at(f"{name} of {pid}", Path(f"/proc/{pid}/{name}").read_bytes())
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=60) as answer:
            self.look_at(f"metrics of {pid}", answer.read())

    def look_at_files(self, folder: Path) -> None:
        """Searches all files that a gateway has written, unpacked if they are packed, and its configuration."""
        for name, data in contents(folder):
            self.look_at(name, data)


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every file of a folder."""
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        data = file.read_bytes()
        yield str(file), data
        if data.startswith(b"\x1f\x8b"):
            # A file that is still being written has no end yet, which gzip reports as an error.
            unpacked = subprocess.run(["gzip", "-dc"], input=data, capture_output=True, check=False)
            yield f"{file}, unpacked", unpacked.stdout


def packed(data: bytes) -> bytes:
    """Packs bytes like a usage file."""
    return gzip.compress(data)


OUTPUTS: Final = Outputs()
"""The outputs of all gateways that integration tests start."""
