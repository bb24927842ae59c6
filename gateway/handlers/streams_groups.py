"""StreamsGroupHeartbeat (KIP-1071): charges the internal topics that the group coordinator creates for its client.

The coordinator keeps the topology of a group. At any member's heartbeat it creates the topology's missing topics, on
that member's account. So for a heartbeat of a client with a mutation quota the gateway first asks, on the client's
own connection, which topology the coordinator has and which of its topics exist. The missing topics are charged like
a request that cannot be refused, and the heartbeat is forwarded unchanged. The answer carries the throttle time. If
the last answer showed that a group has all its topics, the gateway does not ask about that group until topics or
topologies change (docs/decisions/0040-streams-groups.md).

A request that contains the name of one of the gateway's own topics is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.handlers.created_topics import charge_creation
from gateway.handlers.internal_topics import internal_topics, names_of
from gateway.handlers.mutation_charges import MutationClient
from gateway.handlers.mutation_exchange import throttle_client
from gateway.handlers.recent_topics import CREATION_NOTE_MS, FOR_GROUP, NOTE_MS, OpenCharge, undone_permits
from gateway.session.mute import MuteReason
from gateway.session.response_queue import CollectedAnswer
from gateway.session.routes import Route, Session
from gateway.usage.row import UsageRow
from protocol import codec, throttle
from protocol.api_keys import Api, ApiKey
from protocol.error_codes import ErrorCode
from protocol.headers import correlation_id_of
from protocol.metadata import TopicFacts, read_topics
from protocol.steps import STEP_ELEMENTS, Steps
from protocol.streams_groups import (
    Heartbeat,
    HeartbeatAnswer,
    Subtopology,
    describe_request,
    parse_description,
    parse_heartbeat,
    parse_heartbeat_answer,
    refused_heartbeat,
)
from protocol.topic_names import is_valid_topic_name
from quotas.mutations import MutationDecision, RequestDecision

MOST_READY: Final = 10_000
_LONGEST_GROUP: Final = 255
"""The gateway does not remember groups with longer names, and asks about them each time."""

_CHARGED_AT_ONCE: Final = 200
"""Topics charged in one step, at about 20 us each."""

_OWN: Final = b"The topology names a topic of the gateway"
_NOT_DESCRIBED: Final = b"The group cannot be described to this client"
_FOUND: Final = frozenset({ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND})


class StreamsGroupHandler:
    """Forwards heartbeats. If the client has a mutation quota, the missing topics are charged first."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        # Groups that have all their topics -> `RecentTopics.changes` at that time. Oldest first.
        self._ready: dict[bytes, int] = {}

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        own, api = self._context.own_topics, route.api
        if any(name in frame for name in own.names):
            own.refusals += 1
            refusal = refused_heartbeat(
                api.version, correlation_id_of(frame), ErrorCode.TOPIC_AUTHORIZATION_FAILED, _OWN
            )
            session.answer(refusal, now_ms=now_ms)
        elif self._context.mutations.is_limited(session.user, session.client_id_of(frame), session.address):
            session.run(self._serve(session, api, frame))
        else:
            session.forward(frame, api)

    def _serve(self, session: Session, api: Api, frame: bytes) -> Steps[None]:
        heartbeat = yield from parse_heartbeat(frame, api)
        recent = self._context.recent_topics
        recent.catch_up()
        exchange = HeartbeatExchange(self._context, self, session, api, frame, heartbeat)
        if heartbeat.member_epoch < 0:  # the member leaves, and no topic is created
            session.forward(frame, api)
        elif heartbeat.topology is None and self._ready.get(heartbeat.group) == recent.changes:
            exchange.forward()
        else:
            exchange.ask()

    def note(self, group: bytes, answer: HeartbeatAnswer, changes: int) -> None:
        """Remember whether a group has all its topics.

        Args:
            group: the group's id.
            answer: the answer to a heartbeat of one of its members.
            changes: `RecentTopics.changes` when that heartbeat was forwarded.
        """
        self._ready.pop(group, None)
        if answer.ready and len(group) <= _LONGEST_GROUP:
            if len(self._ready) >= MOST_READY:
                del self._ready[next(iter(self._ready))]
            self._ready[group] = changes


