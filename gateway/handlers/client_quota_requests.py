"""Answers DescribeClientQuotas and AlterClientQuotas (KIP-546) without forwarding them to the broker.

If the cluster decides about permissions, the gateway sends it a validate-only alteration, or a description that
selects nothing. While an alteration is made durable, the connection's next request waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from gateway.handlers.context import MAX_REQUEST_BYTES
from gateway.handlers.quota_rights import NOT_AUTHORISED, Refusal, decide
from gateway.observability.events import AdminApi, AdminOutcome
from gateway.quota_admin.rights import Asker, QuotaAdmin
from gateway.quota_admin.store.interface import Alteration
from gateway.session.routes import Route, Session
from protocol.api_keys import Api
from protocol.client_quota_messages import (
    ENTRIES_AT_ONCE,
    AlterEntry,
    AlterRequest,
    AlterResult,
    DescribeAnswer,
    DescribedEntity,
    DescribeRequest,
    QuotaOp,
    asking_for_nothing,
    encode_alter_answer,
    only_validating,
    parse_alter,
    parse_describe,
    read_alter_outcome,
    read_describe_outcome,
)
from protocol.error_codes import ErrorCode
from protocol.headers import correlation_id_of
from protocol.steps import Steps
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.quota_alterations import (
    EntityPlan,
    Planned,
    entity_of,
    known_key,
    known_types,
    names_of,
    plan_alterations,
)
from quotas.quota_filters import FilterError, Grouped, QuotaFilter, UnsupportedEntityType, make_filter

# A broker gives these answers only if the client may alter quotas; all others mean that it may not.
_MAY: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_REQUEST})


_AT_ONCE: Final = 1_000
"""How many quotas are filtered in one step."""

_FEW: Final = 10
"""Up to this number, describing all quotas takes less time than another step."""

_LINES_AT_ONCE: Final = 100
"""How many audit lines are written in one step, at up to 100 us each."""


class DescribeClientQuotasHandler:
    """Lists the configured quotas. It does not resolve which of them apply to a client, as in Kafka."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, admin: QuotaAdmin) -> None:
        self._admin = admin

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        session.run(self._serve(session, route.api, frame, now_ms))

    def _serve(self, session: Session, api: Api, frame: bytes, now_ms: int) -> Steps[None]:
        yield from ()  # makes this a generator, whose time is counted: a client may send thousands together
        request = parse_describe(frame, api)
        correlation_id = correlation_id_of(frame)

        def decided(refusal: Refusal | None, now_ms: int) -> None:
            answer = DescribeAnswer(correlation_id, api)
            if refusal is None:
                self._describe(session, request, answer, now_ms)
                return
            self._admin.audit.description_refused(_asker(session))
            self._admin.count(AdminApi.DESCRIBE_QUOTAS, AdminOutcome.REFUSED)
            # Kafka sends no text with this error.
            forbidden = refusal.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            reply = answer.refusal(refusal.error_code, None if forbidden else refusal.error_message)
            session.answer(reply, now_ms=now_ms)

        def read_outcome(frame: bytes) -> Refusal | None:
            code, message = read_describe_outcome(frame, api)
            return None if code == ErrorCode.NONE else Refusal(code, message)

        decide(self._admin, session, asking_for_nothing(frame, api), read_outcome, decided, now_ms=now_ms)

    def _describe(
        self,
        session: Session,
        request: DescribeRequest,
        answer: DescribeAnswer,
        now_ms: int,
    ) -> None:
        components = [(each.entity_type, each.match_type, each.match) for each in request.components]
        try:
            wanted = make_filter(components, strict=request.strict)
        except FilterError as exc:
            unsupported = isinstance(exc, UnsupportedEntityType)
            code = ErrorCode.UNSUPPORTED_VERSION if unsupported else ErrorCode.INVALID_REQUEST
            self._admin.count(AdminApi.DESCRIBE_QUOTAS, AdminOutcome.INVALID)
            session.answer(answer.refusal(code, str(exc)), now_ms=now_ms)
            return
        self._admin.count(AdminApi.DESCRIBE_QUOTAS, AdminOutcome.DONE)
        limits = self._admin.quotas.limits
        if wanted.entity is not None or limits.count <= _FEW:
            for entity, values in wanted.select(limits):
                answer.add(_described(entity, values))
            session.answer(answer.frame(), now_ms=now_ms)
        else:
            session.run(_steps(session, wanted, limits, answer))


