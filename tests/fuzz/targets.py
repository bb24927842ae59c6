"""What is parsed before anybody is known, as functions of bytes for a coverage-guided fuzzer (`atheris_run`).

Each takes any bytes, allows the errors that its parser promises, and asserts what must hold of a value; any other
exception is a find. `SEEDS` are the inputs that a run begins with.
"""

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

from config.java_regex import JavaRegexError, compile_java
from config.mapping_rules import MappingRules, NoRuleMatches
from gateway.auth.authentication import Authentication, IllegalSaslState, Progress, SaslRules
from gateway.auth.principals import UnreadableName, principal_name, rfc2253_name
from protocol import sasl as messages
from protocol.api_keys import ApiKey, describe
from protocol.client_quota_messages import parse_alter, parse_describe, read_alter_outcome, read_describe_outcome
from protocol.errors import ProtocolError
from protocol.proxy_protocol import (
    MAX_V1_BYTES,
    MAX_V2_LENGTH,
    ProxyHeader,
    ProxyHeaderReader,
    ProxyProtocolError,
    ProxyVersion,
    build_header,
)
from protocol.sasl import AuthenticateReply, Mechanism, claimed
from protocol.scram import ScramClient
from protocol.steps import finish

Target: TypeAlias = Callable[[bytes], None]

_MECHANISMS: Final = tuple(Mechanism)
_V2_HEAD_BYTES: Final = 16
_READS: Final = 8  # how many ways `sasl` has to read its input
_SHORT_NAMES: Final = ("CN=a", "CN=b,O=c")


# -- PROXY protocol ------------------------------------------------------------------------------------------
def proxy_protocol(data: bytes) -> None:
    """A header is read alike in one piece and byte by byte, never beyond its end, and says only addresses."""
    whole, taken = _read_header(data, len(data))
    assert _read_header(data, 1) == (whole, taken)
    if whole is None:
        return
    assert taken <= max(MAX_V1_BYTES, _V2_HEAD_BYTES + MAX_V2_LENGTH)
    assert _read_header(data[:taken], taken) == (whole, taken)
    if whole.source is None or whole.destination is None:
        assert whole == ProxyHeader()
        return
    for host, port in (whole.source, whole.destination):
        ipaddress.ip_address(host)
        assert 0 <= port <= 65_535
    for version in ProxyVersion:
        again = build_header(version, whole.source, whole.destination)
        assert _read_header(again, len(again)) == (whole, len(again))


def _read_header(data: bytes, step: int) -> tuple[ProxyHeader | None, int]:
    """The header, and how many bytes were taken; -1 when refused."""
    reader = ProxyHeaderReader()
    at = 0
    try:
        while reader.header is None and at < len(data):
            shown = data[at : at + min(step, reader.most)]
            taken = reader.feed(shown)
            assert 0 < taken <= len(shown)
            at += taken
    except ProxyProtocolError:
        return None, -1
    return reader.header, at


# -- certificates --------------------------------------------------------------------------------------------
def principals(data: bytes) -> None:
    """A certificate, or a name, is a text that can be written down, or unreadable."""
    with suppress(UnreadableName, NoRuleMatches):
        principal_name(data).encode()
    for all_utf8 in (False, True):
        with suppress(UnreadableName):
            rfc2253_name(data, all_utf8=all_utf8).encode()


def mapping_rules(data: bytes) -> None:
    """Mapping rules are refused when they are read, or work."""
    text = data.decode("utf-8", "replace")
    with suppress(JavaRegexError):
        compile_java(text)
    with suppress(ValueError):
        rules = MappingRules.parse(text)
        for name in _SHORT_NAMES:
            with suppress(NoRuleMatches):
                assert isinstance(rules.name(name), str)


# -- SASL ----------------------------------------------------------------------------------------------------
def sasl(data: bytes) -> None:
    """Messages and frames of SASL, from clients and brokers; and whole exchanges."""
    way, rest = data[:1], data[1:]
    if not way:
        return
    number = way[0] % _READS
    if number < len(_MECHANISMS):
        _claim(_MECHANISMS[number], rest)
    elif number == len(_MECHANISMS):
        _sasl_frames(rest)
    elif number == len(_MECHANISMS) + 1:
        _scram_client(rest)
    else:
        _exchange(rest)


def _claim(mechanism: Mechanism, message: bytes) -> None:
    claim = claimed(mechanism, message, oauth_claim="sub")
    if claim.name is None:
        return
    assert 1 <= len(claim.name) <= messages.MAX_NAME_CHARS
    claim.name.encode("utf-8", "surrogatepass")
    if mechanism is Mechanism.PLAIN:
        authzid, authcid, password = message.split(b"\0")
        assert authzid in (b"", authcid)
        assert password
        assert claim.name == authcid.decode("utf-8", "replace")
    elif mechanism.scram:
        assert b"n=" in message
        assert message.startswith(b"n,")


def _sasl_frames(frame: bytes) -> None:
    for version in (0, 1, 2):
        handshake = describe(ApiKey.SASL_HANDSHAKE, min(version, 1))
        authenticate = describe(ApiKey.SASL_AUTHENTICATE, version)
        for read in (
            lambda api=handshake: messages.read_mechanism(frame, api),
            lambda api=authenticate: messages.read_auth_bytes(frame, api),
            lambda: messages.read_handshake_error(frame),
            lambda api=authenticate: messages.read_authenticate_reply(frame, api),
            lambda api=authenticate: messages.read_error_message(frame, api),
        ):
            with suppress(ProtocolError):
                read()


