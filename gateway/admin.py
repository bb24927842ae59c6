"""The admin port: /metrics for Prometheus, /healthz and /readyz for whoever runs us.

aiohttp serves it, with its own bounds on header and request sizes; nothing here changes the gateway.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.metrics import GatewayMetrics


class AdminServer:
    """A small HTTP server on the gateway's loop."""

    def __init__(self, metrics: GatewayMetrics, *, ready: Callable[[], str | None]) -> None:
        """Make it; nothing is bound yet.

        Args:
            metrics: shown at /metrics.
            ready: why clients cannot be served right now, None when they can.
        """
        self._metrics = metrics
        self._ready = ready
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Bind and serve.

        Raises:
            OSError: the port cannot be bound.
        """
        application = web.Application(client_max_size=16 * 1024)
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/healthz", self._serve_health)
        application.router.add_get("/readyz", self._serve_readiness)
        self._runner = web.AppRunner(application, access_log=None, keepalive_timeout=75, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError:
            await self.stop()
            raise
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and its connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _serve_health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _serve_readiness(self, _request: web.Request) -> web.Response:
        reason = self._ready()
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)
