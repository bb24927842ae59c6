"""Connection limits that were set over the wire, kept in a file of the quota store's directory.

Written whole to a new file that then takes the old one's place, so that a crash leaves one or the other. Without a
directory they last as long as the process.

    {"format": 1, "limits": {"max.connections": "500"}, "sum": "..."}

What is there is believed only when all of it fits, the sum over the limits too, and each limit could be set now:
limits that are gone or are not as they were set are worse than a gateway that says why it does not start. Files
without a format, nothing but the limits, are read; the next change writes this form.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

import structlog

from config import Config, ConfigError
from gateway.clock import NowMs
from gateway.quota_admin.broker_limits import BrokerLimits, Changes, LimitError, OnSaved, Values
from gateway.quota_admin.store.interface import StoreError

FILE_NAME: Final = "connection-limits.json"
FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 20
_REMOVE_IT: Final = "remove it to do without them"

_log = structlog.get_logger("gateway.broker_limits")


def limits_directory(config: Config) -> Path | None:
    """Where they are kept: beside the quotas; None where those are not kept in a directory either."""
    section = config.quota_store
    return Path(section.data_dir) if section.kind == "sqlite" else None


class LimitsFile:
    """See the module."""

    def __init__(self, directory: Path | None, now_ms: NowMs) -> None:
        """Nothing is read yet.

        Args:
            directory: None: nothing is kept.
            now_ms: the clock.
        """
        self._path = None if directory is None else directory / FILE_NAME
        self._now_ms = now_ms
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._limits: BrokerLimits | None = None

    def change(self, changes: Changes, on_saved: OnSaved) -> None:
        """See `gateway.quota_admin.broker_limits.Change`."""
        task = asyncio.get_running_loop().create_task(self._change(changes, on_saved))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def restore(self, limits: BrokerLimits) -> None:
        """Put in force what was kept; what is of a listener that is gone is left out, and said.

        Raises:
            StoreError: there is a file, and it is not ours, not whole, or has a limit that could not be set.
        """
        self._limits = limits
        if self._path is None or not self._path.exists():
            return
        kept = await asyncio.to_thread(read_limits, self._path)
        try:
            values = limits.checked(kept)
            limits.require_overrides(values)
        except LimitError as exc:
            raise StoreError(f"{self._path}: {exc}; {_REMOVE_IT}") from exc
        unknown = sorted(values.keys() - limits.keys)
        if unknown:
            _log.warning("connection_limits_without_listener", settings=",".join(unknown))
        values = {key: value for key, value in values.items() if key in limits.keys}
        try:
            limits.check(values)
            limits.put_in_force(values)
        except ConfigError as exc:
            raise StoreError(f"{self._path}: {'; '.join(exc.lines)}") from exc
        except ValueError as exc:
            raise StoreError(f"{self._path}: {exc}") from exc
        _log.info("connection_limits_restored", settings=",".join(sorted(values)))

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _change(self, changes: Changes, on_saved: OnSaved) -> None:
        limits = self._limits
        failure: str | None = None
        async with self._one_at_a_time:
            try:
                assert limits is not None
                values = limits.merged(changes)
                limits.check(values)
                if self._path is not None:
                    await asyncio.to_thread(write_limits, self._path, values)
                limits.put_in_force(values)
            except ConfigError as exc:
                failure = "; ".join(exc.lines)
            except OSError as exc:
                failure = f"cannot keep the limits: {exc.strerror}"
                _log.error("connection_limits_not_kept", error=exc.strerror)
            except Exception as exc:  # noqa: BLE001  (the boundary: the client must get an answer)
                failure = "the gateway failed"
                _log.error("connection_limits_not_changed", exc_info=exc)
        try:
            on_saved(failure, self._now_ms())
        except Exception as exc:  # noqa: BLE001  (a bug of ours, on a connection that may be gone)
            _log.error("connection_limits_not_answered", exc_info=exc)


def read_limits(path: Path) -> Values:
    """What a file says; each limit is a text that nobody has looked at.

    Raises:
        StoreError: it is not ours, or not whole.
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
        # As it was before there was a format: empty when the last limit had been deleted.
        return _texts(document, path)
    if written > FORMAT:
        raise StoreError(
            f"{path} was written by a newer version of sluice (format {written}; this one reads {FORMAT})"
        )
    if written != FORMAT or document.keys() != {"format", "limits", "sum"}:
        raise _not_ours(path)
    limits = _texts(document["limits"], path)
    if document["sum"] != _sum_of(limits):
        raise StoreError(f"{path}: limits of connections, but damaged: their sum is wrong; {_REMOVE_IT}")
    return limits


def _not_ours(path: Path) -> StoreError:
    return StoreError(f"{path}: no limits of connections; {_REMOVE_IT}")


def _texts(limits: Any, path: Path) -> Values:
    if not isinstance(limits, dict) or not all(isinstance(value, str) for value in limits.values()):
        raise _not_ours(path)
    return limits


def _sum_of(limits: Values) -> str:
    return hashlib.blake2b(json.dumps(limits, sort_keys=True).encode(), digest_size=8).hexdigest()


def write_limits(path: Path, values: Values) -> None:
    """Keep these and no others.

    Raises:
        OSError: they are not kept; what was kept before still is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        limits = dict(sorted(values.items()))
        json.dump({"format": FORMAT, "limits": limits, "sum": _sum_of(limits)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
