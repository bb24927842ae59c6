"""Loopback addresses for one test process, so that parallel runs never share a port."""

from __future__ import annotations

import os


def own_host(network: int, host: int = 1) -> str:
    """An address that no other worker of this test run uses.

    TEST_ADDRESSES=100 keeps a run apart from another one beside it.

    Args:
        network: its second byte, which names the kind of server: 66 a gateway, 77 a Kafka, 88 a tap.
        host: its last byte.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return f"127.{network}.{int(os.environ.get('TEST_ADDRESSES', '0')) + int(worker)}.{host}"
