"""The text form of quotas: the same both ways, and errors say exactly what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.quota_yaml import QuotaTextError, from_text, to_text
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import validate
from testkit.quota_stores import ALICE, ANYBODY, APP, FETCH, PRODUCE

_NAMES = st.one_of(
    st.just(DEFAULT),
    st.sampled_from(["yes", "no", "null", "~", "1", "1e3", "0x10", "<default>", "- a", "a: b", "#", "'", '"', "é\n"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
_ENTITIES = st.one_of(
    st.builds(QuotaEntity, user=_NAMES),
    st.builds(QuotaEntity, client_id=_NAMES),
    st.builds(QuotaEntity, user=_NAMES, client_id=_NAMES),
    st.builds(QuotaEntity, ip=st.sampled_from([DEFAULT, "10.0.0.1", "10.0.0.0/8", "::1"])),
)
_VALUES = st.one_of(st.integers(1, 2**31 - 1).map(float), st.floats(5e-324, 1e308))


@given(st.dictionaries(st.tuples(_ENTITIES, st.sampled_from(QuotaKey)), _VALUES, max_size=12))
def test_any_quotas_come_back_as_they_were(quotas: dict[tuple[QuotaEntity, QuotaKey], float]) -> None:
    valid = {at: value for at, value in quotas.items() if validate(*at, value) is None}
    text = to_text((*at, value) for at, value in valid.items())
    assert from_text(text) == valid
    assert to_text((*at, value) for at, value in reversed(valid.items())) == text


def test_users_come_before_client_ids_and_defaults_last() -> None:
    pair = QuotaEntity(user="alice", client_id="app")
    text = to_text((entity, PRODUCE, 1.0) for entity in (APP, ANYBODY, pair, QuotaEntity(ip="::1"), ALICE))
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- user: alice", "- default_user: true", "- user: alice", "- client_id: app", "- ip: ::1",
    ]  # fmt: skip
    assert "consumer_byte_rate: 3\n" in to_text([(ALICE, FETCH, 3.0)])


@pytest.mark.parametrize(("row", "fault"), [
    ("user: 123\n  producer_byte_rate: 1", "quotas.0: user: 123 is no text; put it in quotes"),
    ("user: yes\n  producer_byte_rate: 1", "quotas.0: user: True is no text; put it in quotes"),
    ("user:\n  producer_byte_rate: 1", "quotas.0: user is empty; the default is default_user: true"),
    ("default_user: 1\n  producer_byte_rate: 1", "quotas.0: default_user has to be true or left out"),
    ("user: a\n  default_user: true\n  producer_byte_rate: 1", "quotas.0: give user or default_user, not both"),
    ("user: alice", "quotas.0: limits nothing"),
    ("producer_byte_rate: 1", "quotas.0: : Invalid empty client quota entity"),
    ("user: a\n  producer_byte_rate: fast", "quotas.0: producer_byte_rate: 'fast' is no number"),
    ("user: a\n  producer_byte_rate: 1MiB",
     "quotas.0: producer_byte_rate: '1MiB' is no number; give a number without a unit: 1048576"),
    ("user: a\n  producer_byte_rate: 1e6",
     "quotas.0: producer_byte_rate: '1e6' is no number; write 1000000"),
    ("user: a\n  producer_byte_rate: '1048576'",
     "quotas.0: producer_byte_rate: '1048576' is no number; write 1048576, without quotes"),
    ("user: a\n  producer_byte_rate: inf", "quotas.0: producer_byte_rate: 'inf' is no number"),
    ("user: a\n  producer_byte_rate: true", "quotas.0: producer_byte_rate: True is no number"),
    ("user: a\n  producer_byte_rate: .nan", "quotas.0: user=a: Quota producer_byte_rate must be a finite number"),
    ("user: a\n  request_percentage: .inf", "quotas.0: user=a: Quota request_percentage must be a finite number"),
    ("user: a\n  producer_byte_rate: 1.5", "quotas.0: user=a: producer_byte_rate cannot be a fractional value."),
    ("user: a\n  request_percentage: " + "9" * 400, "quotas.0: request_percentage: the number is too large"),
    ("client-id: x\n  producer_byte_rate: 1", "quotas.0: client-id: unknown key; did you mean client_id?"),
    ("user: a\n  producer_byte_rat: 1", "quotas.0: producer_byte_rat: unknown key; did you mean producer_byte_rate?"),
    ("user: a\n  speed: 1", "quotas.0: speed: unknown key; known keys: user, client_id, ip, topic, default_user, "),
    ('user: a\n  "\\e[31m": 1', 'quotas.0: "\\u001b[31m": unknown key; known keys: '),
    ("true: 1", "quotas.0: True: unknown key; known keys: "),
    ("user: a\n  connection_creation_rate: 1",
     "quotas.0: connection_creation_rate: user=a has no such quota; give producer_byte_rate or "),
    ("ip: ::1\n  producer_byte_rate: 1",
     "quotas.0: producer_byte_rate: ip=::1 has no such quota; give connection_creation_rate"),
    ("user: a\n  user: b\n  producer_byte_rate: 1", "not YAML: user is given twice"),
    ("&a a", "quotas.0: has to be a mapping"),
])  # fmt: skip
def test_fault_says_where_and_what(row: str, fault: str) -> None:
    with pytest.raises(QuotaTextError) as caught:
        from_text(f"quotas:\n- {row}\n")
    (line,) = caught.value.lines
    assert line.startswith(fault)
    assert "quotes" not in line.removeprefix(fault)


@pytest.mark.parametrize(("text", "key"), [("quota:\n- user: a\n", "quota"), ("quotas: []\nmore: 1", "more")])
def test_another_key_beside_the_list_is_named(text: str, key: str) -> None:
    with pytest.raises(QuotaTextError, match=f"^{key}: unknown key; has to be one list under the key quotas$"):
        from_text(text)


@pytest.mark.parametrize("text", [
    "", "[]", "quotas: 1", "quotas: []\nmore: 1", "quotas: [", "a: &a [*a]", "\x00",
    "!!python/object:os.x {}", "{[a]: 1}", "quotas: [{? {a: b} : 1}]",
])  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(QuotaTextError):
        from_text(text)


def test_aliases_inside_each_other_stay_small() -> None:
    levels = "".join(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 30))
    with pytest.raises(QuotaTextError, match="one list under the key quotas"):
        from_text(f"a0: &a0 [x]\n{levels}")
    row = "- user: a\n  request_percentage: &b0 [x]\n" + "".join(
        f"- user: a\n  request_percentage: &b{at} [{', '.join([f'*b{at - 1}'] * 9)}]\n" for at in range(1, 30)
    )
    with pytest.raises(QuotaTextError, match="request_percentage: a list is no number"):
        from_text(f"quotas:\n{row}")


def test_all_faults_are_told_at_once_and_the_same_quota_twice_is_one() -> None:
    with pytest.raises(QuotaTextError) as caught:
        from_text("quotas:\n- user: a\n- user: 1\n  speed: 1\n- user: b\n  consumer_byte_rate: 3\n")
    assert [line.split(":")[0] for line in caught.value.lines] == ["quotas.0", "quotas.1"]
    row = "- user: a\n  consumer_byte_rate: 3\n"
    with pytest.raises(QuotaTextError, match=r"quotas\.1: user=a has consumer_byte_rate from an entry before"):
        from_text(f"quotas:\n{row}{row}")
    rows = "".join(f"- ip: '{ip}'\n  connection_creation_rate: 3\n" for ip in ("2001:db8::1", "2001:DB8::0:1"))
    with pytest.raises(QuotaTextError, match=r"quotas\.1: ip=2001:db8::1 has connection_creation_rate from an entry"):
        from_text(f"quotas:\n{rows}")
