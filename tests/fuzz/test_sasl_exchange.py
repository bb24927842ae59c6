"""Whatever client and broker say in whatever order, a session has a user only after the broker's success.

The broker here is any sequence of replies; what it means by them is judged by a table of its own, not by our code.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from tests.support import wire
from tests.support.examples import A_THIRD
from tests.support.sasl import (
    SCRAM_CHALLENGE,
    SCRAM_FIRST,
    SCRAM_PROOF,
    SCRAM_SIGNATURE,
    SaslConversation,
    handshake,
    oauth,
    token,
    token_reply,
)

MESSAGES: Final = (
    b"\0alice\0x",
    b"\0bob\0x",
    b"\0\0\0",
    SCRAM_FIRST,
    SCRAM_PROOF,
    oauth("alice"),
    b"\x01",
    b"",
)
ANSWERS: Final = (b"", SCRAM_CHALLENGE, SCRAM_SIGNATURE, b'{"status":"invalid_token"}')
ERRORS: Final = (0, 0, 0, 34, 58)
PRODUCE: Final = wire.request("Produce", 3, correlation_id=77, acks=1, timeout_ms=1, topic_data=[])

SAYS: Final = st.one_of(
    st.tuples(st.just("handshake"), st.sampled_from(("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI"))),
    st.tuples(st.just("token"), st.sampled_from(MESSAGES)),
    st.tuples(st.just("produce"), st.just(b"")),
)
TURNS: Final = st.lists(
    st.tuples(SAYS, st.sampled_from(ERRORS), st.sampled_from(ANSWERS), st.booleans()), max_size=10
)

# (mechanism, messages so far, answer) that ends an exchange well, for the mechanisms that are understood.
ENDS: Final = {("PLAIN", 1, answer) for answer in ANSWERS} | {
    ("SCRAM-SHA-256", 2, SCRAM_SIGNATURE),
    *(("OAUTHBEARER", count, b"") for count in range(1, 11)),
}


@A_THIRD
@given(TURNS)
def test_h01_h02_h12_no_user_without_the_brokers_success(turns: list[Any]) -> None:
    c = SaslConversation()
    mechanism, sent = "", 0
    for number, ((kind, said), error, answer, pipelined) in enumerate(turns):
        if c.closed_by is not None:
            return
        before = c.user
        if kind == "handshake":
            frames = [handshake(said, number)[0]]
        elif kind == "token":
            frames = [token(said, number)]
        else:
            frames = [PRODUCE]
        if pipelined:
            frames.append(PRODUCE)
        c.client_sends(*frames)
        assert c.user == before, "the client's word changed who it is"
        asked = c.take_upstream()
        if before == "ANONYMOUS":
            assert PRODUCE not in asked, "a request went ahead of the broker's success"
        if c.closed_by is not None:
            return
        if not asked.startswith(frames[0][:8]) or kind == "produce":
            return  # it waits for a confirmation, or is a plain request: what follows is another test's
        if kind == "handshake":
            reply = handshake(said, number, error_code=error)[1]
            mechanism, sent = said, 0
        else:
            reply = token_reply(number, answer, error_code=error)
            sent += 1
        c.upstream_answers(reply)
        if c.user != before:
            assert kind == "token"
            assert error == 0
            assert (mechanism, sent, answer) in ENDS
        if pipelined:
            return
