"""Tests of the shell run on the loop that the gateway runs on."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, for every asynchronous test of this room."""
    return {"uvloop": uvloop.new_event_loop}