def _steps(session: Session, wanted: QuotaFilter, limits: Limits, answer: DescribeAnswer) -> Steps[None]:
    """Build an answer in steps of a few milliseconds: with many quotas it takes seconds."""
    found: Grouped = {}
    yield
    # The quotas may change before the last step. Copied only now, so that requests still waiting have no copy.
    for key, of_key in limits.snapshot().items():
        rest = iter(of_key.items())
        for _ in range(0, len(of_key), _AT_ONCE):
            wanted.group(key, islice(rest, _AT_ONCE), found)
            yield
    for at, (entity, values) in enumerate(found.items(), start=1):
        answer.add(_described(entity, values))
        if at % (_AT_ONCE // 10) == 0:
            yield
    now_ms: int = yield
    session.answer(answer.frame(), now_ms=now_ms)


def _described(entity: QuotaEntity, values: Mapping[QuotaKey, float]) -> DescribedEntity:
    return DescribedEntity(names_of(entity), {key.value: value for key, value in values.items()})


class AlterClientQuotasHandler:
    """Checks an alteration as Kafka does and has it made durable before it answers."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, admin: QuotaAdmin) -> None:
        self._admin = admin

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        session.run(self._serve(session, route.api, frame, now_ms))

    def _serve(self, session: Session, api: Api, frame: bytes, now_ms: int) -> Steps[None]:
        request = yield from parse_alter(frame, api)
        exchange = _Alteration(self._admin, session, api, request, correlation_id_of(frame))
        question = only_validating(frame, request)
        decide(self._admin, session, question, exchange.read_outcome, exchange.decided, now_ms=now_ms)


class _Alteration:
    """One AlterClientQuotas request, from the decision about the client's permission to the answer."""

    __slots__ = ("_admin", "_api", "_correlation_id", "_request", "_session")

    def __init__(
        self,
        admin: QuotaAdmin,
        session: Session,
        api: Api,
        request: AlterRequest,
        correlation_id: int,
    ) -> None:
        self._admin = admin
        self._session = session
        self._api = api
        self._request = request
        self._correlation_id = correlation_id

    def read_outcome(self, frame: bytes) -> Refusal | None:
        """The refusal in the broker's answer to the same request with validate_only; None: the client may alter."""
        decision = read_alter_outcome(frame, self._api)
        if self._request.entries and not decision:
            return NOT_AUTHORISED  # an answer without entries gives no permission
        return next((Refusal(code, text) for code, text in decision if code not in _MAY), None)

    def decided(self, refusal: Refusal | None, now_ms: int) -> None:
        """Answer the refusal, or begin the alteration."""
        self._session.run(self._refuse(refusal, now_ms) if refusal is not None else self._carry_out(now_ms))

    def _carry_out(self, now_ms: int) -> Steps[None]:
        entries = [
            (entry.entity, [(op.key, op.value, op.remove) for op in entry.ops])
            for entry in self._request.entries
        ]
        quotas = self._admin.quotas
        planned = Planned()
        for at in range(0, len(entries), ENTRIES_AT_ONCE):
            if at:
                now_ms = yield
            plan_alterations(
                entries[at : at + ENTRIES_AT_ONCE], quotas, shared=self._admin.shared, planned=planned
            )
        plans = list(planned.by_names.values())
        changes = tuple(change for plan in plans for change in plan.changes)
        if self._request.validate_only or not changes:
            reply = yield from self._answer(plans, None)
            self._session.answer(reply, now_ms=now_ms)
            return
        asker = _asker(self._session)
        place = self._session.defer()

        def on_altered(failure: str | None, now_ms: int) -> Steps[None]:
            for at in range(0, len(replaced) if failure is None else 0, _LINES_AT_ONCE):
                if at:
                    now_ms = yield
                self._admin.note_changes(asker, replaced[at : at + _LINES_AT_ONCE])
            reply = yield from self._answer(plans, failure)
            self._session.fulfil(place, reply, now_ms=now_ms)

        # A shared store also gets changes that seem to have no effect, and reports itself if they had one.
        replaced = [
            (change, quotas.limits.get(change.entity, change.key))
            for change in changes
            if quotas.override(change.entity, change.key) != change.value
        ]
        self._admin.alter(Alteration(asker.principal, asker.via, changes), on_altered)

    def _refuse(self, refusal: Refusal, now_ms: int) -> Steps[None]:
        """One error for each entry of the request, whatever it contains, as in Kafka."""
        asker = _asker(self._session)
        refused = [(entry, op) for entry in self._request.entries for op in entry.ops]
        for at, (entry, op) in enumerate(refused):
            if at and at % _LINES_AT_ONCE == 0:
                now_ms = yield
            self._audit_refusal(asker, entry, op)
        self._admin.count(AdminApi.ALTER_QUOTAS, AdminOutcome.REFUSED)
        results = [AlterResult(entry.entity, *refusal) for entry in self._request.entries]
        reply = yield from encode_alter_answer(self._correlation_id, results, self._api)
        self._session.answer(reply, now_ms=now_ms)

    def _audit_refusal(self, asker: Asker, entry: AlterEntry, op: QuotaOp) -> None:
        old = None
        what = str(dict(entry.entity))
        if known_types(entry.entity):
            entity = entity_of(entry.entity)
            what = str(entity)
            key = known_key(op.key)
            old = None if key is None else self._admin.quotas.limits.get(entity, key)
        self._admin.audit.refused(asker, what, op.key, old, None if op.remove else op.value)

    def _answer(self, plans: list[EntityPlan], failure: str | None) -> Steps[bytes]:
        """The answer with one entry for each entity. `failure` is the error of the entities that were to change."""
        results = []
        for plan in plans:
            if plan.fault is not None:
                results.append(AlterResult(plan.names, ErrorCode.INVALID_REQUEST, plan.fault))
            elif failure is not None and plan.changes:
                results.append(AlterResult(plan.names, ErrorCode.KAFKA_STORAGE_ERROR, failure))
            else:
                results.append(AlterResult(plan.names))
        outcome = AdminOutcome.DONE
        if failure is not None:
            outcome = AdminOutcome.FAILED
        elif any(result.error_code for result in results):
            outcome = AdminOutcome.INVALID
        self._admin.count(AdminApi.ALTER_QUOTAS, outcome)
        return (yield from encode_alter_answer(self._correlation_id, results, self._api))


def _asker(session: Session) -> Asker:
    return Asker(session.user, session.peer, session.listener)
