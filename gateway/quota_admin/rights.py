"""Rights to see and change quotas by Kafka's API, with their metrics and audit lines.

Pure except for the functions passed to it: they make an alteration durable, asynchronously, and write the audit
lines. Without authentication every client is ANONYMOUS, which has no rights unless the configuration grants them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from config.sections.quota_admin import Authorize
from gateway.observability.events import AdminApi, AdminOutcome
from gateway.quota_admin.store.interface import Alteration
from protocol.steps import Steps
from quotas.entities import cut_name
from quotas.layered_quotas import LayeredQuotas, QuotaChange

OnAltered: TypeAlias = Callable[[str | None, int], Steps[None] | None]
"""Arguments: why the alteration is not in force, None when it is in force and durable; now_ms. Long work is returned
as steps."""

Alter: TypeAlias = Callable[[Alteration, OnAltered], None]
"""Starts an alteration. The result is reported later, never from within the call."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The client of a request.

    Attributes:
        principal: the name; ANONYMOUS without authentication.
        peer: the address.
        listener: the listener that received the request.
    """

    principal: str
    peer: str
    listener: str

    @property
    def via(self) -> str:
        """The way of the request, for the store's history."""
        return f"listener {self.listener}, {self.peer}"


class Audit(Protocol):
    """Writes one line for each change and each refusal."""

    def changed(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """A change is durable and in force. `old` and `new`: None means not set."""

    def refused(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """The client has no right to a change; nothing was changed."""

    def description_refused(self, asker: Asker) -> None:
        """The client has no right to see the quotas."""


class QuotaAdmin:
    """See the module.

    Attributes:
        quotas: the quotas in force, and their values in the file.
        alter: see `Alter`.
        audit: see `Audit`.
        shared: other gateways set quotas too, so `quotas` may be out of date.
        outcomes: the number of requests by API and outcome.
        changes: the number of quotas and limits changed so far.
    """

    def __init__(
        self,
        quotas: LayeredQuotas,
        alter: Alter,
        audit: Audit,
        *,
        authorize: Authorize,
        admins: Iterable[str] = (),
        shared: bool = False,
    ) -> None:
        """Starts nothing yet.

        Args:
            quotas: see above.
            alter: see above.
            audit: see above.
            authorize: decides for all principals except the admins.
            admins: names of principals that always have the rights.
            shared: see above.
        """
        self.quotas: Final = quotas
        self.alter: Final = alter
        self.audit: Final = audit
        self.shared: Final = shared
        self.outcomes: Counter[tuple[AdminApi, AdminOutcome]] = Counter()
        self.changes = 0
        self.set_rights(authorize, admins)

    def set_rights(self, authorize: Authorize, admins: Iterable[str]) -> None:
        """Replace the rights."""
        self._authorize = authorize
        self.asks_cluster = authorize is Authorize.ASK_CLUSTER
        self._admins = frozenset(map(cut_name, admins))  # users of sessions are cut in the same way

    def may(self, principal: str) -> bool | None:
        """Whether a principal may see quotas and change them; None: the cluster decides."""
        if principal in self._admins or self._authorize is Authorize.ANYONE:
            return True
        return None if self.asks_cluster else False

    def count(self, api: AdminApi, outcome: AdminOutcome) -> None:
        """Count the outcome of a request."""
        self.outcomes[api, outcome] += 1

    def note_changes(self, asker: Asker, changes: Iterable[tuple[QuotaChange, float | None]]) -> None:
        """Count changes that are in force, and write their audit lines. Each comes with its previous value."""
        for change, old in changes:
            self.changes += 1
            new = self.quotas.limits.get(change.entity, change.key)
            self.audit.changed(asker, str(change.entity), change.key, old, new)
