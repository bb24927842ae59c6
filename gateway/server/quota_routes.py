"""The quota paths of the admin port: list, history, import.

    GET  /quotas            every quota in force and its origin, as `sluice quotas` needs it to explain a quota
    GET  /quotas/history    ?limit=N: the latest changes, newest first
    POST /quotas/import     ?dry_run=true&user=NAME&file=NAME&sha256=DIGEST: put the body's quotas into the store, one
                            quota per line:
                            {"entity": [{"type": "user", "name": "alice"}], "quota": "producer_byte_rate", "limit": 5,
                             "expected": 7}
                            The limit null removes the quota from the store. If the store has another value than
                            expected, nothing changes: the response is 409 with the values found. Otherwise the
                            response has the changes, and notes on entities that no client can match. With the name
                            of a file the quotas get the owner "apply", otherwise "set"

An import is one alteration: one error, and nothing changes. There is one import at a time. Everything is done in
slices, since there may be a hundred thousand quotas (hazards K21, L04).
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias
from weakref import ref

from aiohttp import web

from config import NO_SUCH_GROUP, WITHOUT_BYTE_RATE, Config, any_authenticates, name_notes
from gateway.quota_admin.store.audit import audit_change
from gateway.quota_admin.store.interface import (
    Alteration,
    ChangedMeanwhileError,
    Kept,
    StoreError,
    changes_something,
)
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.quota_json import (
    QuotaRows,
    change_json,
    entity_json,
    history_json,
    slot_entity_json,
)
from gateway.runtime.slices import Slices, free, keep_for_good, without_collections
from gateway.server.admin_bodies import BodyTooLargeError, RowWriter, read_lines
from gateway.server.admin_connections import AdminConnections
from quotas.entities import GUARANTEE_KEYS, QuotaEntity, QuotaKey
from quotas.layered_quotas import LayeredSnapshot, Owner, QuotaChange

MAX_IMPORT_BYTES: Final = 64 * 1024 * 1024
MAX_HISTORY: Final = 100_000
IMPORT_TYPE: Final = "application/x-ndjson"

_BY: Final = "admin port"
_MAX_NAME: Final = 64
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_SHOWN_DIGITS: Final = 12
"""Digits of a file's digest in the history; the audit log has all."""
_LEAST_LINES: Final = 10_000
"""So many lines may be read even if fewer quotas can be stored: the error then comes from the store."""
_MANY: Final = 5_000
_MOST_NOTES: Final = 100

Changes: TypeAlias = list[tuple[QuotaChange, float | None]]
"""Each change with the override before it."""

Handle: TypeAlias = Callable[[web.Request, str], Awaitable[web.StreamResponse]]
Changing: TypeAlias = Callable[[Handle, str], Callable[[web.Request], Awaitable[web.StreamResponse]]]


class _RefusedError(Exception):
    def __init__(self, status: int, error: str, **more: Any) -> None:
        self.response = web.json_response({"error": error, **more}, status=status)


