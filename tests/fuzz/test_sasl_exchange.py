"""Whatever client and broker say in whatever order, a session has a user only after the broker's success.

The broker here is any sequence of replies; what it means by them is judged by a table of its own, not by our code.
"""

from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st

from testkit import wire
from testkit.examples import A_THIRD
from testkit.sasl import (
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

SCRAM: Final = "SCRAM-SHA-256"
MESSAGES: Final = {
    b"\0alice\0x": ("PLAIN", "alice"),
    b"\0bob\0x": ("PLAIN", "bob"),
    b"\0\0\0": ("", ""),
    SCRAM_FIRST: (SCRAM, "alice"),
    SCRAM_FIRST.replace(b"alice", b"bob"): (SCRAM, "bob"),
    SCRAM_PROOF: ("", ""),
    oauth("alice"): ("OAUTHBEARER", "alice"),
    oauth("bob"): ("OAUTHBEARER", "bob"),
    b"\x01": ("", ""),
    b"": ("", ""),
}
"""Message -> the mechanism in which it names somebody, and whom."""
ANSWERS: Final = (b"", SCRAM_CHALLENGE, SCRAM_SIGNATURE, b'{"status":"invalid_token"}')
ERRORS: Final = (0, 0, 0, 34, 58)
PRODUCE: Final = wire.request("Produce", 3, correlation_id=77, acks=1, timeout_ms=1, topic_data=[])

SAYS: Final = st.one_of(
    st.tuples(st.just("handshake"), st.sampled_from(("PLAIN", SCRAM, "OAUTHBEARER", "GSSAPI"))),
    st.tuples(st.just("token"), st.sampled_from(list(MESSAGES))),
    st.tuples(st.just("produce"), st.just(b"")),
)
TURNS: Final = st.lists(
    st.tuples(SAYS, st.sampled_from(ERRORS), st.sampled_from(ANSWERS), st.booleans()), max_size=10
)

# (mechanism, messages so far, answer) that ends an exchange well, for the mechanisms that are understood.
ENDS: Final = {("PLAIN", 1, answer) for answer in ANSWERS} | {
    (SCRAM, 2, SCRAM_SIGNATURE),
    *(("OAUTHBEARER", count, b"") for count in range(1, 11)),
}
INVALID_TOKEN: Final = ANSWERS[3]
A_REFUSED_TOKEN_BEFORE: Final = [
    (("handshake", "OAUTHBEARER"), 0, b"", False),
    (("token", oauth("bob")), 0, INVALID_TOKEN, False),
    (("token", oauth("alice")), 0, b"", False),
]


def accepted_name(mechanism: str, messages: list[bytes]) -> str:
    """Whom a broker takes for the user when the last of these messages of an exchange has ended it well.

    PLAIN has one message. ScramSaslServer reads the name in the first one, and the second one is its proof.
    OAuthBearerSaslServer begins anew with each message and keeps the token that it has accepted: the last one.
    """
    spoken_in, name = MESSAGES[messages[0] if mechanism == SCRAM else messages[-1]]
    return name if spoken_in == mechanism else "unknown"


@A_THIRD
@example(A_REFUSED_TOKEN_BEFORE)
@given(TURNS)
def test_h01_h02_h12_no_user_without_the_brokers_success(turns: list[Any]) -> None:
    c = SaslConversation()
    mechanism, sent = "", list[bytes]()
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
            mechanism, sent = said, []
        else:
            reply = token_reply(number, answer, error_code=error)
            sent.append(said)
        c.upstream_answers(reply)
        if kind == "token" and error == 0 and (mechanism, len(sent), answer) in ENDS:
            assert c.user == accepted_name(mechanism, sent)
        else:
            assert c.user == before
        if pipelined:
            return