class HeartbeatExchange:
    """One heartbeat, from its acceptance to its answer."""

    __slots__ = (
        "_api",
        "_asked_ms",
        "_changes",
        "_charges",
        "_client",
        "_context",
        "_decided",
        "_decided_ms",
        "_frame",
        "_handler",
        "_heartbeat",
        "_session",
        "_topologies",
        "_usage",
    )

    def __init__(
        self,
        context: HandlerContext,
        handler: StreamsGroupHandler,
        session: Session,
        api: Api,
        frame: bytes,
        heartbeat: Heartbeat,
    ) -> None:
        """Prepare the exchange."""
        self._context = context
        self._handler = handler
        self._session = session
        self._api = api
        self._frame = frame
        self._heartbeat = heartbeat
        self._client = MutationClient(
            session.user, session.client_id_of(frame), session.kind, session.address
        )
        self._topologies: list[tuple[Subtopology, ...]] = []
        self._asked_ms = 0
        self._changes = 0
        self._charges: dict[bytes, OpenCharge] = {}
        self._decided: list[MutationDecision] = []
        self._decided_ms = 0
        self._usage: UsageRow | None = None

    # -- asking ----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask the coordinator for its topology of the group."""
        self._session.mute(MuteReason.AWAITING_REPLY)
        if self._heartbeat.topology is not None:
            self._context.recent_topics.stir()
        question = describe_request(
            self._heartbeat.group,
            correlation_id=codec.OWN_CORRELATION_ID,
            client_id=self._client.client_id,
        )
        self._session.ask_upstream(question, codec.OWN_CORRELATION_ID, self._on_description)

    def _on_description(self, frame: bytes, now_ms: int) -> Steps[None]:
        description = yield from parse_description(frame)
        if description.error_code not in _FOUND:
            # The coordinator's reaction is not known, so the heartbeat is refused. A client without permission for a
            # topic of the group could not have joined it, and the heartbeat would get most other errors as well.
            refusal = refused_heartbeat(
                self._api.version, correlation_id_of(self._frame), description.error_code, _NOT_DESCRIBED
            )
            self._session.answer(refusal, now_ms=now_ms)
            self._session.release(MuteReason.AWAITING_REPLY)
            return
        self._topologies = _different(self._heartbeat.topology or (), description.topology)
        names: set[bytes] = set()
        for topology in self._topologies:
            for done, name in enumerate(names_of(topology)):
                if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
                    now_ms = yield
                if is_valid_topic_name(name):
                    names.add(name)
        if names:
            self._asked_ms = now_ms
            question = codec.metadata_by_name_request(sorted(names), client_id=self._client.client_id)
            self._session.ask_upstream(question, codec.OWN_CORRELATION_ID, self._on_metadata)
        else:
            self.forward()

    def _on_metadata(self, frame: bytes, now_ms: int) -> Steps[None]:
        context, client = self._context, self._client
        facts = {topic.name: topic for topic in (yield from read_topics(frame, codec.METADATA_BY_NAME))}
        context.recent_topics.catch_up()
        yield from self._refund_undone(facts, now_ms)
        missing = yield from self._missing(facts)
        now_ms = yield
        held_ms = context.mutations.held_ms(
            client.user, client.client_id, kind=client.kind, address=client.address, now_ms=now_ms
        )
        if missing and held_ms:
            self._session.put_back(self._frame)
            self._session.throttle(held_ms, now_ms=now_ms)
            self._session.release(MuteReason.AWAITING_REPLY)
            return
        yield from self._charge(missing, now_ms)
        if self._charges:  # other workers get these notes before the coordinator gets the heartbeat
            context.recent_topics.catch_up()
        self.forward()

    def _refund_undone(self, facts: Mapping[bytes, TopicFacts], now_ms: int) -> Steps[None]:
        """Refund earlier creations of any client that were not done, as the cluster shows."""
        recent = self._context.recent_topics
        for done, (name, charge) in enumerate(recent.take_due_of(facts, now_ms=now_ms).items()):
            if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
                now_ms = yield
            undone = undone_permits(facts[name], charge)
            if undone is not None:
                self._context.mutations.refund(charge.decision, undone, now_ms=now_ms)
                recent.end_creation(name)

    # -- charging --------------------------------------------------------------------------------------------

    def _missing(self, facts: Mapping[bytes, TopicFacts]) -> Steps[dict[bytes, int]]:
        """The topics that the coordinator may create, with their partitions."""
        recent, asked_ms = self._context.recent_topics, self._asked_ms
        found: dict[bytes, int] = {}

        def known(name: bytes) -> int:
            # Notes that were valid at the time of the question: an answer read late does not show later changes.
            noted = recent.partitions(name, now_ms=asked_ms)
            fact = facts.get(name)
            shown = fact.partition_count if fact is not None and fact.error_code == ErrorCode.NONE else 0
            return shown if noted is None else noted

        def may_have(name: bytes) -> int:
            return max(known(name), recent.most_partitions(name, now_ms=asked_ms))

        default = self._context.topology.cluster.default_num_partitions
        for topology in self._topologies:
            wanted = yield from internal_topics(topology, may_have, default_num_partitions=default)
            for done, (name, count) in enumerate(wanted.items()):
                if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
                    yield
                there = known(name) and not recent.may_be_deleted(name, now_ms=asked_ms)
                if count and not there and is_valid_topic_name(name):
                    found[name] = max(found.get(name, 0), count)
        return found

    def _charge(self, missing: Mapping[bytes, int], now_ms: int) -> Steps[None]:
        context, recent = self._context, self._context.recent_topics
        names = list(missing)
        for at in range(0, len(names), _CHARGED_AT_ONCE):
            if at:
                now_ms = yield
            recent.catch_up()
            some = [FOR_GROUP + name for name in names[at : at + _CHARGED_AT_ONCE]]
            for claimed in recent.claim_creations(some, now_ms=now_ms):
                name = claimed.removeprefix(FOR_GROUP)
                decision, row = charge_creation(
                    context,
                    self._session,
                    self._client.client_id,
                    name,
                    missing[name],
                    strict=False,
                    now_ms=now_ms,
                )
                self._decided.append(decision)
                self._usage = row or self._usage
                if decision.is_limited:
                    self._keep_open(name, missing[name], decision, now_ms)
        self._decided_ms = now_ms
        if self._decided:
            context.observer.mutations_decided(
                self._api.key,
                self._decided[0].rule,
                accepted_permits=sum(each.charged for each in self._decided),
                refused_topics=0,
            )

    def _keep_open(self, name: bytes, partitions: int, decision: MutationDecision, now_ms: int) -> None:
        """Keep the charge open until the cluster shows the result: the answer will not show what was created."""
        client, recent = self._client, self._context.recent_topics
        recent.begin(name, partitions, 0, now_ms=now_ms)
        due_ms = now_ms + CREATION_NOTE_MS
        self._charges[name] = OpenCharge(
            client.user, client.client_id, ApiKey.CREATE_TOPICS, partitions, decision, due_ms
        )
        recent.leave_open(name, self._charges[name])

    # -- the answer ------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """Forward the heartbeat."""
        self._session.mute(MuteReason.AWAITING_REPLY)
        self._changes = self._context.recent_topics.changes
        self._session.forward(self._frame, self._api, CollectedAnswer(self._on_answer))
        self._frame = b""
        self._topologies = []

    def _on_answer(self, frame: bytes, now_ms: int) -> Steps[bytes | None]:
        answer = yield from parse_heartbeat_answer(frame, self._api)
        self._handler.note(self._heartbeat.group, answer, self._changes)
        if not answer.creates:
            for name, charge in self._charges.items():
                self._context.recent_topics.leave_open(name, replace(charge, due_ms=now_ms + NOTE_MS))
        elif self._decided:
            frame = self._throttled(frame, now_ms)
        self._session.release(MuteReason.AWAITING_REPLY)
        return frame

    def _throttled(self, frame: bytes, now_ms: int) -> bytes:
        client, decided = self._client, self._decided
        last_ms = next((each.throttle_time_ms for each in reversed(decided) if each.throttle_time_ms), 0)
        request = RequestDecision(tuple(decided), last_ms, self._decided_ms)
        mutations = self._context.mutations
        debt_ms = mutations.throttle_time_ms(
            client.user, client.client_id, kind=client.kind, address=client.address, now_ms=now_ms
        )
        # At most one window: a group removes a member that is silent for longer than its session timeout. The next
        # heartbeat of the member that creates topics waits for the rest of the debt.
        wait_ms = min(request.throttle_time_ms_at(now_ms=now_ms), debt_ms, mutations.window_ms)
        upstream_ms = throttle.read(frame, self._api)
        patched = bytearray(frame)
        final_ms = throttle.patch(patched, self._api, wait_ms)
        throttle_client(
            self._context,
            self._session,
            client,
            self._api.key,
            decided,
            final_ms,
            upstream_ms=upstream_ms,
            usage=self._usage,
            now_ms=now_ms,
        )
        return bytes(patched)


def _different(
    requested: tuple[Subtopology, ...], stored: tuple[Subtopology, ...]
) -> list[tuple[Subtopology, ...]]:
    """The topologies that the coordinator may use. If they are equal, only the request's, which has more detail."""
    if {replace(each, copartitioned=None) for each in requested} == set(stored):
        return [requested]
    return [each for each in (requested, stored) if each]
