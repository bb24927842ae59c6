"""Metadata: rewrites addresses, and charges topics that the broker creates to the client that named them.

For a client with a mutation quota the gateway sends two requests:

1. The client's request, without the permission to create topics.
2. If topics are unknown, each is charged as in CreateTopics (strict, one by one, in the order of the answer). Then
   the gateway's own request, which may create, names the topics that are paid for and no others.

The client gets the first answer with the errors of the second, as from a broker that creates a topic. A client in
debt has no second request: the topic stays unknown and nothing is throttled, as at a broker in the same situation.
The client's own request never gets the permission later, since topics of the first answer may be deleted by then.
The connection's next request waits, so that many requests at once cannot all use the same tokens. A topic that is
being created is charged once and requested once: clients repeat their request until the topic exists, and a second
permission would create the topic again if it has been deleted meanwhile.

The gateway's own topics are not created for clients: a request that names one is also sent in two steps.

If no client has such a quota and usage records are kept, requests are relayed unchanged and created topics are
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.handlers.created_topics import charge_creation
from gateway.handlers.recent_topics import MOST_UNDER_WAY_MS, TopicChange
from gateway.session.mute import MuteReason
from gateway.session.response_queue import CollectedAnswer, OnReply
from gateway.session.routes import Route, Session
from protocol import codec
from protocol.addresses import rewrite_metadata
from protocol.api_keys import Api, ApiKey, describe
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError
from protocol.headers import correlation_id_of
from protocol.metadata import (
    FIRST_VERSION_WITH_FLAG,
    FIRST_VERSION_WITH_TOPIC_IDS,
    MetadataQuestion,
    copy_errors,
    downgrade_answer,
    forbid_creation,
    parse_metadata_question,
    read_topics,
    topics_in_error,
    upgrade_question,
)
from protocol.steps import Steps
from protocol.topic_names import is_valid_topic_name
from quotas.mutation_cost import auto_create_permits
from quotas.mutations import MutationDecision

_CHARGED_AT_ONCE: Final = 200
"""Topics charged in one step, at about 20 us each."""
_UPGRADED: Final = describe(ApiKey.METADATA, FIRST_VERSION_WITH_FLAG)
_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_BEING_CREATED: Final = _UNKNOWN | {ErrorCode.LEADER_NOT_AVAILABLE}
"""For a topic that is being created, KRaft answers UNKNOWN, and brokers with ZooKeeper LEADER_NOT_AVAILABLE."""


class MetadataHandler:
    """Forwards the request, with or without the permission to create topics, and rewrites the answer."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        self._ids = context.topic_ids

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        if self._context.mutations_seen or self._context.own_topics or self._learns(route.api):
            session.run(self._serve(session, route.api, frame))
        else:
            session.forward(frame, route.api, CollectedAnswer(partial(self._rewrite, route.api)))

    def _serve(self, session: Session, api: Api, frame: bytes) -> Steps[None]:
        on_reply: OnReply = partial(self._learn if self._learns(api) else self._rewrite, api)
        own = self._context.own_topics
        if self._context.mutations_seen or own:
            question = yield from self._question(frame, api)
            if question is not None and question.may_create and question.names:
                client_id = session.client_id_of(frame)
                limited = self._context.mutations.is_limited(session.user, client_id, session.address)
                if limited or not own.names.isdisjoint(question.names):
                    self._look_first(session, api, frame, question, client_id)
                    return
                if self._context.mutations_seen:
                    on_reply = partial(self._count_created, session, client_id, api)
        session.forward(frame, api, CollectedAnswer(on_reply))

    def _question(self, frame: bytes, api: Api) -> Steps[MetadataQuestion | None]:
        """The parsed request. None if it cannot be parsed and is not charged: the broker then answers the error."""
        try:
            return (yield from parse_metadata_question(frame, api))
        except ProtocolError:
            if self._context.mutations_enabled or self._context.own_topics:
                raise
            return None

    def _learns(self, api: Api) -> bool:
        """Whether the gateway needs the names for the topic ids in these answers."""
        return self._ids is not None and self._ids.wanted and api.version >= FIRST_VERSION_WITH_TOPIC_IDS

    def _learn(self, api: Api, frame: bytes, now_ms: int) -> Steps[bytes | None]:
        assert self._ids is not None
        for topic in (yield from read_topics(frame, api)):
            if topic.name and topic.error_code == ErrorCode.NONE:
                self._ids.learn(topic.topic_id, topic.name)
        return self._rewrite(api, frame, now_ms)

    def _rewrite(self, api: Api, frame: bytes, _now_ms: int) -> bytes:
        return rewrite_metadata(frame, api, self._context.topology.advertise)

    def _count_created(
        self, session: Session, client_id: str, api: Api, frame: bytes, now_ms: int
    ) -> Steps[bytes | None]:
        """The answer to a client without a quota: created topics are only counted."""
        if self._context.topology.cluster.auto_create_topics:
            unknown = list((yield from topics_in_error(frame, api, _UNKNOWN)))
            created = 0
            for at in range(0, len(unknown), _CHARGED_AT_ONCE):
                if at:
                    now_ms = yield
                self._context.recent_topics.catch_up()
                for name in self._claim(unknown[at : at + _CHARGED_AT_ONCE], now_ms):
                    self._charge(session, client_id, name, strict=False, now_ms=now_ms)
                    created += 1
            self._tell(created)
        return self._rewrite(api, frame, now_ms)

    # -- clients with a limit --------------------------------------------------------------------------------

    def _look_first(
        self, session: Session, api: Api, frame: bytes, question: MetadataQuestion, client_id: str
    ) -> None:
        session.mute(MuteReason.AWAITING_REPLY)
        if question.flag_offset is not None:
            look, asked = forbid_creation(frame, question), api
        else:
            look, asked = upgrade_question(frame, api, question), _UPGRADED
        on_reply = partial(self._on_look, session, api, asked, client_id)
        session.ask_upstream(look, correlation_id_of(look), on_reply)

    def _on_look(
        self,
        session: Session,
        api: Api,
        asked: Api,
        client_id: str,
        answer: bytes,
        now_ms: int,
    ) -> Steps[bytes | None]:
        """Handle the first answer. If topics are to be created, the client's answer waits for the second request."""
        unknown = yield from topics_in_error(answer, asked, _UNKNOWN)
        if unknown and self._context.topology.cluster.auto_create_topics:
            charged: dict[bytes, MutationDecision] = {}
            changes: dict[bytes, TopicChange] = {}
            own = self._context.own_topics.names  # the gateway creates them itself, with the right settings
            names = list(unknown)
            for at in range(0, len(names), _CHARGED_AT_ONCE):
                if at:
                    now_ms = yield
                self._context.recent_topics.catch_up()
                some = names[at : at + _CHARGED_AT_ONCE]
                wanted = [name for name in some if name not in own and is_valid_topic_name(name)]
                for name in self._claim(wanted, now_ms):
                    self._admit(session, client_id, name, charged, changes, now_ms)
            self._tell(len(charged))
            if charged:
                now_ms = yield
                self._context.recent_topics.catch_up()
                creating = codec.metadata_by_name_request(list(charged), client_id=client_id, may_create=True)

                def on_created(created: bytes, now_ms: int) -> Steps[bytes | None]:
                    yield from self._settle(charged, changes, created, now_ms)
                    errors = yield from topics_in_error(created, codec.METADATA_BY_NAME)
                    now_ms = yield
                    patched = copy_errors(answer, unknown, created, errors)
                    now_ms = yield
                    yield from self._end_look(session, patched, asked, api, now_ms)
                    return None

                session.ask_upstream(creating, codec.OWN_CORRELATION_ID, on_created)
                return None
        yield from self._end_look(session, answer, asked, api, now_ms)
        return None

    def _end_look(self, session: Session, answer: bytes, asked: Api, api: Api, now_ms: int) -> Steps[None]:
        told = yield from self._tell_client(answer, asked, api, now_ms)
        session.answer(told, now_ms=now_ms)
        session.release(MuteReason.AWAITING_REPLY)

    def _tell_client(self, answer: bytes, asked: Api, api: Api, now_ms: int) -> Steps[bytes]:
        answer = self._rewrite(asked, answer, now_ms)
        return answer if asked is api else (yield from downgrade_answer(answer, api))

    def _admit(
        self,
        session: Session,
        client_id: str,
        name: bytes,
        charged: dict[bytes, MutationDecision],
        changes: dict[bytes, TopicChange],
        now_ms: int,
    ) -> None:
        """Charge an unknown topic that is to be created."""
        decision = self._charge(session, client_id, name, strict=True, now_ms=now_ms)
        if decision.accepted:
            charged[name] = decision
        else:
            self._context.recent_topics.end_creation(name)
        if decision.is_limited:
            changes[name] = self._context.recent_topics.begin(
                name, self._permits(name), MOST_UNDER_WAY_MS, now_ms=now_ms
            )

    def _settle(
        self,
        charged: dict[bytes, MutationDecision],
        changes: dict[bytes, TopicChange],
        created: bytes,
        now_ms: int,
    ) -> Steps[None]:
        """Refund the topics that the broker did not create, because they exist or the client is not allowed to."""
        under_way = yield from topics_in_error(created, codec.METADATA_BY_NAME, _BEING_CREATED)
        recent = self._context.recent_topics
        for done, (name, decision) in enumerate(charged.items()):
            if done % _CHARGED_AT_ONCE == 0:
                if done:
                    now_ms = yield
                recent.catch_up()
            change = changes.get(name)
            if name not in under_way:
                self._context.mutations.refund(decision, now_ms=now_ms)
                recent.end_creation(name)
                if change is not None:
                    recent.end_refused(change)
            elif change is None or recent.end_done(change, self._permits(name), now_ms=now_ms):
                # A client that deletes the topic before Metadata shows it is charged for these partitions.
                recent.note(name, self._permits(name), now_ms=now_ms)

    # -- what is charged -------------------------------------------------------------------------------------

    def _charge(
        self, session: Session, client_id: str, name: bytes, *, strict: bool, now_ms: int
    ) -> MutationDecision:
        decision, _ = charge_creation(
            self._context, session, client_id, name, self._permits(name), strict=strict, now_ms=now_ms
        )
        return decision

    def _permits(self, name: bytes) -> int:
        return auto_create_permits(name, self._context.topology.cluster.default_num_partitions)

    def _tell(self, created: int) -> None:
        if created:
            self._context.observer.topics_auto_created(created)

    def _claim(self, names: Sequence[bytes], now_ms: int) -> list[bytes]:
        """The topics that this request creates. If several requests name a topic, only the first is charged."""
        recent = self._context.recent_topics
        # Topics from CreateTopics exist already, even if Metadata does not show them yet.
        return recent.claim_creations(
            [name for name in names if not recent.partitions(name, now_ms=now_ms)], now_ms=now_ms
        )
