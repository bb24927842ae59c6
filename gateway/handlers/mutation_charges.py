"""Charges the topics of one mutation request, and settles the charges when the broker has replied. Pure.

`TopicFindings` gives the permits of each topic. The broker's reply shows the result. The gateway refunds the permits
of topics that the broker refused, and charges mutations that the broker did against expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.handlers.mutation_findings import TopicFindings
from gateway.handlers.recent_topics import NOTE_MS, OpenCharge, TopicChange
from protocol.api_keys import ApiKey
from protocol.error_codes import ErrorCode
from protocol.steps import Steps
from protocol.topic_mutations import NO_TOPIC_ID, TopicIdentity, TopicMutation, TopicMutations
from protocol.topic_results import TopicResult, by_identity
from quotas.mutations import MutationDecision, MutationQuotas, RequestDecision
from quotas.trackers import Kind

TOPICS_AT_ONCE: Final = 200
"""Topics that are charged or settled in one step, at up to 30 us each."""

_MAY_BE_DONE: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN})
"""With these errors the broker may have done the mutation. Observed: Kafka 4.3.1 answers CreatePartitions by more
than 10,000 with UNKNOWN, and carries it out."""


@dataclass(frozen=True, slots=True)
class MutationClient:
    """The client of one request: whose quota is charged, and which clients share its counter."""

    user: str
    client_id: str
    kind: Kind
    address: str


class MutationCharges:
    """The charges of one request.

    Attributes:
        decision: the decision topic by topic; without topics before `charge`.
        refused: topics that the quota refused.
    """

    __slots__ = (
        "_admitted",
        "_changes",
        "_client",
        "_decided_ms",
        "_findings",
        "_guessing",
        "_late",
        "_mutations",
        "_recent_topics",
        "_request",
        "decision",
        "refused",
    )

    def __init__(
        self,
        request: TopicMutations,
        client: MutationClient,
        findings: TopicFindings,
        mutations: MutationQuotas,
        *,
        guessing: bool,
    ) -> None:
        """Start without charges.

        Args:
            request: the client's request.
            client: the client.
            findings: give the cost of each topic.
            mutations: the quotas.
            guessing: whether the findings are too old to be trusted.
        """
        self._request = request
        self._client = client
        self._mutations = mutations
        self._recent_topics = findings.recent_topics
        self._findings = findings
        self._guessing = guessing
        self._decided_ms = 0
        self._late: MutationDecision | None = None  # the last charge made after the decision
        self._admitted: dict[TopicIdentity, MutationDecision] = {}  # the charge of each single topic
        self._changes: dict[TopicIdentity, TopicChange] = {}  # paid for, and perhaps being done
        self.decision = RequestDecision((), 0, 0)
        self.refused: set[TopicIdentity] = set()

    @property
    def permits(self) -> float:
        """The permits charged in the decision."""
        return sum((topic.charged for topic in self.decision.topics), 0.0)

    @property
    def decided(self) -> Sequence[MutationDecision]:
        """All decisions, with the last late charge at the end."""
        return self.decision.topics if self._late is None else (*self.decision.topics, self._late)

    @property
    def under_way(self) -> bool:
        """Whether the request has a change that other requests must take into account."""
        return bool(self._changes)

    # -- charging --------------------------------------------------------------------------------------------

    def charge(self, now_ms: int, *, limited: bool) -> Steps[tuple[list[TopicMutation], int]]:
        """Charge the topics in wire order.

        Args:
            now_ms: the time.
            limited: whether the client has a limit that is enforced.

        Returns:
            The topics to forward to the broker, and the time.
        """
        self._decided_ms = now_ms
        decided: list[MutationDecision] = []
        decision = RequestDecision((), 0, now_ms)
        for start in range(0, len(self._request.topics), TOPICS_AT_ONCE):
            if start:
                now_ms = yield
            self._recent_topics.catch_up()
            step = self._request.topics[start : start + TOPICS_AT_ONCE]
            charged = self._charge_step([self._permits(topic, limited=limited) for topic in step], now_ms)
            decided += charged.topics
            for topic, each in zip(step, charged.topics, strict=True):
                self._begin_change(topic, each, now_ms)
            if charged.throttle_time_ms or not start:
                decision = charged
        self.decision = replace(decision, topics=tuple(decided))
        return self._admit(), now_ms

    def _permits(self, topic: TopicMutation, *, limited: bool) -> float:
        return self._findings.permits_to_forward(topic, limited=limited, guessing=self._guessing)

    def _charge_step(self, permits: Sequence[float], now_ms: int) -> RequestDecision:
        return self._mutations.charge_request(
            self._client.user,
            self._client.client_id,
            permits,
            strict=self._request.api.strict,
            validate_only=self._request.validate_only,
            kind=self._client.kind,
            address=self._client.address,
            now_ms=now_ms,
        )

    def _begin_change(self, topic: TopicMutation, decided: MutationDecision, now_ms: int) -> None:
        """Let other requests take this change into account from now on."""
        findings = self._findings
        # Permission to alter or delete implies permission to describe, so the broker refuses hidden topics.
        may_be_done = self._request.api.key is ApiKey.CREATE_TOPICS or not findings.is_hidden(topic)
        if decided.is_limited and may_be_done and not self._request.validate_only:
            self._changes[topic.identity] = self._recent_topics.begin(
                findings.name_of(topic),
                findings.partitions_afterwards(topic),
                self._request.timeout_ms,
                now_ms=now_ms,
            )

    def _admit(self) -> list[TopicMutation]:
        """The topics that neither the gateway nor, at the validation, the broker has refused."""
        findings, admitted = self._findings, []
        for topic, decided in zip(self._request.topics, self.decision.topics, strict=True):
            if topic.identity in findings.own:
                continue
            if not decided.accepted:
                self.refused.add(topic.identity)
            elif topic.identity not in findings.refused_by_broker:
                admitted.append(topic)
                self._admitted[topic.identity] = decided
        return admitted

    def charge_overtaken(self, admitted: list[TopicMutation], now_ms: int) -> None:
        """Charge the rise in cost of topics that were deleted or changed while later steps were charged."""
        request = self._request
        several_steps = len(request.topics) > TOPICS_AT_ONCE
        if request.api.key is not ApiKey.CREATE_PARTITIONS or request.validate_only or not several_steps:
            return
        self._recent_topics.catch_up()
        changed = self._recent_topics.deleted_or_noted_since(self._decided_ms)
        for topic in admitted if changed else ():
            decided = self._admitted[topic.identity]
            if self._findings.name_of(topic) in changed and decided.is_limited:
                more = self._permits(topic, limited=True) - decided.charged
                if more > 0:
                    self._charge_late(more, now_ms)
                    self._admitted[topic.identity] = replace(decided, charged=decided.charged + more)

    def _charge_late(self, permits: float, now_ms: int) -> None:
        client = self._client
        self._late = self._mutations.charge(
            client.user,
            client.client_id,
            permits,
            strict=False,
            kind=client.kind,
            address=client.address,
            now_ms=now_ms,
        )

    def throttle_left_ms(self, now_ms: int) -> int:
        """How long the client has to wait: the decided time, corrected for later refunds and charges."""
        decided_ms = self.decision.throttle_time_ms_at(now_ms=now_ms)
        client = self._client
        debt_ms = self._mutations.throttle_time_ms(
            client.user, client.client_id, kind=client.kind, address=client.address, now_ms=now_ms
        )
        return debt_ms if self._late is not None else min(decided_ms, debt_ms)

    # -- settling --------------------------------------------------------------------------------------------

    def settle(self, results: tuple[TopicResult, ...], now_ms: int) -> Steps[int]:
        """Refund topics that the broker refused, and charge mutations that it did against expectation.

        Returns:
            The time.
        """
        found = by_identity(results)
        topics = {topic.identity: topic for topic in self._request.topics}
        for done, (identity, topic) in enumerate(topics.items()):
            if done % TOPICS_AT_ONCE == 0:
                if done:
                    now_ms = yield
                self._recent_topics.catch_up()
            decided = self._admitted.get(identity)
            result = found.get(identity)
            if decided is not None and result is not None:
                self._settle(topic, decided, result, now_ms)
        return now_ms

    def _settle(
        self, topic: TopicMutation, decided: MutationDecision, result: TopicResult, now_ms: int
    ) -> None:
        change = self._changes.get(topic.identity)
        if result.error_code in _MAY_BE_DONE and not self._request.validate_only:
            self._leave_open(topic, decided)
        elif result.error_code != ErrorCode.NONE:
            self._mutations.refund(decided, now_ms=now_ms)
            if change is not None:
                self._recent_topics.end_refused(change)
        elif not self._request.validate_only:
            self._correct(topic, decided, result, now_ms)
            self._note(topic, change, result, now_ms)

    def _correct(
        self, topic: TopicMutation, decided: MutationDecision, result: TopicResult, now_ms: int
    ) -> None:
        """Correct a charge that was guessed from the cluster's default, or that was not made at all."""
        if decided.permits and not decided.charged:
            return  # only observed, or the quota was removed
        # The topic may have been replaced by another of the same name, which `RecentTopics` now shows.
        known = max(decided.charged, self._findings.permits_as_known(topic))
        actual = known or self._findings.permits_as_asked(topic)
        if result.num_partitions > 0:
            actual = result.num_partitions
            if topic.num_partitions == -1 and topic.assignment_count <= 0:
                self._findings.cluster.default_num_partitions = result.num_partitions
        if actual < decided.charged:
            self._mutations.refund(decided, decided.charged - actual, now_ms=now_ms)
        elif actual > decided.charged:
            self._charge_late(actual - decided.charged, now_ms)

    def _note(
        self, topic: TopicMutation, change: TopicChange | None, result: TopicResult, now_ms: int
    ) -> None:
        """Remember the result until Metadata shows it."""
        partitions = result.num_partitions
        if partitions <= 0:
            partitions = self._findings.partitions_afterwards(topic)
        recent = self._recent_topics
        certain = change is None or recent.end_done(change, partitions, now_ms=now_ms)
        for called in {topic.name, result.name, topic.topic_id, result.topic_id}:
            if called is not None and called != NO_TOPIC_ID:
                if certain:
                    recent.note(called, partitions, now_ms=now_ms)
                if not partitions:
                    recent.end_creation(called)

    def _leave_open(self, topic: TopicMutation, decided: MutationDecision) -> None:
        """Keep the charge open until Metadata is current, because the broker's answer does not show the result.

        The controller begins no mutation after the client's deadline. So Metadata shows the result `NOTE_MS` later.
        """
        request = self._request
        facts = self._findings.facts_of(topic)
        name = topic.name if facts is None else facts.name
        if not decided.charged or not name:
            return
        grows = request.api.key is ApiKey.CREATE_PARTITIONS
        charge = OpenCharge(
            self._client.user,
            self._client.client_id,
            request.api.key,
            topic.num_partitions if grows else int(decided.charged),
            decided,
            self._decided_ms + max(request.timeout_ms, 0) + NOTE_MS,
        )
        self._recent_topics.leave_open(name, charge)
