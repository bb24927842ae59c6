"""Metadata: our addresses, and topics that the broker creates by itself charged to the client that named them.

KRaft answers UNKNOWN_TOPIC_OR_PARTITION for a topic that it is about to create, so every such name in the answer
of a request that may create costs `num.partitions` permits (once; clients ask again until the topic is there). In
debt the permission to create is taken out of the request before it is forwarded, so Kafka's answer is the one that
a broker in the same situation gives: the topic stays unknown, nothing is throttled.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.handlers.context import MAX_REQUEST_BYTES, HandlerContext
from gateway.in_flight import CollectedAnswer
from gateway.routes import Route
from gateway.session import ClientSession
from protocol.addresses import rewrite_metadata
from protocol.api_keys import Api, ApiKey, describe
from protocol.headers import correlation_id_of
from protocol.metadata import (
    FIRST_VERSION_WITH_FLAG,
    downgrade_answer,
    forbid_creation,
    parse_metadata_question,
    unknown_topics,
    upgrade_question,
)

CREATION_NOTE_MS: Final = 10_000
"""How long a topic counts as being created: longer than a controller needs, shorter than a person retries."""

MOST_CREATION_NOTES: Final = 10_000
_UPGRADED: Final = describe(ApiKey.METADATA, FIRST_VERSION_WITH_FLAG)


class MetadataHandler:
    """Forwards the question, with or without the permission to create, and rewrites the answer."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def on_request(self, session: ClientSession, route: Route, frame: bytes, *, now_ms: int) -> None:
        """See `RequestHandler`."""
        context = self._context
        api = route.api
        on_reply = partial(self._rewrite, api)
        if context.mutations_enabled:
            question = parse_metadata_question(frame, api)
            if question.may_create and question.names:
                client_id = session.client_id_of(frame)
                if not context.mutations.throttle_time_ms(session.user, client_id, now_ms=now_ms):
                    on_reply = partial(self._charge_created, session.user, client_id, api)
                elif question.flag_offset is not None:
                    frame = forbid_creation(frame, question)
                else:
                    frame = upgrade_question(frame, api, question)
                    on_reply = partial(self._downgrade, api)
        session.forward(frame, correlation_id_of(frame), CollectedAnswer(on_reply))

    def _rewrite(self, api: Api, frame: bytes, _now_ms: int) -> bytes:
        return rewrite_metadata(frame, api, self._context.topology.advertise)

    def _downgrade(self, api: Api, frame: bytes, now_ms: int) -> bytes:
        return downgrade_answer(self._rewrite(_UPGRADED, frame, now_ms), api)

    def _charge_created(self, user: str, client_id: str, api: Api, frame: bytes, now_ms: int) -> bytes:
        context = self._context
        if context.topology.cluster.auto_create_topics:
            created = [name for name in unknown_topics(frame, api) if self._note_creation(name, now_ms)]
            permits = context.topology.cluster.default_num_partitions
            for _ in created:
                # The broker has decided already; a refusal would come too late, so this one is permissive.
                context.mutations.charge(user, client_id, permits, strict=False, now_ms=now_ms)
            if created:
                context.observer.topics_auto_created(len(created))
        return self._rewrite(api, frame, now_ms)

    def _note_creation(self, name: bytes, now_ms: int) -> bool:
        """Whether this name is new, so that polling for a topic under way is charged once."""
        if self._context.recent_topics.partitions(name, now_ms=now_ms):
            return False  # it was created by request; Metadata lags
        notes = self._context.recently_created
        if notes.get(name, 0) > now_ms:
            return False
        if len(notes) >= MOST_CREATION_NOTES:
            expired = [known for known, expires_ms in notes.items() if expires_ms <= now_ms]
            for known in expired or [next(iter(notes))]:
                del notes[known]
        notes[name] = now_ms + CREATION_NOTE_MS
        return True
