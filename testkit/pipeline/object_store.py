"""An S3 server on this machine, for what the pipeline does on object stores."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest

_SETTINGS: Final = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",  # no one is to ask a cloud for what is missing
}
_START_S: Final = 60


@contextmanager
def s3_server() -> Iterator[str]:
    """Runs it, in a process of its own as delta-rs waits with Python's lock; the environment names it meanwhile.

    Yields:
        Its address.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as server:
        try:
            deadline = time.monotonic() + _START_S
            while time.monotonic() < deadline:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            address = f"http://127.0.0.1:{port}"
            with pytest.MonkeyPatch.context() as environment:
                for name, value in {"AWS_ENDPOINT_URL": address, **_SETTINGS}.items():
                    environment.setenv(name, value)
                yield address
        finally:
            server.terminate()


def new_bucket(address: str) -> str:
    """Makes one; as delta-rs names it."""
    name = f"b-{uuid.uuid4().hex}"
    request = urllib.request.Request(f"{address}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=_START_S):
        return f"s3://{name}"
