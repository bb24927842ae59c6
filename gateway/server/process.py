"""A gateway as a process: signals, the order of its life, and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys

import structlog
import uvloop

from config import Config
from gateway.app import Gateway
from gateway.quota_admin.store.interface import StoreError
from gateway.server.operations import ConfigSource, ReloadReport

_log = structlog.get_logger("gateway.app")


async def _serve(config: Config, banner: str | None, source: ConfigSource | None) -> int:
    loop = asyncio.get_running_loop()
    gateway = Gateway(config, source)
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    reloads: set[asyncio.Task[ReloadReport]] = set()

    def on_hangup() -> None:
        # One that waits reads the file after whatever sent this signal has written it; more change nothing.
        if len(reloads) < 2:
            reloads.add(task := asyncio.create_task(gateway.operations.reload(by="SIGHUP")))
            task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    # A supervisor's stray signals do not end the gateway (hazard F15).
    loop.add_signal_handler(signal.SIGUSR1, lambda: _log.info("signal_ignored", signal="SIGUSR1"))
    try:
        if not await _started(gateway, stop):
            return 0
    except OSError as exc:
        print(f"sluice: cannot listen: {exc}", file=sys.stderr)
        return 2
    except StoreError as exc:
        print(f"sluice: quota store: {exc}", file=sys.stderr)
        return 2
    # What stands by now stays for good: full collections need not walk through it each time.
    gc.collect()
    gc.freeze()
    if banner is not None:
        print(banner, flush=True)
    await stop.wait()
    await gateway.drain(hurry=hurry)
    await gateway.stop()
    _log.info("stopped")
    return 0


async def _started(gateway: Gateway, stop: asyncio.Event) -> bool:
    """Start it; False when the signal came first, since a quota store may wait for its cluster."""
    starting = asyncio.ensure_future(gateway.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            return True
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await gateway.stop()
        return False
    finally:
        stopping.cancel()


def run(config: Config, *, banner: str | None = None, source: ConfigSource | None = None) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends the drain at once. SIGHUP reloads the configuration.

    Args:
        config: valid.
        banner: printed once the gateway listens.
        source: where the configuration comes from again; None: it can not be reloaded.

    Returns:
        The process's exit code: 0, or 2 when a port cannot be bound or the quota store can't be used.
    """
    return uvloop.run(_serve(config, banner, source))
