"""The audit lines: one `quota_changed` for each change of a quota or limit, however it came, and the refusals.

Written at every log level. A flood of refusals is cut; changes are written all.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.observability.logging_setup import audit_logger, flooded
from gateway.quota_admin.rights import Asker
from gateway.quota_admin.store.changes import StoredChange, Value, entity_text, slot_of

_CHANGED: Final = "quota_changed"
_REFUSED: Final = "quota_change_refused"
_NOT_DESCRIBED: Final = "quota_description_refused"

_log = audit_logger()


def audit_change(change: StoredChange, old: Value | None, *, by: str, via: str, **more: object) -> None:
    """The line of a change that did not come from a client of a listener here.

    Args:
        change: durable and in force.
        old: the override before it.
        by, via: see `gateway.quota_admin.store.interface.Alteration`.
        more: fields at the end of the line.
    """
    entity, key = slot_of(change)
    fields = {"entity": entity_text(entity), "key": str(key), "old": old, "new": change.value}
    _log.info(_CHANGED, audit=True, principal=by, peer=via, **fields, **more)


class AuditLog:
    """See `gateway.quota_admin.rights.Audit`."""

    def changed(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """See `Audit`."""
        _log.info(_CHANGED, audit=True, **_names(asker), entity=what, key=str(key), old=old, new=new)

    def refused(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """See `Audit`."""
        if not flooded(_REFUSED):
            _log.warning(_REFUSED, **_names(asker), entity=what, key=str(key), old=old, new=new)

    def description_refused(self, asker: Asker) -> None:
        """See `Audit`."""
        if not flooded(_NOT_DESCRIBED):
            _log.warning(_NOT_DESCRIBED, **_names(asker))


def _names(asker: Asker) -> dict[str, Any]:
    return {"principal": asker.principal, "peer": asker.peer, "listener": asker.listener}
