"""A gateway as a process of its own, for runs against a real Kafka."""

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
    """The gateway ended, or did not get ready in time."""


def before_one_broker(broker: str, first: int) -> str:
    """A configuration for `serving`, to which tables can be added.

    Args:
        broker: its address.
        first: of four free ports: bootstrap, the admin port, and two for brokers.
    """
    return _CONFIG.format(broker=broker, port=first, admin=first + 1, broker_port=first + 2)


def environment_of(sluice: Path) -> dict[str, str] | None:
    """The variables for a program; an installed one must not see this tree. None: all there are."""
    if sluice == SLUICE:
        return None
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@contextmanager
def serving(
    config: Path, *, admin: str, log: Path | None = None, sluice: Path = SLUICE
) -> Iterator[subprocess.Popen[bytes]]:
    """`sluice serve`, ready; drained and gone afterwards.

    Args:
        config: its configuration.
        admin: where its admin port answers, such as ``http://127.0.0.1:9644``.
        log: where its log goes; None: to the terminal.
        sluice: the program.

    Raises:
        NotReadyError: see there.
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
            # Any other status than 200 is an OSError too.
            with urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise NotReadyError("the gateway did not get ready")
