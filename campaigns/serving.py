"""A gateway as a separate process, for runs against a real Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from testkit.process_group import kill_all

SLUICE: Final = Path(sys.executable).with_name("sluice")
_START_S: Final = 60.0
_STOP_S: Final = 60.0

_CONFIG: Final = """
[upstream]
bootstrap = ["{broker}"]
[[listeners]]
name = "clients"
bind = "127.0.0.1:{port}"
first_broker_port = {broker_port}
broker_ports = 2
[admin]
bind = "127.0.0.1:{admin}"
[quota_store]
kind = "memory"
"""


class NotReadyError(Exception):
    """The gateway ended, or was not ready in time."""


def before_one_broker(broker: str, first: int) -> str:
    """A configuration for `serving`; callers may append tables.

    Args:
        broker: address of the broker.
        first: first of four free ports: bootstrap, the admin port, and two for brokers.
    """
    return _CONFIG.format(broker=broker, port=first, admin=first + 1, broker_port=first + 2)


def environment_of(sluice: Path) -> dict[str, str] | None:
    """Environment variables for a program. An installed program must not import this tree. None for all variables."""
    if sluice == SLUICE:
        return None
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@contextmanager
def serving(
    config: Path, *, admin: str, log: Path | None = None, sluice: Path = SLUICE
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `sluice serve` and wait until it is ready; drain and end it afterwards.

    Args:
        config: its configuration.
        admin: URL of its admin port, such as ``http://127.0.0.1:9644``.
        log: file for its log; None for the terminal.
        sluice: the program.

    Raises:
        NotReadyError: the gateway ended, or was not ready in time.
    """
    command = [sluice, "serve", "--config", config]
    with ExitStack() as stack:
        if log is None:
            process = subprocess.Popen(command, env=environment_of(sluice), start_new_session=True)
        else:
            process = subprocess.Popen(
                command,
                env=environment_of(sluice),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stack.enter_context(log.open("w")),
                start_new_session=True,
            )
        stack.callback(_stop, process)
        _await_ready(f"{admin}/readyz", process)
        yield process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        kill_all(process.pid)
        process.wait()


def _await_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            # `urlopen` raises an OSError for error statuses, too.
            with urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise NotReadyError("the gateway did not get ready")
