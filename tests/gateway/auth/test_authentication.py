"""The exchange of one connection: whatever is said, there is no principal that the broker did not accept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.authentication import Authentication, Progress, SaslRules
from protocol.errors import ProtocolError
from protocol.sasl import AuthenticateReply, Mechanism, claimed
from testkit.sasl import EXCHANGES, SCRAM_CHALLENGE, SCRAM_FIRST, SCRAM_PROOF, SCRAM_SIGNATURE, oauth

RULES = SaslRules()


def after(mechanism: Mechanism, *rounds: tuple[bytes, AuthenticateReply]) -> tuple[Authentication, Progress]:
    """An exchange up to here, and what its last reply meant."""
    exchange = Authentication(RULES)
    exchange.begin(mechanism)
    progress = exchange.handshake_answered(0)
    for message, reply in rounds:
        assert exchange.takes_tokens()
        exchange.send(message)
        progress = exchange.answered(reply)
    return exchange, progress


def test_mechanism_without_a_name_is_never_over_by_itself() -> None:
    exchange, progress = after(Mechanism.OTHER, (b"a", AuthenticateReply(0, b"")))
    assert (exchange.principal, progress) == (None, Progress.UNCLEAR)
    exchange.confirmed()
    assert exchange.principal == "unknown"


REFUSED_TOKEN = AuthenticateReply(0, b'{"status":"invalid_token"}')


def test_h02_acknowledgement_of_an_error_names_nobody() -> None:
    exchange, _ = after(Mechanism.OAUTHBEARER, (oauth("alice"), REFUSED_TOKEN), (b"\x01", AuthenticateReply(0, b"")))
    assert exchange.principal == "unknown"


@pytest.mark.parametrize("mechanism", [Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512])
def test_h02_scram_can_not_be_begun_again_under_another_name(mechanism: Mechanism) -> None:
    """The broker's ScramSaslServer would refuse it; a broker that did not would prove neither name to us."""
    first, proof = EXCHANGES[mechanism]
    again = (SCRAM_FIRST.replace(b"alice", b"bob"), AuthenticateReply(0, SCRAM_CHALLENGE))
    exchange, progress = after(
        mechanism, (first[0], AuthenticateReply(0, first[1])), again, (proof[0], AuthenticateReply(0, proof[1]))
    )
    assert (exchange.principal, progress) == (None, Progress.CONTINUES)


MESSAGES = st.sampled_from(
    [b"\0alice\0x", b"\0bob\0x", b"\0\0", SCRAM_FIRST, SCRAM_PROOF, oauth("alice"), oauth("bob"), b"\x01", b""]
)
REPLIES = st.builds(
    AuthenticateReply,
    st.sampled_from([0, 0, 0, 34, 58]),
    st.sampled_from([b"", SCRAM_CHALLENGE, SCRAM_SIGNATURE, b'{"status":"x"}']),
)
# Several tokens in one exchange would hardly be met otherwise.
TOKENS = st.tuples(
    st.just("token"),
    st.sampled_from([oauth("alice"), oauth("bob"), b"\x01"]),
    st.sampled_from([REFUSED_TOKEN, AuthenticateReply(0, b"")]),
)
ONE_EXCHANGE = st.lists(TOKENS, max_size=6).map(lambda tokens: [("handshake", Mechanism.OAUTHBEARER, 0), *tokens])
EVENTS = ONE_EXCHANGE | st.lists(
    st.one_of(
        st.tuples(st.just("handshake"), st.sampled_from(list(Mechanism)), st.sampled_from([0, 0, 33])),
        st.tuples(st.just("token"), MESSAGES, REPLIES),
    ),
    max_size=12,
)


@given(EVENTS)
def test_h01_h02_no_principal_without_the_brokers_success(events: list[tuple[str, object, object]]) -> None:
    """A principal comes with a reply that ends its exchange well, and is the name that the broker judged."""
    exchange = Authentication(RULES)
    judged: bytes | None = None
    for kind, said, answer in events:
        before = exchange.principal
        try:
            if kind == "handshake":
                assert isinstance(said, Mechanism)
                assert isinstance(answer, int)
                exchange.begin(said)
                exchange.handshake_answered(answer)
                judged = None
                assert exchange.principal == before
                continue
            assert isinstance(said, bytes)
            assert isinstance(answer, AuthenticateReply)
            if not exchange.takes_tokens():
                continue
        except ProtocolError:
            return  # the connection is closed
        exchange.send(said)
        assert exchange.principal == before, "a message of the client is no success"
        # PLAIN has one message, SCRAM's name is in the first; a second token of OAuth is judged instead of the first.
        if judged is None or exchange.mechanism is Mechanism.OAUTHBEARER:
            judged = said
        progress = exchange.answered(answer)
        if exchange.principal != before or progress is Progress.SUCCEEDED:
            assert answer.error_code == 0
            claim = claimed(exchange.mechanism, judged, oauth_claim="sub")
            assert exchange.principal == (claim.name or "unknown")
            if exchange.mechanism.scram:
                assert answer.auth_bytes == SCRAM_SIGNATURE
            if exchange.mechanism is Mechanism.OAUTHBEARER:
                assert answer.auth_bytes == b""
        if answer.error_code:
            assert progress is Progress.FAILED
            return
