"""IncrementalAlterConfigs: sets connection limits of brokers here, and forwards all other settings.

A resource may name settings of both kinds. The gateway checks its own settings first. If one is wrong, the resource
is refused and none of its settings are forwarded. Otherwise the broker gets the other settings, and the gateway's own
are changed after the broker has accepted those.
"""

from __future__ import annotations

from gateway.handlers.context import MAX_REQUEST_BYTES
from gateway.handlers.own_topics import OwnTopicsHandler
from gateway.handlers.quota_rights import NOT_AUTHORISED, Refusal, decide
from gateway.observability.events import AdminApi, AdminOutcome
from gateway.quota_admin.broker_limits import BrokerLimits, Changes, LimitError
from gateway.quota_admin.rights import Asker, QuotaAdmin
from gateway.quota_admin.store.interface import ALL_BROKERS, Alteration, LimitChange
from gateway.session.mute import MuteReason
from gateway.session.routes import Route, Session
from gateway.upstream.own_topics import OwnTopics
from protocol.broker_configs import (
    BROKER,
    ConfigsRequest,
    Operation,
    ResourceOps,
    ResourceResult,
    encode_configs_answer,
    parse_configs_request,
    read_configs_answer,
)
from protocol.error_codes import ErrorCode
from protocol.headers import correlation_id_of
from protocol.named_topics import TOPIC_RESOURCE


