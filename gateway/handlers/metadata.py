"""Metadata: rewrites addresses, and charges topics that the broker creates to the client that named them.

A client with a mutation quota is asked for in two steps: first without the permission to create, then, when topics
turned out to be unknown, each is charged as CreateTopics would be (strict, one by one, in the order of the answer),
and those that are paid for, no others, are named in a question of our own that may create. The client gets the
first answer, with the errors of the second: a broker answers the same when it creates a topic. In debt there is no
second question, so the topic stays unknown and nothing is throttled: what a broker in the same situation answers.
The client's own request never continues with the permission, since topics of the first answer may be gone by then.
Nothing else of the connection is looked at meanwhile, so that many requests at once cannot all find the same
tokens. A topic under way is charged once and asked for once: clients ask until it is there, and a second permission
would create it again when it has been deleted meanwhile.

One of the gateway's own topics is created for no client: a request that names one is asked in two steps as well.

Where no client has such a quota and usage records are kept, requests are relayed as they come; what they create is
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
"""Topics in one step, about 20 us each."""
_UPGRADED: Final = describe(ApiKey.METADATA, FIRST_VERSION_WITH_FLAG)
_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_BEING_CREATED: Final = _UNKNOWN | {ErrorCode.LEADER_NOT_AVAILABLE}
"""KRaft answers the first for a topic that it is about to create, brokers with ZooKeeper the second."""


class MetadataHandler:
    """Forwards the question, with or without the permission to create, and rewrites the answer."""

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
        """None when it can't be read and need not be, as nothing is charged: the broker says what is wrong."""
        try:
            return (yield from parse_metadata_question(frame, api))
        except ProtocolError:
            if self._context.mutations_enabled or self._context.own_topics:
                raise
            return None

    def _learns(self, api: Api) -> bool:
        """Whether names of topics are wanted for the ids in these answers."""
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
        """The answer to a client without a quota: what it creates is only counted."""
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
        """The answer to a question that creates nothing comes; where topics are to be created, it waits for them."""
        unknown = yield from topics_in_error(answer, asked, _UNKNOWN)
        if unknown and self._context.topology.cluster.auto_create_topics:
            charged: dict[bytes, MutationDecision] = {}
            changes: dict[bytes, TopicChange] = {}
            own = self._context.own_topics.names  # the gateway makes them itself, as they have to be
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
        """Charge this unknown topic, which is to be created."""
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
        """Give back what was charged for topics that the broker does not create after all (not allowed, there)."""
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
                # Who deletes it before Metadata shows it pays for what was created.
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
        """Which of them this request creates; of several that ask at once, or poll for one, one is charged."""
        recent = self._context.recent_topics
        # What was created by request is there; Metadata lags.
        return recent.claim_creations(
            [name for name in names if not recent.partitions(name, now_ms=now_ms)], now_ms=now_ms
        )
