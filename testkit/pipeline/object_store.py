"""An S3 server on this machine, for tests of the pipeline with object stores."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

_SETTINGS: Final = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",  # no client may ask a cloud for missing settings
}
_START_S: Final = 60
_ROOT: Final = Path(__file__).parents[2]


@contextmanager
def s3_server() -> Iterator[str]:
    """Runs the server. It has a process of its own because delta-rs waits while it has Python's lock.

    Meanwhile the environment names the server.

    Yields:
        Its address.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "testkit.pipeline.s3", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=_ROOT, stdin=quiet, stdout=quiet, stderr=quiet) as server:
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
    """Makes a bucket. Returns its name in delta-rs's form."""
    name = f"b-{uuid.uuid4().hex}"
    request = urllib.request.Request(f"{address}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=_START_S):
        return f"s3://{name}"
