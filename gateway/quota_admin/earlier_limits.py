"""Imports the file in which earlier versions kept connection limits of brokers.

    {"format": 1, "limits": {"max.connections": "500"}, "sum": "..."}

or, in versions without a format, only the limits. The file is accepted only if all of it is valid, including the sum
over the limits, and if each limit could be set now. Lost or wrong limits would be worse than a gateway that does not
start and reports why. The file is renamed once its limits are durable in the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any, Final

import structlog

from config import Config
from gateway.quota_admin.broker_limits import BrokerLimits, LimitError, Values, checked_limit
from gateway.quota_admin.store.interface import Alteration, LimitChange, StoreError
from gateway.quota_admin.store.live import LiveQuotas
from gateway.runtime.durable import sync_directory

FILE_NAME: Final = "connection-limits.json"
TAKEN_OVER: Final = f"{FILE_NAME}.taken-over"
_FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 20
_REMOVE_IT: Final = "remove it to do without them"

_log = structlog.get_logger("gateway.broker_limits")


async def take_over(config: Config, live: LiveQuotas, limits: BrokerLimits) -> None:
    """Import the limits of the file into the store, if there is a file.

    Args:
        config: the configuration, with the store's location.
        live: open; its limits are not followed yet.
        limits: the limits of this gateway.

    Raises:
        StoreError: the file was not written by Sluice, is incomplete, has a limit that could not be set, or its
            limits can't be written to the store.
    """
    path = Path(config.quota_store.data_dir) / FILE_NAME
    if config.quota_store.kind != "sqlite" or not path.exists():
        return
    kept = await asyncio.to_thread(read_limits, path)
    try:
        values = {name: checked_limit(name, value) for name, value in kept.items()}
        limits.check(limits.own({**live.kept_limits, **values}))
    except LimitError as exc:
        raise StoreError(f"{path}: {exc}; {_REMOVE_IT}") from exc
    if live.store.read_only is not None:
        # The store is read-only, so the limits of the file are in force without being imported.
        live.kept_limits.update(values)
        return
    changes = tuple(LimitChange(name, value) for name, value in values.items())
    await live.alter(Alteration("sluice", FILE_NAME, changes))
    try:
        path.rename(path.with_name(TAKEN_OVER))
        sync_directory(path.parent)
    except OSError as exc:
        raise StoreError(f"{path} can't be renamed to {TAKEN_OVER}: {exc.strerror}") from exc
    _log.warning("connection_limits_taken_over", settings=",".join(sorted(kept)), file=str(path))


def read_limits(path: Path) -> Values:
    """The limits of a file; each is a text that is not checked.

    Raises:
        StoreError: the file was not written by Sluice, or is incomplete.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= _MOST_BYTES else ""
        document = json.loads(text)
    except OSError as exc:
        raise StoreError(f"{path}: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise _not_ours(path) from exc
    if not isinstance(document, dict):
        raise _not_ours(path)
    written = document.get("format")
    if not isinstance(written, int):
        # A file of a version without a format: empty when the last limit had been deleted.
        return _texts(document, path)
    if written > _FORMAT:
        raise StoreError(
            f"{path} was written by a newer version of sluice (format {written}; this one reads {_FORMAT})"
        )
    if written != _FORMAT or document.keys() != {"format", "limits", "sum"}:
        raise _not_ours(path)
    limits = _texts(document["limits"], path)
    if document["sum"] != sum_of(limits):
        raise StoreError(f"{path}: limits of connections, but damaged: their sum is wrong; {_REMOVE_IT}")
    return limits


def sum_of(limits: Values) -> str:
    """The checksum of a file with these limits."""
    return hashlib.blake2b(json.dumps(limits, sort_keys=True).encode(), digest_size=8).hexdigest()


def _not_ours(path: Path) -> StoreError:
    return StoreError(f"{path}: no limits of connections; {_REMOVE_IT}")


def _texts(limits: Any, path: Path) -> Values:
    if not isinstance(limits, dict) or not all(isinstance(value, str) for value in limits.values()):
        raise _not_ours(path)
    return limits
