"""Names of certificates, side by side with Java's own and with Kafka's mapping of them (hazard H20)."""

import base64
import random
import re
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from struct import pack, unpack_from
from typing import Final

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings

from config.mapping_rules import MappingRules, NoRuleMatches
from gateway.auth.principals import UnreadableName, principal_name, rfc2253_name
from testkit import names, wire
from testkit.secure_kafka import SecureKafka
from tests.integration.java_programs import run_java

pytestmark = pytest.mark.integration

_REFUSED: Final = "!"
_RULES: Final = (
    "DEFAULT",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT",
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U , DEFAULT",
    " RULE:.*/x/ ",
    "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
    r"RULE:CN=(?<who>[\w.-]+).*/${who}\/x/",
    "RULE:^CN=(.*?)(,.*)?$/$1$2/",
    "RULE:(?i)cn=(.*)/a$0b/",
    "RULE:^CN=([^,]{1,3}).*/$1$5/",
    r"RULE:^CN=(\p{Alpha}+).*/$12/U",
)
_NAMES: Final = (
    "CN=kafka-server1,OU=KAFKA",
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
    "cn=Duke,ou=JavaSoft,dc=Example,dc=Com",
    "",
    "CN=é\nx\r\n",
    "CN=x\n",
    "CN=x\u2028",
    "OU=b+CN=q\\,r,C=1",
    "CN=straße,ST=İ Σς",
    "1.2=#0c01,CN=a-b.c_d",
)
_PIECES: Final = (
    "CN", "=", "(", ")", "(.*?)", "(.*)", ".*", "^", "$", ",", r"\,", "[^,]", "+", "*", "?", "a", r"\w", r"\d", r"\s",
    "[a-zA-Z]", "{1,2}", "|", r"\.", "(?:", "(?<n>", r"\Q.\E", ".", "O", "U", r"\/", r"\$", r"\Z", r"\z", r"\A",
    r"\1", r"\p{Lower}", r"[\w.-]", "[--/]", "(?i)", "(?=", "\n", " ",
)  # fmt: skip
_REPLACEMENTS: Final = (
    "$1", "$0", "$2", "$12", "x", r"\$", r"\/", "${n}", "$", "\\", "@", " ", "$10", "$05", ",",
)  # fmt: skip


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def java_answers(lines: Sequence[str], folder: Path) -> list[str]:
    questions = folder / "questions"
    questions.write_text("\n".join(lines))
    result = run_java("PrincipalNames", [str(questions)])
    assert result.returncode == 0, result.stderr
    answers = result.stdout.splitlines()
    assert len(answers) == len(lines)
    return answers


def odd_names() -> list[bytes]:
    every = [
        names.name([[(oid, tag, text.encode("utf-16-be") if tag == names.BMP and wide else text.encode())]])
        for oid in names.OIDS
        for tag in names.TAGS
        for text in names.ODD_TEXTS
        for wide in (False, True)
        if not wide or tag == names.BMP
    ]

    @settings(max_examples=200, database=None, suppress_health_check=list(HealthCheck))
    @given(names.names)
    def more(name: bytes) -> None:
        every.append(name)

    more()
    return every


def odd_rules(chance: random.Random) -> str:
    rules = []
    for _ in range(chance.choice((1, 1, 2))):
        pattern = "".join(chance.choices(_PIECES, k=chance.randint(1, 7)))
        replacement = "".join(chance.choices(_REPLACEMENTS, k=chance.randint(0, 3)))
        rule = f"RULE:{pattern}/{replacement}/{chance.choice(('', '', 'L', 'U', 'X', 'LU'))}"
        rules.append(chance.choice((rule, rule, rule, rule, "DEFAULT", "x", "")))
    return chance.choice((",", " , ", ",,", " ")).join(rules)


def our_answer(name: bytes, *, all_utf8: bool) -> str:
    try:
        return f"={coded(rfc2253_name(name, all_utf8=all_utf8))}"
    except UnreadableName:
        return _REFUSED


