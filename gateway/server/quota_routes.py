"""The admin port's part about quotas.

    GET  /quotas            every quota in force and where it came from; what `sluice quotas` needs to explain it
    GET  /quotas/history    ?limit=N: the latest changes, the last one first
    POST /quotas/import     {"quotas": [...], "prune": false, "dry_run": false}: make the store say this

An import is one alteration: one fault, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from aiohttp import web

from config import Config
from gateway.quota_admin.store.audit import audit_change
from gateway.quota_admin.store.interface import Alteration, StoreError
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.quota_json import change_json, entity_json, history_json, quotas_of
from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import QuotaChange

MAX_IMPORT_BYTES: Final = 64 * 1024 * 1024
MAX_HISTORY: Final = 100_000

_BY: Final = "admin port"
_MAX_NAME: Final = 64
_LINES_AT_ONCE: Final = 100

Handle: TypeAlias = Callable[[Any, str], Awaitable[web.Response]]
Guard: TypeAlias = Callable[..., Callable[[web.Request], Awaitable[web.Response]]]


class QuotaRoutes:
    """See the module."""

    def __init__(self, live: LiveQuotas, config: Callable[[], Config]) -> None:
        """Nothing is served yet.

        Args:
            live: the quotas.
            config: what is in force of the configuration.
        """
        self._live = live
        self._config = config

    def add_to(self, router: web.UrlDispatcher, guarded: Guard) -> None:
        """Serve them.

        Args:
            router: of the admin port.
            guarded: makes a handler of one that gets a body and the caller's address; takes ``max_bytes``.
        """
        router.add_get("/quotas", self._serve_quotas)
        router.add_get("/quotas/history", self._serve_history)
        router.add_post("/quotas/import", guarded(self._import, max_bytes=MAX_IMPORT_BYTES))

    async def _serve_quotas(self, _request: web.Request) -> web.Response:
        quotas, config = self._live.quotas, self._config()
        rows = [
            (entity, key, value, quotas.source(entity, key), quotas.base(entity, key))
            for entity, key, value in quotas.limits.items()
        ]
        head = {
            "version": self._live.store.version,
            "kind": config.quota_store.kind,
            "read_only": self._live.store.read_only,
            "mode": quotas.limits.mode,
            "observed": [entity_json(entity) for entity in config.observed_entities()],
            "client_quota": config.client_quota.model_dump(mode="json"),
            "mutation_quota": config.mutation_quota.model_dump(mode="json"),
            "client_ids": config.client_ids.model_dump(mode="json"),
            "connections": {"ipv6_prefix_bits": config.connections.ipv6_prefix_bits},
        }
        # A hundred thousand of them take their time.
        body = await asyncio.to_thread(_quotas_text, head, rows)
        return web.Response(text=body, content_type="application/json")

    async def _serve_history(self, request: web.Request) -> web.Response:
        text = request.query.get("limit", "100")
        if len(text) > 9 or not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_HISTORY:
            return web.json_response({"error": f"limit has to be 1..{MAX_HISTORY}"}, status=400)
        try:
            entries = await self._live.history(int(text))
        except StoreError as exc:
            return web.json_response({"error": str(exc)}, status=503)
        return web.json_response({"history": [history_json(entry) for entry in entries]})

    async def _import(self, body: Any, caller: str) -> web.Response:
        if not isinstance(body, dict):
            return web.json_response({"error": "the body has to be an object"}, status=400)
        wanted, faults = await asyncio.to_thread(quotas_of, body.get("quotas"))
        if faults:
            return web.json_response({"error": "the quotas are not valid", "faults": faults}, status=422)
        dry_run = body.get("dry_run") is True
        try:
            if not dry_run:
                # What another gateway has made a moment ago may be what this one is to replace.
                await self._live.catch_up()
        except StoreError as exc:
            return web.json_response({"error": str(exc)}, status=503)
        changes = self._differences(wanted, prune=body.get("prune") is True)
        told = [change_json(change, old) for change, old in changes]
        if dry_run or not changes:
            return web.json_response({"version": self._live.store.version, "made": False, "changes": told})
        # Not authenticated: any name may be given. It is for the history only.
        name = "".join(each for each in str(body.get("user") or "")[:_MAX_NAME] if each.isprintable())
        via = f"{caller}, {name}" if name else caller
        try:
            version = await self._live.alter(Alteration(_BY, via, tuple(change for change, _ in changes)))
        except StoreError as exc:
            return web.json_response({"error": str(exc)}, status=503)
        for at, (change, old) in enumerate(changes):
            if at % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)  # a hundred thousand lines take seconds
            audit_change(change, old, by=_BY, via=via)
        return web.json_response({"version": version, "made": True, "changes": told})

    def _differences(
        self, wanted: dict[tuple[QuotaEntity, QuotaKey], float], *, prune: bool
    ) -> list[tuple[QuotaChange, float | None]]:
        quotas = self._live.quotas
        changes = [
            (QuotaChange(*at, value), old)
            for at, value in wanted.items()
            if (old := quotas.override(*at)) != value
        ]
        if prune:
            changes.extend(
                (QuotaChange(entity, key, None), value)
                for entity, key, value in quotas.overrides()
                if (entity, key) not in wanted
            )
        return sorted(changes, key=lambda item: (str(item[0].entity), item[0].key))


def _quotas_text(
    head: dict[str, Any], rows: Sequence[tuple[QuotaEntity, QuotaKey, float, str | None, float | None]]
) -> str:
    quotas = [
        {"entity": entity_json(entity), "quota": key.value, "limit": value, "source": source, "file": base}
        for entity, key, value, source, base in rows
    ]
    return json.dumps({**head, "quotas": quotas})