class BrokerLimitsHandler:
    """Forwards requests without a setting of the gateway, and splits the others."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, admin: QuotaAdmin, limits: BrokerLimits, own_topics: OwnTopics) -> None:
        self._admin = admin
        self._limits = limits
        self._own_topics = own_topics
        self._others = OwnTopicsHandler(own_topics) if own_topics else None

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        request = parse_configs_request(frame, route.api)
        keys = self._limits.keys
        if not any(
            resource.resource_type == BROKER and any(op.name in keys for op in resource.ops)
            for resource in request.resources
        ):
            if self._others is None:
                session.forward(frame, route.api)
            else:
                self._others.on_request(session, route, frame, now_ms=now_ms)
            return
        exchange = _Exchange(
            self._admin, self._limits, self._own_topics, session, request, correlation_id_of(frame)
        )
        question = request.asking_for_the_right()
        decide(self._admin, session, question, exchange.read_outcome, exchange.decided, now_ms=now_ms)


class _Exchange:
    """One request that names settings of the gateway."""

    __slots__ = (
        "_admin",
        "_correlation_id",
        "_limits",
        "_own_topics",
        "_request",
        "_results",
        "_session",
        "_throttle_time_ms",
    )

    def __init__(
        self,
        admin: QuotaAdmin,
        limits: BrokerLimits,
        own_topics: OwnTopics,
        session: Session,
        request: ConfigsRequest,
        correlation_id: int,
    ) -> None:
        self._admin = admin
        self._limits = limits
        self._own_topics = own_topics
        self._session = session
        self._request = request
        self._correlation_id = correlation_id
        self._results: dict[int, ResourceResult] = {}  # place in the request -> its answer, once it is known
        self._throttle_time_ms = 0

    def read_outcome(self, frame: bytes) -> Refusal | None:
        """Why the broker would not let the client alter settings of all brokers; None only if it surely would."""
        _, results = read_configs_answer(frame, self._request.api)
        if not results:
            return NOT_AUTHORISED
        codes = (Refusal(each.error_code, each.error_message) for each in results)
        return next((refusal for refusal in codes if refusal.error_code != ErrorCode.NONE), None)

    def decided(self, refusal: Refusal | None, now_ms: int) -> None:
        """Check the gateway's settings, and forward the others to the broker."""
        rest: list[ResourceOps] = []
        for at, resource in enumerate(self._request.resources):
            if resource.resource_type == TOPIC_RESOURCE and resource.name.encode() in self._own_topics.names:
                self._own_topics.refusals += 1
                self._results[at] = ResourceResult(
                    resource.resource_type, resource.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
                )
                continue
            ours, others = self._split(resource)
            if ours.ops:
                fault = refusal or self._fault_of(ours)
                if fault is not None:
                    self._results[at] = ResourceResult(resource.resource_type, resource.name, *fault)
                    if refusal is not None:
                        self._audit_refusal(ours)
                    continue
                if not others.ops:
                    self._results[at] = ResourceResult(resource.resource_type, resource.name)
                    continue
            rest.append(others)
        if rest:
            self._session.mute(MuteReason.AWAITING_REPLY)
            frame = self._request.encode(rest, validate_only=self._request.validate_only)
            self._session.ask_upstream(frame, self._correlation_id, self._on_broker_reply)
        else:
            self._make(now_ms)

    def _split(self, resource: ResourceOps) -> tuple[ResourceOps, ResourceOps]:
        keys = self._limits.keys if resource.resource_type == BROKER else frozenset()
        parts = (
            tuple(op for op in resource.ops if op.name in keys),
            tuple(op for op in resource.ops if op.name not in keys),
        )
        ours, others = (ResourceOps(resource.resource_type, resource.name, ops) for ops in parts)
        return ours, others

    def _fault_of(self, ours: ResourceOps) -> Refusal | None:
        try:
            self._limits.planned(ours.name, ours.ops, after={})
        except LimitError as exc:
            return Refusal(exc.code, str(exc))
        return None

    def _audit_refusal(self, ours: ResourceOps) -> None:
        for op in ours.ops:
            wanted = op.value if op.operation == Operation.SET else None
            self._admin.audit.refused(
                _asker(self._session), _what(ours), op.name, self._limits.values.get(op.name), wanted
            )

    def _on_broker_reply(self, frame: bytes, now_ms: int) -> None:
        self._throttle_time_ms, results = read_configs_answer(frame, self._request.api)
        answered = {(result.resource_type, result.name): result for result in results}
        for at, resource in enumerate(self._request.resources):
            result = answered.get((resource.resource_type, resource.name))
            if at not in self._results and result is not None:
                self._results[at] = result
        self._session.release(MuteReason.AWAITING_REPLY)
        self._make(now_ms)

    def _make(self, now_ms: int) -> None:
        """Change the gateway's settings of the accepted resources, then answer."""
        changes: Changes = {}
        makers = []
        for at, resource in enumerate(self._request.resources):
            ours, _ = self._split(resource)
            result = self._results.get(at)
            if not ours.ops or result is None or result.error_code != ErrorCode.NONE:
                continue
            try:
                changes = self._limits.planned(ours.name, ours.ops, after=changes)
            except LimitError as exc:  # wrong only in combination with an earlier resource of the request
                self._results[at] = ResourceResult(resource.resource_type, resource.name, exc.code, str(exc))
                continue
            makers.append(at)
        before = self._limits.values
        # With a shared store, another gateway may have changed a value that seems to be set already.
        same = self._limits.merged(changes) == before and not self._admin.shared
        if not changes or same or self._request.validate_only:
            self._session.answer(self._answer(), now_ms=now_ms)
            return
        place = self._session.defer()
        asker = _asker(self._session)

        def on_saved(failure: str | None, now_ms: int) -> None:
            if failure is None:
                for key, value in changes.items():
                    if before.get(key) != value:
                        self._admin.changes += 1
                        self._admin.audit.changed(asker, ALL_BROKERS, key, before.get(key), value)
            else:
                for at in makers:
                    resource = self._request.resources[at]
                    self._results[at] = ResourceResult(
                        resource.resource_type, resource.name, ErrorCode.KAFKA_STORAGE_ERROR, failure
                    )
            self._session.fulfil(place, self._answer(), now_ms=now_ms)

        made = tuple(LimitChange(key, value) for key, value in changes.items())
        self._admin.alter(Alteration(asker.principal, asker.via, made), on_saved)

    def _answer(self) -> bytes:
        codes = {result.error_code for result in self._results.values()}
        outcome = AdminOutcome.DONE
        if ErrorCode.KAFKA_STORAGE_ERROR in codes:
            outcome = AdminOutcome.FAILED
        elif ErrorCode.CLUSTER_AUTHORIZATION_FAILED in codes:
            outcome = AdminOutcome.REFUSED
        elif codes - {ErrorCode.NONE}:
            outcome = AdminOutcome.INVALID
        self._admin.count(AdminApi.ALTER_LIMITS, outcome)
        results = [self._results[at] for at in sorted(self._results)]
        return encode_configs_answer(
            self._correlation_id, results, self._request.api, throttle_time_ms=self._throttle_time_ms
        )


def _what(resource: ResourceOps) -> str:
    return f"broker {resource.name}" if resource.name else "all brokers"


def _asker(session: Session) -> Asker:
    return Asker(session.user, session.peer, session.listener)