class QuotaRoutes:
    """See the module."""

    def __init__(self, live: LiveQuotas, config: Callable[[], Config]) -> None:
        """Nothing is served yet.

        Args:
            live: the quotas.
            config: the configuration in force.
        """
        self._live = live
        self._config = config
        self._importing = False
        self._snapshot: Callable[[], LayeredSnapshot | None] = lambda: None
        self._snapshot_version = 0

    def add_to(self, router: web.UrlDispatcher, connections: AdminConnections, changing: Changing) -> None:
        """Add the quota paths to the admin port.

        Args:
            router: of the admin port.
            connections: of the admin port.
            changing: makes a handler for callers that may change something. Its arguments are a handler that also
                gets the caller's address, and the content type of the body.
        """
        self._connections = connections
        self._writer = RowWriter(connections)
        router.add_get("/quotas", self._serve_quotas)
        router.add_get("/quotas/history", self._serve_history)
        router.add_post("/quotas/import", changing(self._import, IMPORT_TYPE))

    async def _serve_quotas(self, request: web.Request) -> web.StreamResponse:
        quotas, config = self._live.quotas, self._config()
        head = {
            "version": self._live.store.version,
            "kind": config.quota_store.kind,
            "read_only": self._live.store.read_only,
            "mode": quotas.limits.mode,
            "observed": [entity_json(entity) for entity in config.observed_entities()],
            "client_quota": config.client_quota.model_dump(mode="json"),
            "mutation_quota": config.mutation_quota.model_dump(mode="json"),
            "client_ids": config.client_ids.model_dump(mode="json"),
            "logins": any_authenticates(config),
            "divided": sorted(config.divided_rates()),
            "connections": {"ipv6_prefix_bits": config.connections.ipv6_prefix_bits},
            "groups": [asdict(group) for group in quotas.limits.groups.all],
        }
        rows = (
            {
                "entity": entity_json(entity),
                "quota": key.value,
                "limit": value,
                "source": source,
                "owner": owner,
                "file": base,
            }
            for entity, key, value, source, base, owner in self._quotas_now().rows()
        )
        return await self._writer.answer(request, head, "quotas", rows)

    def _quotas_now(self) -> LayeredSnapshot:
        """A snapshot of the quotas, shared by simultaneous requests while one of them needs it."""
        version = self._live.quotas.limits.version
        snapshot = self._snapshot() if version == self._snapshot_version else None
        if snapshot is None:
            snapshot = self._live.quotas.snapshot()
            self._snapshot, self._snapshot_version = ref(snapshot), version
        return snapshot

    async def _serve_history(self, request: web.Request) -> web.StreamResponse:
        text = request.query.get("limit", "100")
        if len(text) > 9 or not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_HISTORY:
            return web.json_response({"error": f"limit has to be 1..{MAX_HISTORY}"}, status=400)
        try:
            entries = await self._live.history(int(text))
        except StoreError as exc:
            return web.json_response({"error": str(exc)}, status=503)
        answer = await self._writer.answer(request, {}, "history", map(history_json, entries))
        await free(entries)
        return answer

    # -- import ----------------------------------------------------------------------------------------------

    async def _import(self, request: web.Request, caller: str) -> web.StreamResponse:
        if "prune" in request.query:
            error = "prune is not known: name each quota that is to go, with the limit null"
            return web.json_response({"error": error}, status=400)
        if self._importing:
            return web.json_response({"error": "another import is under way"}, status=409)
        self._importing = True
        try:
            lines = await read_lines(
                request,
                self._connections,
                max_bytes=MAX_IMPORT_BYTES,
                max_lines=max(_LEAST_LINES, self._config().quota_store.max_quotas),
            )
            # Nothing in here waits for the peer.
            with without_collections():
                head, changes = await self._carry_out(lines, caller, request.query)
                if head["made"] and len(changes) > _MANY:
                    keep_for_good()
        except BodyTooLargeError as exc:
            return web.json_response({"error": str(exc)}, status=413)
        except ChangedMeanwhileError as exc:
            return web.json_response({"error": str(exc), "changed": _found(exc)}, status=409)
        except StoreError as exc:
            return web.json_response({"error": str(exc)}, status=503)
        except _RefusedError as exc:
            return exc.response
        finally:
            self._importing = False
        answer = await self._writer.answer(request, head, "changes", _told(changes))
        await free(changes)
        return answer

    async def _carry_out(
        self, lines: list[bytes], caller: str, query: Mapping[str, str]
    ) -> tuple[dict[str, Any], Changes]:
        dry_run = query.get("dry_run") == "true"
        rows = await _parsed(lines)
        notes: list[str] = []
        try:
            if rows.fault_count:
                raise _RefusedError(
                    422, "the quotas are not valid", faults=rows.faults, fault_count=rows.fault_count
                )
            if not dry_run:
                # A value that this import replaces may be another gateway's change of a moment ago.
                await self._live.catch_up()
            source = _Source.of(query)
            changes = await self._differences(rows, source.owner)
            await self._check_guarantees(changes)
            notes = await self._notes(rows)
        finally:
            await free(rows.found)
        if dry_run or not changes:
            return {"version": self._live.store.version, "made": False, "notes": notes}, changes
        via = ", ".join([caller, *source.words])
        asked = Alteration(_BY, via, tuple(change for change, _ in changes), rows.expected)
        version = await self._live.alter(asked)
        slices = Slices()
        for change, old in changes:
            if slices.over:
                await slices.next()
            audit_change(change, old, by=_BY, via=via, **source.fields)
        return {"version": version, "made": True, "notes": notes}, changes

    async def _check_guarantees(self, changes: Changes) -> None:
        slices = Slices()
        by_entity: dict[QuotaEntity, dict[QuotaKey, float | None]] = {}
        for change, _ in changes:
            if slices.over:
                await slices.next()
            by_entity.setdefault(change.entity, {})[change.key] = change.value
        faults = []
        for entity, new in by_entity.items():
            if slices.over:
                await slices.next()
            if (fault := self._live.quotas.guarantee_fault(entity, new)) is not None:
                faults.append(f"{entity}: {fault}")
        if faults:
            shown = faults[:_MOST_NOTES]
            raise _RefusedError(422, "the quotas are not valid", faults=shown, fault_count=len(faults))

    async def _notes(self, rows: QuotaRows) -> list[str]:
        """Notes on entities that no client can match, and on quotas without an effect."""
        config = self._config()
        attributes = {QuotaKey.WEIGHT, QuotaKey.TIER} if config.capacity.by_quota() else set()
        limits = self._live.quotas.limits
        prefixes, logins = config.client_ids.prefixes, any_authenticates(config)
        notes: dict[str, None] = {}  # an entity may have several quotas
        slices = Slices()
        for entity, key in rows.found:
            if slices.over:
                await slices.next()
            if key in attributes and not any(
                (entity, rate) in rows.found or limits.get(entity, rate) is not None
                for rate in GUARANTEE_KEYS
            ):
                notes[f"{entity}: {key} {WITHOUT_BYTE_RATE}"] = None
            if isinstance(entity.group, str) and entity.group not in limits.groups:
                notes[f"{entity}: {NO_SUCH_GROUP}"] = None
            for text in name_notes(entity.user, entity.client_id, prefixes=prefixes, logins=logins):
                notes[f"{entity}: {text}"] = None
            if len(notes) >= _MOST_NOTES:
                break
        return list(notes)

    async def _differences(self, rows: QuotaRows, owner: Owner) -> Changes:
        wanted: Mapping[tuple[QuotaEntity, QuotaKey], float] = rows.found
        snapshot = self._live.quotas.snapshot()
        changes: Changes = []
        slices = Slices()
        for (entity, key), value in wanted.items():
            if slices.over:
                await slices.next()
            change = QuotaChange(entity, key, value, owner)
            old = snapshot.overrides[key].get(entity)
            kept = Kept(old, snapshot.owners[key].get(entity, Owner.UNKNOWN))
            if changes_something(change, kept) or _is_unexpected(rows, change, old):
                changes.append((change, old))
        for entity, key in rows.removed:
            if slices.over:
                await slices.next()
            change, old = QuotaChange(entity, key, None), snapshot.overrides[key].get(entity)
            if (entity, key) not in wanted and (old is not None or _is_unexpected(rows, change, old)):
                changes.append((change, old))
        return changes


