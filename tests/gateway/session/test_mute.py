"""Reasons are a set: each is there or not, whoever put it there."""

from __future__ import annotations

from gateway.session.mute import MuteReason
from testkit.conversation import Conversation


def test_every_reason_is_a_bit_of_its_own() -> None:
    together = 0
    for reason in MuteReason:
        assert reason.value.bit_count() == 1
        assert not together & reason
        together |= reason


def test_a_reason_given_twice_goes_at_once() -> None:
    for reason in MuteReason:
        Conversation().mute(reason).mute(reason).still_muted().unmute(reason).reading()


def test_reading_resumes_only_when_the_last_reason_has_gone() -> None:
    c = Conversation()
    for reason in MuteReason:
        c.mute(reason)
    for reason in MuteReason:
        c.still_muted().unmute(reason)
    c.reading()
