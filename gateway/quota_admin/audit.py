"""Audit log lines for clients: changes of quotas and limits, and refusals.

They are written at every log level. In a flood of refusals some lines are left out. Every change is written.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.observability.logging_setup import audit_logger, flooded
from gateway.quota_admin.rights import Asker
from gateway.quota_admin.store.audit import QUOTA_CHANGED

_REFUSED: Final = "quota_change_refused"
_NOT_DESCRIBED: Final = "quota_description_refused"

_log = audit_logger()


class AuditLog:
    """See `gateway.quota_admin.rights.Audit`."""

    def changed(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """See `Audit`."""
        _log.info(QUOTA_CHANGED, audit=True, **_names(asker), entity=what, key=str(key), old=old, new=new)

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
