"""Rights to see and change quotas by Kafka's API, with their metrics and audit lines.

Pure but for the functions it is given: they make an alteration durable, in its own time, and write the audit lines.
Without authentication every client is ANONYMOUS, which has no rights unless it is given them.
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
"""(why it is not in force, None when it is, and durable; now_ms); what takes long is a walk."""

Alter: TypeAlias = Callable[[Alteration, OnAltered], None]
"""Begins to make an alteration; the answer comes later, never from within the call."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The client of a request.

    Attributes:
        principal: the name; ANONYMOUS without authentication.
        peer: the address.
        listener: where the request came in.
    """

    principal: str
    peer: str
    listener: str

    @property
    def via(self) -> str:
        """How it came, for the store's history."""
        return f"listener {self.listener}, {self.peer}"


class Audit(Protocol):
    """Writes one line for each change and each refusal."""

    def changed(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """Durable and in force; None: not set."""

    def refused(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """The client may not; nothing was changed."""

    def description_refused(self, asker: Asker) -> None:
        """The client may not see the quotas."""


class QuotaAdmin:
    """See the module.

    Attributes:
        quotas: what is in force, and what of it the file says.
        alter: see `Alter`.
        audit: see `Audit`.
        shared: other gateways set quotas too, and `quotas` may not have the latest.
        outcomes: how many requests came to what.
        changes: quotas and limits changed so far.
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
        """Nothing happens yet.

        Args:
            quotas: see above.
            alter: see above.
            audit: see above.
            authorize: for all but the admins.
            admins: names of principals that always may.
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
        self._admins = frozenset(map(cut_name, admins))  # as the users of sessions are

    def may(self, principal: str) -> bool | None:
        """Whether a principal may look at quotas and change them; None: the cluster is to be asked."""
        if principal in self._admins or self._authorize is Authorize.ANYONE:
            return True
        return None if self.asks_cluster else False

    def count(self, api: AdminApi, outcome: AdminOutcome) -> None:
        """A request has come to this."""
        self.outcomes[api, outcome] += 1

    def note_changes(self, asker: Asker, changes: Iterable[tuple[QuotaChange, float | None]]) -> None:
        """Changes are in force, each with the value before it."""
        for change, old in changes:
            self.changes += 1
            new = self.quotas.limits.get(change.entity, change.key)
            self.audit.changed(asker, str(change.entity), change.key, old, new)
