"""Describe/AlterClientQuotas of the gateway beside Kafka 4.4.0: the same request, the same answer.

Where they differ on purpose, both answers are here and the row is in docs/reference/differences-from-kafka.md.
"""

import ipaddress
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from embedded_kafka.kafka import KafkaCluster
from quotas.entities import cut_name
from testkit.addresses import NO_ADDRESSES, SPELLINGS
from testkit.scenarios import entities, scenarios
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.quota_sides import QuotaSide

pytestmark = pytest.mark.integration

ERRORS = {"NONE": 0, "INVALID_REQUEST": 42, "UNSUPPORTED_VERSION": 35}
RATE = "producer_byte_rate"
CONNECTIONS = "connection_creation_rate"
FIRST_RATE = 700_001
"""Of the spellings of addresses: no other test sets so many."""


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    """One whose clients may all change quotas."""
    return start_gateway(kafka, GatewayOptions(tables='[quota_admin]\nauthorize = "anyone"'))


@pytest.fixture
def sides(kafka: KafkaCluster, gateway: GatewayProcess) -> Iterator[tuple[QuotaSide, QuotaSide]]:
    """Kafka's and the gateway's; nothing is set on either, before and after."""
    with WireClient(kafka.brokers[1]) as direct, WireClient(gateway.bootstrap) as through:
        both = QuotaSide(direct, "kafka"), QuotaSide(through, "gateway")
        yield both
        for side in both:
            side.clear()


def shown(side: QuotaSide, expected: dict[Any, dict[str, float]]) -> None:
    """What is set, when the broker shows it: it does a moment after its answer."""
    eventually(lambda: side.everything() == expected)


def show_the_same(sides: tuple[QuotaSide, QuotaSide]) -> None:
    """Both are asked each time: the broker may still be behind what it has answered."""
    seen: list[dict[Any, dict[str, float]]] = []

    def same() -> bool:
        seen[:] = (side.everything() for side in sides)
        # Names of more than 256 characters are the one difference.
        cut = {
            tuple((kind, name and cut_name(name)) for kind, name in entity): ops for entity, ops in seen[0].items()
        }
        return cut == seen[1]

    eventually(same, told=lambda: repr(seen))


@pytest.mark.parametrize("row", scenarios("alter"))
def test_scenario_alter_through_the_wire(row: dict[str, Any], sides: tuple[QuotaSide, QuotaSide]) -> None:
    for version in (0, 1):
        for validate_only in (True, False):
            answers = [
                side.alter((row["entity"], row["ops"]), version=version, validate_only=validate_only)
                for side in sides
            ]
            assert answers[0] == answers[1]
            ((code, message, _),) = answers[1]
            assert code == ERRORS[row["error"]]
            assert row.get("msg", "") in (message or "")
            assert (message is None) is (code == 0)


@pytest.mark.parametrize("row", scenarios("alterseq"))
def test_scenario_alterseq_through_the_wire(row: dict[str, Any], sides: tuple[QuotaSide, QuotaSide]) -> None:
    identity = tuple(sorted(row["entity"].items()))
    for ops, expected in row["steps"]:
        for side in sides:
            assert [code for code, _, _ in side.alter((row["entity"], ops))] == [0]
            shown(side, {identity: expected} if expected else {})


@pytest.mark.parametrize("row", scenarios("alterdup"))
def test_scenario_alterdup_through_the_wire(row: dict[str, Any], sides: tuple[QuotaSide, QuotaSide]) -> None:
    entries = [(entity, ops) for entity, ops in row["entries"]]
    answers = [side.alter(*entries) for side in sides]
    assert answers[0] == answers[1]
    ((code, _, entity),) = answers[1]
    assert code == ERRORS[row["error"]]
    for side in sides:
        shown(side, {entity: row["stored"]})


@pytest.mark.parametrize("row", scenarios("describe"))
def test_g15_scenario_describe_through_the_wire(row: dict[str, Any], sides: tuple[QuotaSide, QuotaSide]) -> None:
    set_now = [
        (names, {"connection_creation_rate" if "ip" in names else "request_percentage": value})
        for names, value in entities(row["entities"])
    ]
    for side in sides:
        assert {code for code, _, _ in side.alter(*set_now)} == {0}
        eventually(lambda side=side: len(side.everything()) == len(set_now))  # type: ignore[misc]
    for components, strict, count in row["rows"]:
        for version in (0, 1):
            answers = [side.describe(components, strict=strict, version=version) for side in sides]
            assert answers[0] == answers[1]
            assert answers[1][:2] == (0, "")
            assert len(answers[1][2] or {}) == count
    for components in every_filter():
        for strict in (False, True):
            answers = [side.describe(components, strict=strict) for side in sides]
            assert answers[0] == answers[1], (components, strict)


