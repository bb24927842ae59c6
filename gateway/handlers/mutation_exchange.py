"""One CreateTopics, CreatePartitions or DeleteTopics request, from its acceptance to its reply.

The exchange asks the cluster, lets the broker validate topics that seem free, charges, forwards, and merges the
broker's reply with the gateway's refusals. `mutation_phases.py` has the phases and their order, and
`mutation_findings.py` the cost of each topic. `mutation_charges.py` charges it, and settles the charges with the
broker's reply.
The gateway uses the client's own upstream connection, so the cluster answers as it would answer this principal.

The rule: a request that could create partitions is forwarded only when it is paid for. Metadata may be out of date,
and shows only what this principal may see. So the broker only validates a topic that seems to cost nothing (it
exists, its name is wrong, it is named twice), and its refusal is the client's answer. A topic that the broker would
not refuse is charged as requested (docs/decisions/0011-mutation-cost.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from gateway.handlers.context import HandlerContext
from gateway.handlers.mutation_charges import TOPICS_AT_ONCE, MutationCharges, MutationClient
from gateway.handlers.mutation_findings import TopicFindings
from gateway.handlers.mutation_phases import Event, Phase, phase_after
from gateway.handlers.recent_topics import NOTE_MS, OpenCharge, undone_permits
from gateway.observability.throttle_journal import JournalClient, Reading
from gateway.observability.traces import Trace
from gateway.session.mute import MuteReason
from gateway.session.response_queue import CollectedAnswer
from gateway.session.routes import Session
from gateway.usage.mutations import record_mutations
from gateway.usage.row import UsageRow
from protocol import codec, throttle
from protocol.api_keys import Api, ApiKey
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError
from protocol.headers import correlation_id_of
from protocol.metadata import read_topics
from protocol.steps import Steps
from protocol.topic_mutations import NO_TOPIC_ID, TopicIdentity, TopicMutation, TopicMutations
from protocol.topic_names import is_valid_topic_name
from protocol.topic_results import (
    TopicResult,
    TopicResults,
    by_identity,
    encode_topic_results,
    has_topic_id,
    make_result,
    parse_topic_results,
)
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity
from quotas.mutations import MutationDecision
from quotas.resolution import Match, Rule, TrackerKey
from quotas.usage_record import Limit


class MutationExchange:
    """See the module."""

    __slots__ = (
        "_answers_due",
        "_client",
        "_context",
        "_correlation_id",
        "_due",
        "_findings",
        "_frame",
        "_phase",
        "_request",
        "_session",
        "_trace",
        "_usage",
    )

    def __init__(
        self,
        context: HandlerContext,
        session: Session,
        request: TopicMutations,
        frame: bytes,
    ) -> None:
        """Prepare the exchange.

        Args:
            context: the listener's context.
            session: the client's session.
            request: the parsed request.
            frame: its bytes, which are relayed unchanged if no topic is refused.
        """
        self._context = context
        self._session = session
        self._request = request
        self._frame = frame
        self._correlation_id = correlation_id_of(frame)
        self._client = MutationClient(
            session.user, session.client_id_of(frame), session.kind, session.address
        )
        self._phase = Phase.ASKING
        self._answers_due = 0
        self._due: dict[bytes, OpenCharge] = {}  # of earlier requests that timed out
        self._findings = self._no_findings(b"\x00" if request.api.flexible else b"")
        self._usage: UsageRow | None = None
        self._trace: Trace | None = None

    def _no_findings(self, tail: bytes) -> TopicFindings:
        context = self._context
        return TopicFindings(
            self._request, context.recent_topics, context.own_topics, context.topology.cluster, tail=tail
        )

    def _enter_phase_after(self, event: Event) -> None:
        self._phase = phase_after(self._phase, event)

    # -- asking ----------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> Steps[None]:
        """Ask the cluster about the topics, and continue with its answer."""
        self._session.mute(MuteReason.AWAITING_REPLY)
        self._begin_trace(now_ms)
        self._context.recent_topics.catch_up()
        self._due = self._context.recent_topics.take_due(
            self._client.user, self._client.client_id, now_ms=now_ms
        )
        yield from self._ask(now_ms)

    def _ask_again(self, now_ms: int) -> Steps[None]:
        """Ask once more. The validated topics may have changed as well, so the findings are new."""
        self._due = {}
        self._findings = self._no_findings(self._findings.validated.tail)
        yield from self._ask(now_ms)

    def _ask(self, now_ms: int) -> Steps[None]:
        self._findings.asked_ms = now_ms
        topics = self._request.topics
        names = {topic.name for topic in topics if topic.name is not None and is_valid_topic_name(topic.name)}
        names |= self._due.keys()
        ids = {topic.topic_id for topic in topics if topic.name is None and topic.topic_id != NO_TOPIC_ID}
        # Results with topic ids equal Kafka's only if the gateway knows the ids. A broker with such results has
        # Metadata version 10 (both came with Kafka 2.8). Questions by id need version 12 (Kafka 3.1).
        api = codec.METADATA_WITH_IDS if has_topic_id(self._request.api) else codec.METADATA_BY_NAME
        if names:
            question = codec.metadata_by_name_request(
                sorted(names), client_id=self._client.client_id, api=api
            )
            self._ask_cluster(question, api, by_id=False)
        if ids:
            question = codec.metadata_by_id_request(sorted(ids), client_id=self._client.client_id)
            self._ask_cluster(question, codec.METADATA_BY_ID, by_id=True)
        if not self._answers_due:
            yield from self._validate(now_ms)

    def _ask_cluster(self, question: bytes, api: Api, *, by_id: bool) -> None:
        self._answers_due += 1
        on_reply = partial(self._on_cluster_reply, api, by_id)
        self._session.ask_upstream(question, codec.OWN_CORRELATION_ID, on_reply)

    def _on_cluster_reply(self, api: Api, by_id: bool, frame: bytes, now_ms: int) -> Steps[None]:
        for facts in (yield from read_topics(frame, api)):
            self._findings.learn(facts, by_id=by_id)
        self._answers_due -= 1
        if not self._answers_due:
            self._refund_undone(now_ms)
            yield from self._validate(now_ms)

    def _refund_undone(self, now_ms: int) -> None:
        """Refund earlier requests that timed out, if the cluster shows that they were not done."""
        for name, charge in self._due.items():
            undone = undone_permits(self._findings.facts_by_name(name), charge)
            if undone is not None:
                self._context.mutations.refund(charge.decision, undone, now_ms=now_ms)

    def _validate(self, now_ms: int) -> Steps[None]:
        """Let the broker validate the topics that seem to cost nothing."""
        request, findings = self._request, self._findings
        findings.sort_out()
        creates = request.api.key is not ApiKey.DELETE_TOPICS
        limited = self._is_limited()
        free = []
        for done, topic in enumerate(request.topics, start=1):
            if topic.identity not in findings.own and not findings.permits(topic):
                free.append(topic)
            if done % TOPICS_AT_ONCE == 0:
                now_ms = yield
        if not (creates and limited and free) or request.validate_only:
            yield from self._decide(now_ms)
        elif request.api.key is ApiKey.CREATE_TOPICS and request.api.version == 0:
            # The API has no validation: the only way to ask is to do it.
            findings.assume_done(free)
            yield from self._decide(now_ms)
        else:
            self._enter_phase_after(Event.SOME_SEEM_FREE)
            question = request.encode(free, validation_id=codec.OWN_CORRELATION_ID)
            on_reply = partial(self._on_validated, {topic.identity for topic in free})
            if self._trace is not None:
                self._trace.phase("validate", now_ms=now_ms)
            self._session.ask_upstream(question, codec.OWN_CORRELATION_ID, on_reply)

    def _on_validated(self, free: set[TopicIdentity], frame: bytes, now_ms: int) -> Steps[None]:
        answer = yield from parse_topic_results(frame, self._request.api)
        self._findings.take_validation(free, answer)
        yield from self._decide(now_ms)

    def _is_limited(self) -> bool:
        return self._context.mutations.is_limited(
            self._client.user, self._client.client_id, self._client.address
        )

    # -- deciding and forwarding -----------------------------------------------------------------------------

    def _decide(self, now_ms: int) -> Steps[None]:
        """Charge the topics if the findings can be trusted. Otherwise ask again, or charge them by guess."""
        self._enter_phase_after(Event.COSTS_KNOWN)
        if not self._request.api.strict and self._put_back(now_ms):
            return
        limited = self._is_limited()
        if limited and self._is_too_old(now_ms):
            self._enter_phase_after(Event.ANSWERS_TOO_OLD)
            if self._phase is Phase.ASKING_AGAIN:
                yield from self._ask_again(now_ms)
                return
        yield from self._charge(limited, now_ms)

    def _put_back(self, now_ms: int) -> bool:
        """Let the request wait and begin again if another connection has caused a large debt meanwhile."""
        client, session = self._client, self._session
        held_ms = self._context.mutations.held_ms(
            client.user, client.client_id, kind=client.kind, address=client.address, now_ms=now_ms
        )
        if held_ms:
            session.put_back(self._frame)
            session.throttle(held_ms, now_ms=now_ms)
            self._end("held", Event.PUT_BACK, None, now_ms)
        return held_ms > 0

    def _is_too_old(self, now_ms: int) -> bool:
        waited_ms = now_ms - self._findings.asked_ms
        return waited_ms > NOTE_MS and self._request.api.key is not ApiKey.CREATE_TOPICS

    def _charge(self, limited: bool, now_ms: int) -> Steps[None]:
        """Charge in wire order. Forward the admitted topics, or answer if there are none."""
        context, findings = self._context, self._findings
        context.own_topics.refusals += bool(findings.own)
        guessing = self._phase is Phase.GUESSING
        charges = MutationCharges(self._request, self._client, findings, context.mutations, guessing=guessing)
        admitted, now_ms = yield from charges.charge(now_ms, limited=limited)
        enabled = context.mutations_enabled
        self._observe(charges, now_ms)
        charges.charge_overtaken(admitted, now_ms)
        if admitted or not self._request.topics:
            self._enter_phase_after(Event.CHARGED if enabled else Event.NOT_CHARGED)
            self._forward(admitted, charges, now_ms)
        else:
            self._session.begin_answer(now_ms=now_ms)
            reply = self._merge(TopicResults(0, (), findings.validated.tail), charges, now_ms)
            self._session.answer(reply, now_ms=now_ms)
            self._end("answered_here", Event.ANSWERED, charges, now_ms)
        self._frame = b""

    def _forward(self, admitted: list[TopicMutation], charges: MutationCharges, now_ms: int) -> None:
        request = self._request
        if charges.under_way:
            self._context.recent_topics.catch_up()
        answer = CollectedAnswer(partial(self._on_broker_reply, charges))
        frame = request.encode(admitted) if len(admitted) < len(request.topics) else self._frame
        self._session.forward(frame, request.api, answer)
        if self._trace is not None:
            self._trace.phase("broker", now_ms=now_ms)

    def _observe(self, charges: MutationCharges, now_ms: int) -> None:
        request, usage, decided = self._request, self._context.usage, charges.decision.topics
        if usage is not None:
            self._usage = record_mutations(
                usage,
                self._session.listener,
                self._client.user,
                self._client.client_id,
                request.api.key.name.lower(),
                zip((topic.identity for topic in request.topics), decided, strict=True),
                strict=request.api.strict,
                correlation_id=self._correlation_id,
                now_ms=now_ms,
            )
        if decided:
            self._context.observer.mutations_decided(
                request.api.key,
                decided[0].rule,
                accepted_permits=charges.permits,
                refused_topics=len(charges.refused),
            )

    # -- the reply -------------------------------------------------------------------------------------------

    def _on_broker_reply(self, charges: MutationCharges, frame: bytes, now_ms: int) -> Steps[bytes | None]:
        if self._phase is Phase.FORWARDED_UNCHARGED:
            with suppress(ProtocolError):
                answer = yield from parse_topic_results(frame, self._request.api)
                now_ms = yield from charges.settle(answer.results, now_ms)
                if self._findings.own:
                    frame = self._merge(answer, charges, now_ms)
            reply = frame
        else:
            answer = yield from parse_topic_results(frame, self._request.api)
            now_ms = yield from charges.settle(answer.results, now_ms)
            if charges.refused or self._findings.refused_by_broker or self._findings.own:
                reply = self._merge(answer, charges, now_ms)
            else:
                reply = self._with_throttle_time(frame, answer, charges, now_ms)
        self._end("answered", Event.ANSWERED, charges, now_ms)
        return reply

    def _with_throttle_time(
        self, frame: bytes, answer: TopicResults, charges: MutationCharges, now_ms: int
    ) -> bytes:
        """The broker's reply, with the throttle time, to a request of which the gateway refused no topic."""
        patched = bytearray(frame)
        final_ms = throttle.patch(patched, self._request.api, charges.throttle_left_ms(now_ms))
        self._throttle(final_ms, answer.throttle_time_ms, charges, now_ms)
        return bytes(patched)

    def _merge(self, answer: TopicResults, charges: MutationCharges, now_ms: int) -> bytes:
        """The reply in request order. Results of the broker that match no topic of the request come last."""
        api, findings = self._request.api, self._findings
        results = findings.validated.results + answer.results
        upstream_ms = max(answer.throttle_time_ms, findings.validated.throttle_time_ms)
        found = by_identity(results)
        merged = []
        for topic in self._request.topics:
            if topic.identity in findings.own:
                merged.append(self._refusal(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif topic.identity in charges.refused:
                merged.append(self._refusal(topic, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
            elif findings.is_single(topic) and topic.identity in found:
                merged.append(found[topic.identity])
        placed = {id(result) for result in merged}
        merged += [result for result in results if id(result) not in placed]
        throttle_time_ms = max(charges.throttle_left_ms(now_ms), upstream_ms)
        self._throttle(throttle_time_ms, upstream_ms, charges, now_ms)
        return encode_topic_results(self._correlation_id, throttle_time_ms, merged, api, tail=answer.tail)

    def _refusal(self, topic: TopicMutation, error_code: ErrorCode) -> TopicResult:
        """A refusal as Kafka sends it: with both the name and the id if the topic exists."""
        facts = self._findings.facts_of(topic)
        if facts is not None and facts.error_code == ErrorCode.NONE:
            topic = replace(topic, name=facts.name, topic_id=facts.topic_id)
        return make_result(topic, error_code, self._request.api)

    def _throttle(
        self, throttle_time_ms: int, upstream_ms: int, charges: MutationCharges, now_ms: int
    ) -> None:
        if throttle_time_ms <= 0:
            return
        if self._trace is not None:
            self._trace.attributes["sluice.throttle_ms"] = throttle_time_ms
        throttle_client(
            self._context,
            self._session,
            self._client,
            self._request.api.key,
            charges.decided,
            throttle_time_ms,
            upstream_ms=upstream_ms,
            usage=self._usage,
            now_ms=now_ms,
        )

    def _end(self, outcome: str, event: Event, charges: MutationCharges | None, now_ms: int) -> None:
        self._enter_phase_after(event)
        self._session.release(MuteReason.AWAITING_REPLY)
        self._end_trace(outcome, charges, now_ms)

    # -- the trace -------------------------------------------------------------------------------------------

    def _begin_trace(self, now_ms: int) -> None:
        request = self._request
        self._trace = trace = self._session.begin_trace(request.api.key.name.lower(), now_ms=now_ms)
        if trace is not None:
            trace.attributes |= {
                "enduser.id": self._client.user,
                "messaging.client.id": self._client.client_id,
                "sluice.api_version": request.api.version,
                "sluice.correlation_id": self._correlation_id,
                "sluice.topics": len(request.topics),
                "sluice.validate_only": request.validate_only,
            }
            trace.phase("ask_cluster", now_ms=now_ms)

    def _end_trace(self, outcome: str, charges: MutationCharges | None, now_ms: int) -> None:
        if (trace := self._trace) is not None:
            permits, refused = (0.0, 0) if charges is None else (charges.permits, len(charges.refused))
            trace.end(now_ms=now_ms, outcome=outcome, permits=permits, refused_topics=refused)


def throttle_client(
    context: HandlerContext,
    session: Session,
    client: MutationClient,
    key: ApiKey,
    decided: Sequence[MutationDecision],
    throttle_time_ms: int,
    *,
    upstream_ms: int,
    usage: UsageRow | None,
    now_ms: int,
) -> None:
    """Mute the client for the throttle time of its reply, and record it in metrics, usage records and journal.

    Args:
        context: the listener's context.
        session: the client's session.
        client: the client.
        key: the API of the request.
        decided: the decisions, topic by topic, in the order of time.
        throttle_time_ms: the throttle time in the reply.
        upstream_ms: the broker's throttle time.
        usage: the client's row in the usage records; None: no usage records are kept.
        now_ms: the time.
    """
    if throttle_time_ms <= 0:
        return
    until_ms = session.throttle(throttle_time_ms, now_ms=now_ms)
    if usage is not None:
        usage.mute(until_ms, now_ms=now_ms)
    # A throttle by the broker is not recorded here: the broker's own metrics have it.
    by = ThrottledBy.CONTROLLER_MUTATION
    if throttle_time_ms > upstream_ms and session.claim_throttle(by, throttle_time_ms, throttle_time_ms):
        # The decision whose wait is sent: the last that refused a topic or caused a debt.
        told = next((each for each in reversed(decided) if each.throttle_time_ms > 0), decided[0])
        group = told.group
        context.mutations.count_throttle(
            client.user, client.client_id, throttle_time_ms, kind=client.kind, group=group, now_ms=now_ms
        )
        if usage is not None:
            usage.delay(throttle_time_ms, beside=(Limit.GROUP, group) if group else None)
        rule = Rule.GROUP if group else decided[0].rule
        context.observer.throttled(key, rule, throttle_time_ms, by=by)
        _explain(context, client, key, told, throttle_time_ms, now_ms)


def _explain(
    context: HandlerContext,
    client: MutationClient,
    key: ApiKey,
    told: MutationDecision,
    throttle_time_ms: int,
    now_ms: int,
) -> None:
    if context.journal is None:
        return
    limit, tokens, _ = context.mutations.level(told.tracker_key, told.group, now_ms=now_ms)
    match = Match(told.limit if limit is None else limit, told.rule, told.tracker_key)
    if told.group:
        match = Match(limit, Rule.GROUP, TrackerKey("", ""), beside=QuotaEntity(group=told.group))
    context.journal.throttled(
        JournalClient(client.user, client.client_id),
        client.kind,
        ThrottledBy.CONTROLLER_MUTATION,
        key.name.lower(),
        match,
        throttle_time_ms,
        lambda: Reading(tokens=tokens),
        shared=told.shared and not told.group,
        now_ms=now_ms,
    )
