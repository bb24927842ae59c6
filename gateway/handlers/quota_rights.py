"""Decides whether a client may administer quotas, itself or with the broker on the client's own connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from gateway.quota_admin.rights import QuotaAdmin
from gateway.session.mute import MuteReason
from gateway.session.routes import Session
from protocol.error_codes import ErrorCode
from protocol.headers import correlation_id_of


class Refusal(NamedTuple):
    """Why a request is refused, as in the answer."""

    error_code: int
    error_message: str | None


NOT_AUTHORISED: Final = Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

Decided: TypeAlias = Callable[[Refusal | None, int], None]
"""(the refusal or None if the client may, now_ms) -> nothing."""


def decide(
    admin: QuotaAdmin,
    session: Session,
    question: bytes,
    read_outcome: Callable[[bytes], Refusal | None],
    decided: Decided,
    *,
    now_ms: int,
) -> None:
    """Find out whether the client may administer quotas, and call `decided` at once or after the broker's answer.

    Args:
        admin: knows the rights.
        session: the client's, whose next request waits meanwhile.
        question: the request for the broker, if the cluster decides.
        read_outcome: returns the refusal in the broker's answer.
        decided: called once.
        now_ms: the time.
    """
    may = admin.may(session.user)
    if may is not None:
        decided(None if may else NOT_AUTHORISED, now_ms)
        return

    def on_reply(frame: bytes, now_ms: int) -> None:
        # Before `decided`, which may mute the client for another reason.
        session.release(MuteReason.AWAITING_REPLY)
        decided(read_outcome(frame), now_ms)

    session.mute(MuteReason.AWAITING_REPLY)
    session.ask_upstream(question, correlation_id_of(question), on_reply)
