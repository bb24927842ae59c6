"""A quota admin whose alterations become durable when a test says so, or fail, and whose audit lines are kept."""

from __future__ import annotations

from collections.abc import Iterable

from config.sections.quota_admin import Authorize
from gateway.quota_admin.broker_limits import BrokerLimits
from gateway.quota_admin.rights import Asker, OnAltered, QuotaAdmin
from gateway.quota_admin.store.interface import Alteration, LimitChange
from protocol.steps import finish
from quotas.layered_quotas import LayeredQuotas, QuotaChange
from quotas.limits import Limits


class RecordingAudit:
    """Keeps its calls, as (event, principal, entity, key, old, new)."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def changed(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """See `Audit`."""
        self.lines.append(("changed", asker.principal, what, str(key), old, new))

    def refused(
        self, asker: Asker, what: str, key: str, old: float | str | None, new: float | str | None
    ) -> None:
        """See `Audit`."""
        self.lines.append(("refused", asker.principal, what, str(key), old, new))

    def description_refused(self, asker: Asker) -> None:
        """See `Audit`."""
        self.lines.append(("description refused", asker.principal))


class ScriptedAlterations:
    """A quota admin whose store is the test.

    Attributes:
        admin: for a `HandlerContext`.
        quotas: the quotas in force.
        audit: the audit lines.
        waiting: alterations that are not durable yet, oldest first.
        limits: limits of brokers, which alterations may change too.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        authorize: Authorize = Authorize.ANYONE,
        admins: Iterable[str] = (),
    ) -> None:
        self.quotas = LayeredQuotas(limits or Limits())
        self.audit = RecordingAudit()
        self.admin = QuotaAdmin(self.quotas, self._alter, self.audit, authorize=authorize, admins=admins)
        self.waiting: list[tuple[Alteration, OnAltered]] = []
        self.limits: BrokerLimits | None = None

    def _alter(self, alteration: Alteration, on_altered: OnAltered) -> None:
        self.waiting.append((alteration, on_altered))

    def finish(self, *, now_ms: int, failure: str | None = None) -> Alteration:
        """Makes the oldest alteration durable, or lets it fail. Its client gets a response."""
        alteration, on_altered = self.waiting.pop(0)
        if failure is None:
            self.quotas.apply(change for change in alteration.changes if isinstance(change, QuotaChange))
            limits = {each.name: each.value for each in alteration.changes if isinstance(each, LimitChange)}
            if self.limits is not None:
                self.limits.put_in_force(self.limits.merged(limits))
        steps = on_altered(failure, now_ms)
        if steps is not None:
            finish(steps)
        return alteration