def test_h20_subjects_are_written_as_java_writes_them(tmp_path: Path) -> None:
    asked = [names.name([[(names.COMMON_NAME, names.BMP, b"\0a")]]), *odd_names()]
    answers = java_answers([f"dn {name.hex()}" for name in asked], tmp_path)
    # Which of the two ways to read texts this Java has.
    all_utf8 = answers[0] == "=" + coded(r"CN=\00a")
    differences = [
        (name.hex(), answer) for name, answer in zip(asked, answers) if answer != our_answer(name, all_utf8=all_utf8)
    ]
    assert differences == []
    assert len(asked) > 4_000


def test_h20_rules_map_names_as_kafka_maps_them(tmp_path: Path) -> None:
    chance = random.Random(20)
    made = (odd_rules(chance) for _ in range(6_000))
    # A repeated group with a repetition inside can take Java minutes.
    cases = [(rules, name) for rules in _RULES for name in _NAMES]
    cases += [(rules, chance.choice(_NAMES)) for rules in made if not re.search(r"\)[+*{]", rules)]
    answers = java_answers([f"map {coded(rules)} {coded(name)}" for rules, name in cases], tmp_path)
    differences, compared = [], 0
    for (rules, name), answer in zip(cases, answers):
        try:
            parsed = MappingRules.parse(rules)
        except ValueError:
            assert rules not in _RULES
            continue  # refused here, at the start; Java may have let it pass until a client comes
        try:
            ours = f"={coded(parsed.name(name))}"
        except NoRuleMatches:
            ours = _REFUSED
        compared += ours != _REFUSED
        if ours != answer:
            differences.append((rules, name, ours, answer))
    assert differences == []
    assert compared > 500


_CREATE_TOKEN: Final = wire.framed(pack(">hhihiq", 38, 1, 1, -1, 0, 60_000))
"""CreateDelegationToken v1, whose answer says who has asked."""

_COMMON: Final = x509.NameAttribute(NameOID.COMMON_NAME, " alice, the 1st+2nd ")
_SUBJECTS: Final = {
    "escapes": x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, '#"Ü" <&> \\; Inc.'), _COMMON]),
    "two at once": x509.Name(
        [
            x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.USER_ID, "u=1"), _COMMON]),
            x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "example")]),
        ]
    ),
    "types without keyword": x509.Name(
        [x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b"), x509.NameAttribute(NameOID.TITLE, "Dr."), _COMMON]
    ),
    "wide characters": x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Zoë", _ASN1Type.BMPString)]),
}


@pytest.mark.parametrize("subject", _SUBJECTS)
def test_h20_a_real_broker_calls_clients_the_same(secure_kafka: SecureKafka, subject: str) -> None:
    pair = secure_kafka.authority.issue(f"odd-{subject.replace(' ', '-')}", _SUBJECTS[subject])
    context = ssl.create_default_context(cafile=str(secure_kafka.authority.certificate))
    context.load_cert_chain(pair.certificate, pair.key)
    host, port = secure_kafka.addresses("SSL")[1]
    plain = socket.create_connection((host, port), timeout=20)
    with plain, context.wrap_socket(plain, server_hostname=host) as broker:
        broker.sendall(_CREATE_TOKEN)
        size = unpack_from(">i", broker.recv(4))[0]
        answer = b""
        while len(answer) < size:
            answer += broker.recv(size - len(answer))
    error_code, length = unpack_from(">hh", answer, 4)
    assert error_code == 0
    kind, name = answer[8 : 8 + length], answer[8 + length :]
    assert kind == b"User"
    told = name[2 : 2 + unpack_from(">h", name)[0]].decode()
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())
    assert told in (principal_name(der), principal_name(der, all_utf8=True))
    if subject != "wide characters":
        assert told == principal_name(der)