def every_filter() -> Iterator[list[tuple[str, int, str | None]]]:
    """Each way to match of each type and of each two types, those that are refused too."""
    names = {"user": "user-1", "client-id": "client-id-1", "ip": "1.2.3.4"}
    single = {
        kind: [(kind, 0, name), (kind, 0, "none"), (kind, 1, None), (kind, 2, None)] for kind, name in names.items()
    }
    for kind in names:
        yield from ([component] for component in single[kind])
    for one, other in itertools.permutations(names, 2):
        yield from (list(pair) for pair in itertools.product(single[one], single[other]))


@pytest.mark.parametrize("row", scenarios("describe_err"))
def test_scenario_describe_err_through_the_wire(row: dict[str, Any], sides: tuple[QuotaSide, QuotaSide]) -> None:
    for components, error in row["rows"]:
        for version in (0, 1):
            answers = [side.describe(components, strict=False, version=version) for side in sides]
            assert answers[0] == answers[1]
            code, message, found = answers[1]
            assert (code, found) == (ERRORS[error], None)
            assert message


CASES: list[tuple[dict[str, str | None], dict[str, float | None]]] = [
    ({"user": "", "foo": "x"}, {"bad": 1.0}),
    ({"ip": "1.2.3.4", "client-id": ""}, {"bad": 1.0}),
    ({"ip": "no-such-host.invalid", "client-id": "c"}, {"bad": 1.0}),
    ({"user": ""}, {RATE: 1.0}),
    ({"ip": ""}, {RATE: 1.0}),
    ({"user": "u"}, {RATE: 1.5}),
    ({"user": "u"}, {RATE: 0.999999999}),
    ({"user": "u"}, {RATE: 1.0000001}),
    ({"user": "u"}, {RATE: 2.0**63}),
    ({"user": "u"}, {RATE: 2.0**63 * 1.1}),
    ({"user": "u"}, {"request_percentage": 5e-324}),
    ({"user": "u"}, {"controller_mutation_rate": 1e308}),
    ({"user": "u"}, {RATE: math.inf}),
    ({"user": "u"}, {RATE: -math.inf}),
    ({"user": "u"}, {RATE: math.nan}),
    ({"user": "u"}, {"request_percentage": math.inf}),
    ({"user": "u"}, {"request_percentage": -0.0}),
    ({"ip": "1.2.3.4"}, {"connection_creation_rate": 2147483648.0}),
    ({"ip": "::1"}, {"connection_creation_rate": 5.0}),
    ({"ip": "256.1.1.1"}, {"connection_creation_rate": 5.0}),
    ({"ip": " 1.2.3.4"}, {"connection_creation_rate": 5.0}),
    ({"user": "u"}, {}),
    ({"user": None, "client-id": None}, {"nothing-such": None, RATE: 1.0}),
    ({"user": "<default>", "client-id": "100% \u00fc \U0001f600"}, {RATE: 1.0}),
    ({"user": "x" * 10_240}, {RATE: 1.0}),
]


def test_g09_g10_every_other_case_has_kafkas_answer_to_the_letter(sides: tuple[QuotaSide, QuotaSide]) -> None:
    for entity, ops in CASES:
        answers = [side.alter((entity, ops)) for side in sides]
        assert answers[0] == answers[1], (str(entity)[:60], ops)
    show_the_same(sides)


def test_g10_repeated_entities_of_one_request_have_kafkas_answer(sides: tuple[QuotaSide, QuotaSide]) -> None:
    requests: list[list[tuple[dict[str, str | None], dict[str, float | None]]]] = [
        [({"user": "a"}, {"bad": 1.0}), ({"user": "a"}, {RATE: 1.0}), ({"user": "b"}, {RATE: 1.0})],
        [({"foo": "u"}, {RATE: 1.0}), ({"foo": "u"}, {RATE: 1.0})],
        [({"user": "c", "client-id": None}, {RATE: 1.0}), ({"client-id": None, "user": "c"}, {RATE: 2.0})],
        [],
    ]
    for entries in requests:
        for validate_only in (True, False):
            answers = [side.alter(*entries, validate_only=validate_only) for side in sides]
            assert answers[0] == answers[1], entries
    show_the_same(sides)


