"""One CreateTopics, CreatePartitions or DeleteTopics request, from its acceptance to its reply.

`start` -> (the cluster's answers) -> `_validate` -> (the broker's) -> `_decide` -> (the broker's reply) -> `_merge`.
Everything happens on the client's own upstream connection, so the cluster's answers are those that it would give this
principal.

The rule: what could create partitions goes to the broker only when it is paid for. Metadata is of a moment ago and
of this principal, so a topic that seems to cost nothing (it is there, its name is wrong, it stands twice) is only
validated; the broker's refusal is the client's answer. What the broker would do after all is charged as asked
(docs/decisions/0011-mutation-cost.md).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from gateway.handlers.context import HandlerContext
from gateway.handlers.recent_topics import NOTE_MS, OpenCharge, TopicChange
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
from protocol.metadata import TopicFacts, read_topics
from protocol.steps import Steps
from protocol.topic_mutations import NO_TOPIC_ID, TopicIdentity, TopicMutation, TopicMutations
from protocol.topic_names import is_valid_topic_name
from protocol.topic_results import (
    TopicResult,
    TopicResults,
    encode_topic_results,
    has_topic_id,
    make_result,
    parse_topic_results,
)
from quotas.combine import ThrottledBy
from quotas.mutation_cost import create_partitions_permits, create_topics_permits, delete_topics_permits
from quotas.mutations import MutationDecision, RequestDecision
from quotas.resolution import Match

_TOPICS_AT_ONCE: Final = 200
"""Topics that are looked at in one step, at up to 30 us each."""

_MAY_BE_DONE: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN})
"""Live: CreatePartitions by more than 10,000 is answered with the second by Kafka 4.3.1, and carried out."""


class MutationExchange:
    """See the module."""

    __slots__ = (
        "_answers_due",
        "_asked_again",
        "_asked_ms",
        "_changes",
        "_client_id",
        "_context",
        "_correlation_id",
        "_decision",
        "_due",
        "_forwarded_ms",
        "_frame",
        "_known",
        "_late",
        "_only_told",
        "_own",
        "_proven",
        "_refused",
        "_repeated",
        "_request",
        "_session",
        "_too_old",
        "_topics",
        "_trace",
        "_unproven",
        "_usage",
        "_validated",
    )

    def __init__(
        self,
        context: HandlerContext,
        session: Session,
        request: TopicMutations,
        frame: bytes,
    ) -> None:
        """Not started yet.

        Args:
            context: of the listener.
            session: where the request came in.
            request: what it asks for.
            frame: its bytes, which are relayed as they came when nothing is refused.
        """
        self._context = context
        self._session = session
        self._request = request
        self._frame = frame
        self._correlation_id = correlation_id_of(frame)
        self._client_id = session.client_id_of(frame)
        self._known: dict[TopicIdentity, TopicFacts] = {}
        self._repeated: set[TopicIdentity] = set()  # topics that stand in the request more than once
        self._answers_due = 0
        self._asked_ms = 0
        self._asked_again = False
        self._too_old = False  # the second answers waited as well
        self._forwarded_ms = 0
        self._due: dict[bytes, OpenCharge] = {}  # of earlier requests that timed out
        self._validated = TopicResults(0, (), b"\x00" if request.api.flexible else b"")
        self._own: set[TopicIdentity] = set()  # the gateway's, refused whatever the quota says
        self._proven: set[TopicIdentity] = set()  # refused by the broker already
        self._unproven: set[TopicIdentity] = set()  # seemed to cost nothing, and the broker would do it
        self._late = False  # something was charged after it was done
        self._topics: dict[TopicIdentity, MutationDecision] = {}  # what each single topic was charged
        self._changes: dict[TopicIdentity, TopicChange] = {}  # those that are paid for, under way
        self._refused: set[TopicIdentity] = set()
        self._decision: RequestDecision | None = None
        self._usage: UsageRow | None = None
        self._only_told = False  # in usage records: no such quota is set
        self._trace: Trace | None = None

    def start(self, now_ms: int) -> Steps[None]:
        """Ask the cluster what it knows of the topics; continue with its answer."""
        self._session.mute(MuteReason.AWAITING_REPLY)
        self._asked_ms = now_ms
        self._begin_trace(now_ms)
        self._context.recent_topics.catch_up()
        self._due = self._context.recent_topics.take_due(self._session.user, self._client_id, now_ms=now_ms)
        self._look_up(self._request.topics)
        if not self._answers_due:
            yield from self._validate(now_ms)

    def _begin_trace(self, now_ms: int) -> None:
        request = self._request
        self._trace = trace = self._session.begin_trace(request.api.key.name.lower(), now_ms=now_ms)
        if trace is not None:
            trace.attributes |= {
                "enduser.id": self._session.user,
                "messaging.client.id": self._client_id,
                "sluice.api_version": request.api.version,
                "sluice.correlation_id": self._correlation_id,
                "sluice.topics": len(request.topics),
                "sluice.validate_only": request.validate_only,
            }
            trace.phase("ask_cluster", now_ms=now_ms)

    def _end_trace(self, outcome: str, now_ms: int) -> None:
        if (trace := self._trace) is not None:
            charged = (
                sum(topic.charged for topic in self._decision.topics) if self._decision is not None else 0.0
            )
            trace.end(now_ms=now_ms, outcome=outcome, permits=charged, refused_topics=len(self._refused))

    def _ask_again(self, now_ms: int) -> Steps[None]:
        """As `start`; what the broker was asked to validate may have changed as well."""
        self._asked_again = True
        self._asked_ms = now_ms
        self._due = {}
        for found in (self._known, self._own, self._proven, self._unproven):
            found.clear()
        self._validated = TopicResults(0, (), self._validated.tail)
        self._look_up(self._request.topics)
        if not self._answers_due:
            yield from self._validate(now_ms)

    def _look_up(self, topics: tuple[TopicMutation, ...]) -> None:
        names = {topic.name for topic in topics if topic.name is not None and is_valid_topic_name(topic.name)}
        names |= self._due.keys()
        ids = {topic.topic_id for topic in topics if topic.name is None and topic.topic_id != NO_TOPIC_ID}
        # Results with topic ids are only as Kafka's when the ids are known. A broker that has such results has
        # version 10 (both are of Kafka 2.8); to be asked by id, it must have version 12 (Kafka 3.1).
        api = codec.METADATA_WITH_IDS if has_topic_id(self._request.api) else codec.METADATA_BY_NAME
        if names:
            question = codec.metadata_by_name_request(sorted(names), client_id=self._client_id, api=api)
            self._ask(question, api, by_id=False)
        if ids:
            question = codec.metadata_by_id_request(sorted(ids), client_id=self._client_id)
            self._ask(question, codec.METADATA_BY_ID, by_id=True)

    def _ask(self, question: bytes, api: Api, *, by_id: bool) -> None:
        self._answers_due += 1

        def on_reply(frame: bytes, now_ms: int) -> Steps[None]:
            for topic in (yield from read_topics(frame, api)):
                self._known[(None, topic.topic_id) if by_id else (topic.name, NO_TOPIC_ID)] = topic
            self._answers_due -= 1
            if not self._answers_due:
                self._refund_undone(now_ms)
                yield from self._validate(now_ms)

        self._session.ask_upstream(question, codec.OWN_CORRELATION_ID, on_reply)

    def _refund_undone(self, now_ms: int) -> None:
        """Give back what earlier requests were charged that timed out, and of which the cluster now shows nothing."""
        for name, charge in self._due.items():
            known = self._known.get((name, NO_TOPIC_ID))
            if known is None or known.error_code not in (
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ):
                continue
            # A topic that is not there has no partitions; one that was made in part is paid for in part.
            if charge.key is ApiKey.DELETE_TOPICS:
                undone = known.partition_count
            else:
                undone = charge.partitions - known.partition_count
            self._context.mutations.refund(charge.decision, undone, now_ms=now_ms)

    # -- what seems to cost nothing --------------------------------------------------------------------------

    def _validate(self, now_ms: int) -> Steps[None]:
        """Have the broker say itself what is wrong with topics that seem to cost nothing."""
        request = self._request
        self._repeated = self._find_repeated()
        self._find_own()
        creates = request.api.key is not ApiKey.DELETE_TOPICS
        limited = self._context.mutations.is_limited(self._session.user, self._client_id)
        free = []
        for done, topic in enumerate(request.topics, start=1):
            if topic.identity not in self._own and not self._permits(topic):
                free.append(topic)
            if done % _TOPICS_AT_ONCE == 0:
                now_ms = yield
        if not (creates and limited and free) or request.validate_only:
            yield from self._decide(now_ms)
        elif request.api.key is ApiKey.CREATE_TOPICS and request.api.version == 0:
            # There is no other way to ask than to have it done.
            self._unproven = {topic.identity for topic in free if self._single(topic)}
            yield from self._decide(now_ms)
        else:
            question = request.encode(free, validation_id=codec.OWN_CORRELATION_ID)
            on_reply = partial(self._on_validated, {topic.identity for topic in free})
            if self._trace is not None:
                self._trace.phase("validate", now_ms=now_ms)
            self._session.ask_upstream(question, codec.OWN_CORRELATION_ID, on_reply)

    def _on_validated(self, free: set[TopicIdentity], frame: bytes, now_ms: int) -> Steps[None]:
        answer = yield from parse_topic_results(frame, self._request.api)
        by_identity = self._by_identity(answer.results)
        for identity in free:
            result = by_identity.get(identity)
            refused = result is not None and result.error_code != ErrorCode.NONE
            (self._proven if refused else self._unproven).add(identity)
        kept = tuple(result for result in answer.results if result.error_code != ErrorCode.NONE)
        self._validated = replace(answer, results=kept)
        yield from self._decide(now_ms)

    # -- deciding --------------------------------------------------------------------------------------------

    def _partitions_now(self, topic: TopicMutation) -> int | None:
        """How many partitions this topic has, None when it does not exist."""
        called = topic.topic_id if topic.name is None else topic.name
        # As of the question: an answer that the client let wait knows nothing of what was done meanwhile.
        noted = self._context.recent_topics.partitions(called, now_ms=self._asked_ms)
        if noted is not None:
            return noted or None
        known = self._known.get(topic.identity)
        return known.partition_count if known is not None and known.error_code == ErrorCode.NONE else None

    def _permits(self, topic: TopicMutation) -> float:
        """What this topic costs; 0 when it seems that the broker will refuse it."""
        if topic.identity in self._proven or topic.identity in self._own:
            return 0
        if topic.identity in self._unproven:
            return self._permits_as_asked(topic)
        if not self._single(topic):
            return 0
        permits = self._permits_as_known(topic)
        key = self._request.api.key
        if key is ApiKey.CREATE_TOPICS:
            return permits
        recent = self._context.recent_topics
        name = self._called(topic)
        if key is ApiKey.CREATE_PARTITIONS:
            may_be_another = self._too_old or recent.may_be_deleted(name, now_ms=self._asked_ms)
            return self._permits_as_asked(topic) if may_be_another else permits
        guess = self._permits_as_asked(topic) if self._too_old else 0
        return max(permits, guess, recent.most_partitions(name, now_ms=self._asked_ms))

    def _called(self, topic: TopicMutation) -> bytes:
        """The name of a topic; its id where the cluster does not give the name."""
        known = self._known.get(topic.identity)
        return topic.name or (known.name if known is not None and known.name else topic.topic_id)

    def _permits_as_known(self, topic: TopicMutation) -> float:
        """What this topic costs if the cluster is as it has answered."""
        known = self._known.get(topic.identity)
        current = self._partitions_now(topic)
        if self._request.api.key is ApiKey.CREATE_TOPICS:
            if current is not None or not is_valid_topic_name(topic.name or b""):
                return 0
            cost = create_topics_permits(
                topic.num_partitions,
                max(topic.assignment_count, 0),
                self._context.topology.cluster.default_num_partitions,
                replication_factor=topic.replication_factor,
            )
        elif current is None and known and known.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return self._permits_as_asked(topic)  # it may be there, and the client allowed to change it
        elif self._request.api.key is ApiKey.CREATE_PARTITIONS:
            assignments = None if topic.assignment_count < 0 else topic.assignment_count
            cost = create_partitions_permits(current, topic.num_partitions, assignments)
        else:
            cost = delete_topics_permits(current)
        return cost if isinstance(cost, int) else 0

    def _permits_as_asked(self, topic: TopicMutation) -> int:
        """What a topic costs at most, whatever the cluster looks like; of a deletion only a guess can be made."""
        default = self._context.topology.cluster.default_num_partitions
        if topic.assignment_count > 0:
            return topic.assignment_count
        if self._request.api.key is ApiKey.CREATE_TOPICS:
            return topic.num_partitions if topic.num_partitions > 0 else default
        if self._request.api.key is ApiKey.CREATE_PARTITIONS:
            return max(topic.num_partitions - 1, 1)
        called = topic.topic_id if topic.name is None else topic.name
        return self._context.recent_topics.last_partitions(called) or default

    def _find_repeated(self) -> set[TopicIdentity]:
        """Topics that are named twice, or by their name and by their id."""
        times = Counter(topic.identity for topic in self._request.topics)
        repeated = {identity for identity, count in times.items() if count > 1}
        by_id: dict[bytes, TopicIdentity] = {}
        for identity in times:
            known = self._known.get(identity)
            if known is not None and known.topic_id != NO_TOPIC_ID:
                other = by_id.setdefault(known.topic_id, identity)
                if other != identity:
                    repeated |= {identity, other}
        return repeated

    def _find_own(self) -> None:
        own = self._context.own_topics
        for topic in self._request.topics if own else ():
            known = self._known.get(topic.identity)
            if topic.name in own.names or topic.topic_id in own.ids or (known and own.owns(known)):
                self._own.add(topic.identity)

    def _decide(self, now_ms: int) -> Steps[None]:
        """Charge in wire order, forward what was admitted or answer here."""
        request = self._request
        if not request.api.strict and self._hold(now_ms):
            return
        limited = self._context.mutations.is_limited(self._session.user, self._client_id)
        if limited and now_ms - self._asked_ms > NOTE_MS and request.api.key is not ApiKey.CREATE_TOPICS:
            if not self._asked_again:
                yield from self._ask_again(now_ms)
                return
            self._too_old = True
        self._context.own_topics.refusals += bool(self._own)
        self._forwarded_ms = now_ms
        topics: list[MutationDecision] = []
        decision = RequestDecision((), 0, now_ms)
        for start in range(0, len(request.topics), _TOPICS_AT_ONCE):
            if start:
                now_ms = yield
            self._context.recent_topics.catch_up()
            step = request.topics[start : start + _TOPICS_AT_ONCE]
            charged = self._context.mutations.charge_request(
                self._session.user,
                self._client_id,
                [self._permits_to_forward(topic, limited=limited) for topic in step],
                strict=request.api.strict,
                validate_only=request.validate_only,
                kind=self._session.kind,
                now_ms=now_ms,
            )
            topics += charged.topics
            for topic, decided in zip(step, charged.topics, strict=True):
                self._begin(topic, decided, now_ms)
            if charged.throttle_time_ms or not start:
                decision = charged
        decision = replace(decision, topics=tuple(topics))
        self._decision = decision
        self._only_told = not self._context.mutations_enabled
        admitted = []
        for topic, decided in zip(request.topics, decision.topics, strict=True):
            if topic.identity in self._own:
                continue
            if not decided.accepted:
                self._refused.add(topic.identity)
            elif topic.identity not in self._proven:
                admitted.append(topic)
                self._topics[topic.identity] = decided
        self._observe(decision, now_ms)
        self._charge_overtaken(admitted, now_ms)
        if admitted or not request.topics:
            if self._changes:
                self._context.recent_topics.catch_up()
            answer = CollectedAnswer(self._on_broker_reply)
            frame = request.encode(admitted) if len(admitted) < len(request.topics) else self._frame
            self._session.forward(frame, request.api, answer)
            if self._trace is not None:
                self._trace.phase("broker", now_ms=now_ms)
        else:
            self._session.begin_answer(now_ms=now_ms)
            reply = self._merge(TopicResults(0, (), self._validated.tail), now_ms)
            self._session.answer(reply, now_ms=now_ms)
            self._session.release(MuteReason.AWAITING_REPLY)
            self._end_trace("answered_here", now_ms)
        self._frame = b""

    def _permits_to_forward(self, topic: TopicMutation, *, limited: bool) -> float:
        """As `_permits`; a topic that seems free only since the others were validated is not proven to be."""
        permits = self._permits(topic)
        refused = topic.identity in self._proven or topic.identity in self._own or not self._single(topic)
        creates = self._request.api.key is not ApiKey.DELETE_TOPICS and not self._request.validate_only
        return permits or (self._permits_as_asked(topic) if limited and creates and not refused else 0)

    def _begin(self, topic: TopicMutation, decided: MutationDecision, now_ms: int) -> None:
        """Let other requests know what is under way from now on."""
        known = self._known.get(topic.identity)
        hidden = known is not None and known.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        creates = self._request.api.key is ApiKey.CREATE_TOPICS
        # The rights to change and to delete imply the one to describe, so the broker refuses what is hidden.
        if (
            decided.charged
            and decided.limit is not None
            and not self._request.validate_only
            and (creates or not hidden)
        ):
            self._changes[topic.identity] = self._context.recent_topics.begin(
                self._called(topic),
                self._partitions_afterwards(topic),
                self._request.timeout_ms,
                now_ms=now_ms,
            )

    def _charge_overtaken(self, admitted: list[TopicMutation], now_ms: int) -> None:
        """Charge what topics cost more since their step, as others were deleted while the rest was charged."""
        key, validate_only = self._request.api.key, self._request.validate_only
        if (
            key is not ApiKey.CREATE_PARTITIONS
            or validate_only
            or len(self._request.topics) <= _TOPICS_AT_ONCE
        ):
            return
        self._context.recent_topics.catch_up()
        changed = self._context.recent_topics.deleted_or_noted_since(self._forwarded_ms)
        for topic in admitted if changed else ():
            decided = self._topics[topic.identity]
            if self._called(topic) in changed and decided.charged and decided.limit is not None:
                more = self._permits_to_forward(topic, limited=True) - decided.charged
                if more > 0:
                    session = self._session
                    self._late = True
                    self._context.mutations.charge(
                        session.user, self._client_id, more, strict=False, kind=session.kind, now_ms=now_ms
                    )
                    self._topics[topic.identity] = replace(decided, charged=decided.charged + more)

    def _hold(self, now_ms: int) -> bool:
        """Whether another connection went far into debt since this request came in; then it waits and begins anew."""
        session = self._session
        held_ms = self._context.mutations.held_ms(
            session.user, self._client_id, kind=session.kind, now_ms=now_ms
        )
        if held_ms:
            self._session.put_back(self._frame)
            self._session.throttle(held_ms, now_ms=now_ms)
            self._session.release(MuteReason.AWAITING_REPLY)
            self._end_trace("held", now_ms)
        return held_ms > 0

    def _observe(self, decision: RequestDecision, now_ms: int) -> None:
        request, usage = self._request, self._context.usage
        if usage is not None:
            self._usage = record_mutations(
                usage,
                self._session.listener,
                self._session.user,
                self._client_id,
                request.api.key.name.lower(),
                zip((topic.identity for topic in request.topics), decision.topics, strict=True),
                strict=request.api.strict,
                correlation_id=self._correlation_id,
                now_ms=now_ms,
            )
        if decision.topics:
            self._context.observer.mutations_decided(
                self._request.api.key,
                decision.topics[0].rule,
                accepted_permits=sum(topic.charged for topic in decision.topics),
                refused_topics=len(self._refused),
            )

    # -- the broker's reply ----------------------------------------------------------------------------------

    def _on_broker_reply(self, frame: bytes, now_ms: int) -> Steps[bytes | None]:
        api = self._request.api
        if self._only_told:
            with suppress(ProtocolError):
                answer = yield from parse_topic_results(frame, api)
                now_ms = yield from self._settle(answer.results, now_ms)
                if self._own:
                    frame = self._merge(answer, now_ms)
            self._session.release(MuteReason.AWAITING_REPLY)
            self._end_trace("answered", now_ms)
            return frame
        answer = yield from parse_topic_results(frame, api)
        now_ms = yield from self._settle(answer.results, now_ms)
        if self._refused or self._proven or self._own:
            reply = self._merge(answer, now_ms)
        else:
            patched = bytearray(frame)
            final_ms = throttle.patch(patched, api, self._throttle_left_ms(now_ms))
            self._throttle(final_ms, answer.throttle_time_ms, now_ms)
            reply = bytes(patched)
        self._session.release(MuteReason.AWAITING_REPLY)
        self._end_trace("answered", now_ms)
        return reply

    def _throttle_left_ms(self, now_ms: int) -> int:
        """What the client has to wait for: what was decided, unless permits were given back or taken since."""
        assert self._decision is not None
        decided_ms = self._decision.throttle_time_ms_at(now_ms=now_ms)
        session = self._session
        owed_ms = self._context.mutations.throttle_time_ms(
            session.user, self._client_id, kind=session.kind, now_ms=now_ms
        )
        return owed_ms if self._late else min(decided_ms, owed_ms)

    def _merge(self, answer: TopicResults, now_ms: int) -> bytes:
        """The reply in request order; what the broker answered under no name of the request comes last."""
        api = self._request.api
        results = self._validated.results + answer.results
        upstream_ms = max(answer.throttle_time_ms, self._validated.throttle_time_ms)
        by_identity = self._by_identity(results)
        merged = []
        for topic in self._request.topics:
            if topic.identity in self._own:
                merged.append(self._refusal(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif topic.identity in self._refused:
                merged.append(self._refusal(topic))
            elif self._single(topic) and topic.identity in by_identity:
                merged.append(by_identity[topic.identity])
        placed = {id(result) for result in merged}
        merged += [result for result in results if id(result) not in placed]
        throttle_time_ms = max(self._throttle_left_ms(now_ms), upstream_ms)
        self._throttle(throttle_time_ms, upstream_ms, now_ms)
        return encode_topic_results(self._correlation_id, throttle_time_ms, merged, api, tail=answer.tail)

    def _refusal(
        self, topic: TopicMutation, error_code: ErrorCode = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    ) -> TopicResult:
        """As Kafka writes it: with the name and the id that belong together, when the topic exists."""
        known = self._known.get(topic.identity)
        if known is not None and known.error_code == ErrorCode.NONE:
            topic = replace(topic, name=known.name, topic_id=known.topic_id)
        return make_result(topic, error_code, self._request.api)

    def _by_identity(self, results: tuple[TopicResult, ...]) -> dict[TopicIdentity, TopicResult]:
        """Results by what the request called their topics."""
        found: dict[TopicIdentity, TopicResult] = {(None, result.topic_id): result for result in results}
        return found | {(result.name, NO_TOPIC_ID): result for result in results if result.name is not None}

    def _single(self, topic: TopicMutation) -> bool:
        return topic.identity not in self._repeated

    def _throttle(self, throttle_time_ms: int, upstream_ms: int, now_ms: int) -> None:
        if throttle_time_ms <= 0:
            return
        until_ms = self._session.throttle(throttle_time_ms, now_ms=now_ms)
        if self._trace is not None:
            self._trace.attributes["sluice.throttle_ms"] = throttle_time_ms
        if self._usage is not None:
            self._usage.mute(until_ms, now_ms=now_ms)
        # A throttle of the broker's is in the broker's books already.
        by = ThrottledBy.CONTROLLER_MUTATION
        if throttle_time_ms > upstream_ms and self._session.claim_throttle(
            by, throttle_time_ms, throttle_time_ms
        ):
            context = self._context
            context.mutations.count_throttle(
                self._session.user,
                self._client_id,
                throttle_time_ms,
                kind=self._session.kind,
                now_ms=now_ms,
            )
            if self._usage is not None:
                self._usage.delay(throttle_time_ms)
            assert self._decision is not None
            context.observer.throttled(
                self._request.api.key,
                self._decision.topics[0].rule,
                throttle_time_ms,
                by=by,
            )
            self._explain(self._decision, throttle_time_ms, now_ms)

    def _explain(self, decision: RequestDecision, throttle_time_ms: int, now_ms: int) -> None:
        journal = self._context.journal
        if journal is None:
            return
        # The topic whose wait is sent: the last that was refused, or went into debt.
        told = next(
            (each for each in reversed(decision.topics) if each.throttle_time_ms > 0), decision.topics[0]
        )
        limit, tokens, _ = self._context.mutations.level(told.tracker_key, now_ms=now_ms)
        journal.throttled(
            JournalClient(self._session.user, self._client_id),
            self._session.kind,
            ThrottledBy.CONTROLLER_MUTATION,
            self._request.api.key.name.lower(),
            Match(told.limit if limit is None else limit, told.rule, told.tracker_key),
            throttle_time_ms,
            lambda: Reading(tokens=tokens),
            shared=told.shared,
        )

    # -- settling --------------------------------------------------------------------------------------------

    def _settle(self, results: tuple[TopicResult, ...], now_ms: int) -> Steps[int]:
        """Give back what was charged for topics that the broker refused, charge what it did against expectation."""
        by_identity = self._by_identity(results)
        topics = {topic.identity: topic for topic in self._request.topics}
        for done, (identity, topic) in enumerate(topics.items()):
            if done % _TOPICS_AT_ONCE == 0:
                if done:
                    now_ms = yield
                self._context.recent_topics.catch_up()
            decided = self._topics.get(identity)
            result = by_identity.get(identity)
            if decided is None or result is None:
                continue
            change = self._changes.get(identity)
            if result.error_code in _MAY_BE_DONE and not self._request.validate_only:
                self._leave_open(topic, decided)
            elif result.error_code != ErrorCode.NONE:
                self._context.mutations.refund(decided, now_ms=now_ms)
                if change is not None:
                    self._context.recent_topics.end_refused(change)
            elif not self._request.validate_only:
                self._reconcile(topic, decided, result, now_ms)
                self._note(topic, result, now_ms)
        return now_ms

    def _reconcile(
        self, topic: TopicMutation, decided: MutationDecision, result: TopicResult, now_ms: int
    ) -> None:
        """Correct a charge that was guessed from the cluster's default, or that was not made at all."""
        if decided.permits and not decided.charged:
            return  # only watched, or the quota is gone
        # The topic may have become another one meanwhile, as recent topics now show.
        actual = max(decided.charged, self._permits_as_known(topic)) or self._permits_as_asked(topic)
        if result.num_partitions > 0:
            actual = result.num_partitions
            if topic.num_partitions == -1 and topic.assignment_count <= 0:
                self._context.topology.cluster.default_num_partitions = result.num_partitions
        if actual < decided.charged:
            self._context.mutations.refund(decided, decided.charged - actual, now_ms=now_ms)
        elif actual > decided.charged:
            self._late = True
            self._context.mutations.charge(
                self._session.user,
                self._client_id,
                actual - decided.charged,
                strict=False,
                kind=self._session.kind,
                now_ms=now_ms,
            )

    def _note(self, topic: TopicMutation, result: TopicResult, now_ms: int) -> None:
        """Remember what was done until Metadata shows it."""
        partitions = (
            result.num_partitions if result.num_partitions > 0 else self._partitions_afterwards(topic)
        )
        recent, change = self._context.recent_topics, self._changes.get(topic.identity)
        certain = change is None or recent.end_done(change, partitions, now_ms=now_ms)
        for called in {topic.name, result.name, topic.topic_id, result.topic_id}:
            if called is not None and called != NO_TOPIC_ID:
                if certain:
                    recent.note(called, partitions, now_ms=now_ms)
                if not partitions:
                    recent.end_creation(called)

    def _partitions_afterwards(self, topic: TopicMutation) -> int:
        """How many partitions the topic has once this is done; 0: it is deleted."""
        if self._request.api.key is ApiKey.DELETE_TOPICS:
            return 0
        if self._request.api.key is ApiKey.CREATE_TOPICS:
            return self._permits_as_asked(topic)
        return topic.num_partitions

    def _leave_open(self, topic: TopicMutation, decided: MutationDecision) -> None:
        """The answer says nothing of what was done: keep the charge until Metadata has caught up.

        The controller begins nothing after the client's own deadline, so what is done is seen `NOTE_MS` after it.
        """
        known = self._known.get(topic.identity)
        name = topic.name if known is None else known.name
        if decided.charged and name:
            due_ms = self._forwarded_ms + max(self._request.timeout_ms, 0) + NOTE_MS
            charge = OpenCharge(
                self._session.user,
                self._client_id,
                self._request.api.key,
                topic.num_partitions
                if self._request.api.key is ApiKey.CREATE_PARTITIONS
                else int(decided.charged),
                decided,
                due_ms,
            )
            self._context.recent_topics.leave_open(name, charge)
