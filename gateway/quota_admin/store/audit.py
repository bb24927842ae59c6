"""The audit line of a change: one `quota_changed` per quota or limit, at every log level, never suppressed."""

from __future__ import annotations

from typing import Final

from gateway.observability.logging_setup import audit_logger
from gateway.quota_admin.store.interface import StoredChange, Value, entity_text, slot_of

QUOTA_CHANGED: Final = "quota_changed"

_log = audit_logger()


def audit_change(change: StoredChange, old: Value | None, *, by: str, via: str, **more: object) -> None:
    """Writes the line of a change that no client of this gateway's listeners has requested.

    Args:
        change: the change, durable and in force.
        old: the previous override.
        by, via: see `gateway.quota_admin.store.interface.Alteration`.
        more: fields at the end of the line.
    """
    entity, key = slot_of(change)
    fields = {"entity": entity_text(entity), "key": str(key), "old": old, "new": change.value}
    _log.info(QUOTA_CHANGED, audit=True, principal=by, peer=via, **fields, **more)