DIFFERENCES: list[tuple[str, dict[str, str | None], dict[str, float | None], int, int]] = [
    ("a host name would be looked up", {"ip": "localhost"}, {CONNECTIONS: 5.0}, 0, 42),
    ("a zone does not matter, were it of an interface or not", {"ip": "fe80::1%lo"}, {CONNECTIONS: 5.0}, 42, 0),
    ("an address block", {"ip": "10.1.0.0/16"}, {CONNECTIONS: 5.0}, 42, 0),
]


@pytest.mark.parametrize(("why", "entity", "ops", "kafkas", "ours"), DIFFERENCES)
def test_where_answers_differ_from_kafkas(
    sides: tuple[QuotaSide, QuotaSide], why: str, entity: Any, ops: Any, kafkas: int, ours: int
) -> None:
    assert [code for code, _, _ in sides[0].alter((entity, ops))] == [kafkas], why
    assert [code for code, _, _ in sides[1].alter((entity, ops))] == [ours], why


def test_each_spelling_of_an_address_is_the_same_address_to_both_and_kept_in_one_here(
    sides: tuple[QuotaSide, QuotaSide], kafka: KafkaCluster
) -> None:
    expected: dict[str, float] = {}
    for rate, (text, spelled) in enumerate(SPELLINGS.items(), start=FIRST_RATE):
        answers = [side.alter(({"ip": text}, {CONNECTIONS: float(rate)})) for side in sides]
        assert answers[0] == answers[1] == [(0, None, (("ip", text),))]
        for asked in (text, spelled):
            found = sides[1].describe([("ip", 0, asked)], strict=True)
            assert found == (0, "", {(("ip", spelled),): {CONNECTIONS: float(rate)}})
        expected[spelled] = float(rate)
    assert sides[1].everything() == {(("ip", spelled),): {CONNECTIONS: rate} for spelled, rate in expected.items()}
    # What the broker makes of each is in its log.
    spelled_by_rate = dict(enumerate(SPELLINGS.values(), start=FIRST_RATE))
    eventually(lambda: spelled_by_rate.items() <= limited(kafka).items(), told=lambda: repr(limited(kafka)))


def limited(kafka: KafkaCluster) -> dict[int, str]:
    """The addresses that the broker has limited, by the rate that they were given."""
    log = kafka.log_file(1).read_text()
    found = re.findall(r"Updating max connection rate override for [^/\s]*/([^%\s]+)\S* to (\d+) ", log)
    return {int(rate): str(ipaddress.ip_address(address)) for address, rate in found}


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_has_kafkas_answer_to_the_letter(text: str, sides: tuple[QuotaSide, QuotaSide]) -> None:
    answers = [side.alter(({"ip": text}, {CONNECTIONS: 5.0})) for side in sides]
    assert answers[0] == answers[1]
    assert answers[1][0][0] == ERRORS["INVALID_REQUEST"]


def test_two_spellings_in_one_request_are_two_entities_to_kafka_alone(sides: tuple[QuotaSide, QuotaSide]) -> None:
    entries = [({"ip": "10.9.8.7"}, {CONNECTIONS: 5.0}), ({"ip": "010.9.8.7"}, {CONNECTIONS: 6.0})]
    kafkas, ours = (side.alter(*entries) for side in sides)
    assert [code for code, _, _ in kafkas] == [0, 0]
    assert ours == [
        (0, None, (("ip", "10.9.8.7"),)),
        (42, "010.9.8.7 is the same address as 10.9.8.7, which this request has too", (("ip", "010.9.8.7"),)),
    ]
    assert sides[1].everything() == {(("ip", "10.9.8.7"),): {CONNECTIONS: 5.0}}


def test_a_null_filter_ends_the_connection_on_both_sides(kafka: KafkaCluster, gateway: GatewayProcess) -> None:
    for address in (kafka.brokers[1], gateway.bootstrap):
        with WireClient(address) as client:
            # key 48, version 0, correlation id 1, null client id, null array, not strict
            client.send_bytes(bytes.fromhex("0000000f 0030 0000 00000001 ffff ffffffff 00"))
            with pytest.raises(ConnectionEnded):
                client.receive_frame()


def test_nothing_of_it_reaches_the_broker(sides: tuple[QuotaSide, QuotaSide]) -> None:
    direct, through = sides
    assert through.alter(({"user": "only-here"}, {RATE: 5.0}))[0][0] == 0
    assert through.everything() == {(("user", "only-here"),): {RATE: 5.0}}
    assert direct.everything() == {}