def _scram_client(data: bytes) -> None:
    """The gateway's own side, with whatever a broker says; asking for work within reason."""
    first, _, last = data.partition(b"\0")
    if b"i=" in first and first.rpartition(b"i=")[2].split(b",")[0] not in (b"1", b"2"):
        first = first.replace(b"i=", b"i=1,x=")
    client = ScramClient(Mechanism.SCRAM_SHA_256, "u", "secret", nonce="n")
    client.first()
    with suppress(ProtocolError):
        assert b"secret" not in client.final(first)
        client.verify(last)
        raise AssertionError("nobody can sign without the password")


def _exchange(data: bytes) -> None:
    """No principal but the one whose message a broker's reply says success to (hazards H01, H02, H12)."""
    exchange = Authentication(SaslRules())
    judged: bytes | None = None
    for operation, payload in _steps(data):
        before = exchange.principal
        allowed = False
        with suppress(IllegalSaslState):
            if operation == 0:
                exchange.begin(_MECHANISMS[len(payload) % len(_MECHANISMS)])
                judged = None
            elif operation == 1:
                exchange.handshake_answered(33 if payload else 0)
            elif operation == 2:
                if exchange.takes_tokens():
                    exchange.send(payload)
                    if exchange.mechanism is Mechanism.OAUTHBEARER or judged is None:
                        judged = payload
            elif operation == 3:
                allowed = True
                if exchange.answered(AuthenticateReply(0, payload)) is Progress.SUCCEEDED:
                    claim = claimed(exchange.mechanism, judged or b"", oauth_claim="sub")
                    name = None if claim.by_delegation_token else claim.name
                    assert exchange.principal == (name or "unknown")
            else:
                exchange.answered(AuthenticateReply(58, payload))
        assert allowed or exchange.principal == before


def _steps(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Pairs of an operation and its payload, whose length is the next byte."""
    at = 0
    while at + 2 <= len(data):
        end = at + 2 + data[at + 1]
        yield data[at] % 5, data[at + 2 : end]
        at = end


# -- quota APIs ----------------------------------------------------------------------------------------------
def client_quotas(data: bytes) -> None:
    """Requests and answers of the quota APIs (KIP-546)."""
    for version in (0, 1):
        alter = describe(ApiKey.ALTER_CLIENT_QUOTAS, version)
        ask = describe(ApiKey.DESCRIBE_CLIENT_QUOTAS, version)
        for read, api in (
            (lambda frame, of: finish(parse_alter(frame, of)), alter),
            (read_alter_outcome, alter),
            (parse_describe, ask),
            (read_describe_outcome, ask),
        ):
            with suppress(ProtocolError):
                read(data, api)  # type: ignore[operator]


# -- what a run begins with ----------------------------------------------------------------------------------
TARGETS: Final[dict[str, Target]] = {
    target.__name__: target for target in (proxy_protocol, principals, mapping_rules, sasl, client_quotas)
}

_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_HEAD: Final = b"\x00\x00\x00\x20\x00\x24\x00\x01\x00\x00\x00\x01\x00\x01c"

SEEDS: Final[dict[str, tuple[bytes, ...]]] = {
    "proxy_protocol": (
        b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 9092\r\n",
        b"PROXY TCP6 2001:db8::7 ::ffff:192.0.2.1 1 2\r\nrest",
        b"PROXY UNKNOWN\r\n",
        _V2 + b"\x21\x11\x00\x0c\xc0\x00\x02\x07\xc0\x00\x02\x01\x9c\x40\x23\x84",
        _V2 + b"\x21\x21\x00\x2b" + bytes(32) + b"\x00\x01\x00\x02\x03\x00\x04\x00\x00\x00\x00",
        _V2 + b"\x20\x00\x00\x00",
    ),
    "principals": (
        bytes.fromhex("300c310a300806035504030c0161"),
        bytes.fromhex("301b310b300906035504060c02444531 0c300a06035504030c03 2c2361".replace(" ", "")),
    ),
    "mapping_rules": (
        b"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        b"RULE:CN=(?<who>[\\w.-]+).*/${who}\\/x/U",
        b"RULE:\\Qa\\E[^,]{1,3}+\\p{Alpha}(?:b|c)?/$0\\$/",
    ),
    "sasl": (
        b"\x00\0alice\0secret",
        b"\x01n,,n=a=2Cb,r=nonce",
        b"\x02n,a=x,n=id,r=nonce,tokenauth=true",
        b"\x03n,,\x01auth=Bearer e30.eyJzdWIiOiAiYWxpY2UifQ.\x01\x01",
        b"\x05" + _HEAD + b"\x00\x05PLAIN",
        b"\x06r=nx,s=c2FsdA==,i=1\0v=AAAA",
        b"\x07\x00\x00\x01\x00\x02\x04\0a\0p\x03\x00",
        b"\x07\x00\x01x\x01\x00\x02\x09n,,n=a,r=\x03\x02r=\x02\x02c=\x03\x04v=AA",
        b"\x07\x00\x03xxx\x01\x00\x02\x26n,,\x01auth=Bearer e30.eyJzdWIiOiJiIn0.\x01\x01\x03\x01e"
        b"\x02\x26n,,\x01auth=Bearer e30.eyJzdWIiOiJhIn0.\x01\x01\x03\x00",
    ),
    "client_quotas": (
        b"\x00\x00\x00\x25\x00\x31\x00\x00\x00\x00\x00\x01\x00\x01c\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x25\x00\x30\x00\x01\x00\x00\x00\x01\x00\x01c\x00\x02\x05user\x00\x02u\x00\x00\x00",
    ),
}