def _is_unexpected(rows: QuotaRows, change: QuotaChange, old: float | None) -> bool:
    """Whether the store must check a change that changes nothing, because another value was expected."""
    return rows.expected.get((change.entity, change.key), old) != old


def _found(exc: ChangedMeanwhileError) -> list[dict[str, Any]]:
    return [
        {"entity": slot_entity_json(entity), "quota": str(key), "expected": expected, "found": found}
        for (entity, key), expected, found in exc.found[:_MOST_NOTES]
    ]


@dataclass(frozen=True, slots=True)
class _Source:
    """The origin of an import. The caller may claim anything here: it is for history and audit only.

    Attributes:
        owner: of the quotas that the import sets.
        words: for the history.
        fields: for the audit.
    """

    owner: Owner
    words: tuple[str, ...]
    fields: dict[str, str]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> _Source:
        given = {name: _printable(query[name]) for name in ("user", "file") if query.get(name)}
        digest = query.get("sha256", "")
        if "file" not in given:
            return cls(Owner.SET, tuple(given.values()), given)
        words = [*([given["user"]] if "user" in given else []), f"file {given['file']}"]
        if _DIGEST.fullmatch(digest):
            words.append(f"sha256 {digest[:_SHOWN_DIGITS]}")
            given["sha256"] = digest
        return cls(Owner.APPLY, tuple(words), given)


def _printable(text: str) -> str:
    return "".join(each for each in text[:_MAX_NAME] if each.isprintable())


async def _parsed(lines: list[bytes]) -> QuotaRows:
    """The quotas of these lines; frees the lines."""
    rows = QuotaRows(removals=True)
    slices = Slices(every=1)
    lines.reverse()
    at = 0
    while lines:
        if slices.over:
            await slices.next()
        try:
            rows.add(json.loads(lines.pop()))
        except (ValueError, RecursionError):
            rows.add_fault(at, "is not JSON")
        at += 1
    return rows


def _told(changes: Changes) -> Iterator[dict[str, Any]]:
    return (change_json(change, old) for change, old in changes)
