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
    assert from_text(text).quotas == valid
    assert to_text((*at, value) for at, value in reversed(valid.items())) == text


def test_users_come_before_client_ids_and_defaults_last() -> None:
    pair = QuotaEntity(user="alice", client_id="app")
    text = to_text((entity, PRODUCE, 1.0) for entity in (APP, ANYBODY, pair, QuotaEntity(ip="::1"), ALICE))
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- user: alice", "- default-user: true", "- user: alice", "- client-id: app", "- ip: ::1",
    ]  # fmt: skip
    assert "consumer_byte_rate: 3\n" in to_text([(ALICE, FETCH, 3.0)])
    assert "consumer_byte_rate: 10MiB\n" in to_text([(ALICE, FETCH, 10 * 2.0**20)])
    assert "request_percentage: 50%\n" in to_text([(ALICE, QuotaKey.REQUEST_PERCENTAGE, 50.0)])


@pytest.mark.parametrize(("row", "place", "fault"), [
    ("user: 123\n  producer_byte_rate: 1", "", "user: 123 is no text; put it in quotes"),
    ("user: yes\n  producer_byte_rate: 1", "", "user: True is no text; put it in quotes"),
    ("user:\n  producer_byte_rate: 1", "", "user is empty; the default is default-user: true"),
    ("default-user: 1\n  producer_byte_rate: 1", "", "default-user has to be true or left out"),
    ("user: a\n  default_user: true\n  producer_byte_rate: 1", "", "give user or default-user, not both"),
    ("user: alice", "", "limits nothing"),
    ("producer_byte_rate: 1", "", "names no entity; give user, client-id, ip, topic, group or one of their defaults"),
    ("user: a\n  ip: ::1\n  producer_byte_rate: 1", "", "user=a,ip=::1: Invalid quota entity combination"),
    ("user: a\n  producer_byte_rate: fast", ".producer_byte_rate",
     "'fast' is no number; give a number of bytes per second, alone or with B, kB, MB, GB, TB (powers of 1000), "),
    ("user: a\n  producer_byte_rate: 1mib", ".producer_byte_rate",
     "'1mib' has the unknown unit mib (did you mean 1MiB?); give a number of bytes per second, alone or with B, "),
    ("user: a\n  request_percentage: 5/s", ".request_percentage",
     "'5/s' has the unknown unit /s; give a number of percent of one core, alone or with %"),
    ("user: a\n  controller_mutation_rate: 5%", ".controller_mutation_rate",
     "'5%' has the unknown unit %; give a number per second, alone or with /s"),
    ("ip: ::1\n  connection_creation_rate: 0.5/s", ".connection_creation_rate",
     "'0.5/s' is 0.5, which is no whole number; give a whole number per second, alone or with /s"),
    ("user: a\n  producer_byte_rate: 1e6", ".producer_byte_rate", "'1e6' is no number; write 1000000"),
    ("user: a\n  producer_byte_rate: '1048576'", ".producer_byte_rate",
     "'1048576' is no number; write 1048576, without quotes"),
    ("user: a\n  producer_byte_rate: inf", ".producer_byte_rate", "'inf' is no number"),
    ("user: a\n  producer_byte_rate: true", ".producer_byte_rate", "True is no number"),
    ("user: a\n  producer_byte_rate: 0B", ".producer_byte_rate",
     "Quota producer_byte_rate must be greater than 0; to set no quota, leave"),
    ("user: a\n  producer_byte_rate: .nan", ".producer_byte_rate",
     "Quota producer_byte_rate must be a finite number"),
    ("user: a\n  producer_byte_rate: 1.5", ".producer_byte_rate", "producer_byte_rate cannot be a fractional value."),
    ("user: a\n  request_percentage: " + "9" * 400, ".request_percentage", "the number is too large"),
    ("clientid: x\n  producer_byte_rate: 1", ".clientid", "unknown key; did you mean client-id?"),
    ("client-id: x\n  client_id: x\n  producer_byte_rate: 1", ".client_id", "is the same as client-id; give one of "),
    ("user: a\n  producer_byte_rat: 1", ".producer_byte_rat", "unknown key; did you mean producer_byte_rate?"),
    ("user: a\n  speed: 1", ".speed", "unknown key; known keys: user, client-id, ip, topic, group, default-user, "),
    ('user: a\n  "\\e[31m": 1', '."\\u001b[31m"', "unknown key; known keys: "),
    ("true: 1", ".True", "unknown key; known keys: "),
    ("client-id: a\n  connection_creation_rate: 1", ".connection_creation_rate",
     "client-id=a has no such quota; give producer_byte_rate or "),
    ("user: a\n  client-id: b\n  connection_count: 1", ".connection_count",
     "user=a,client-id=b has no such quota; give producer_byte_rate or "),
    ("ip: ::1\n  producer_byte_rate: 1", ".producer_byte_rate",
     "ip=::1 has no such quota; give connection_creation_rate"),
])  # fmt: skip
def test_fault_says_where_and_what(row: str, place: str, fault: str) -> None:
    with pytest.raises(QuotaTextError) as caught:
        from_text(f"quotas:\n- user: before\n  producer_byte_rate: 5\n- {row}\n")
    (line,) = caught.value.lines
    # That of a key is the line of the key.
    number = 4 + row.split(place[1:] or row)[0].count("\n") if "\\" not in row else 5
    assert line.startswith(f"line {number}: quotas.1{place}: {fault}")
    assert "quotes" not in line.removeprefix(f"line {number}: quotas.1{place}: {fault}")


@pytest.mark.parametrize(("text", "fault"), [
    ("quotas:\n- user: a\n  user: b\n  producer_byte_rate: 1\n", "not YAML: user is given twice"),
    ("quotas\n- user: a\n", "not YAML: mapping values are not allowed in this context at line 2, column "),
    ("quotas:\n- a\n", "quotas.0: has to be a mapping"),
    ("scope: []\nquotas: []\n", "line 1: scope: has to be a list of entities, such as [user=team-a-*]"),
    ("quotas: []\nscope: [5]\n", "line 2: scope: has to be a list of entities"),
    ("scope: [clientid=a]\nquotas: []\n", "line 1: scope: 'clientid=a': unknown entity type 'clientid'; did you"),
    ("scope: user=a\nquotas:\n- user: b\n  producer_byte_rate: 5\n",
     "line 3: user=b is outside the scope, which is user=a"),
])  # fmt: skip
def test_fault_of_the_whole_says_where(text: str, fault: str) -> None:
    with pytest.raises(QuotaTextError) as caught:
        from_text(text)
    (line,) = caught.value.lines
    assert line.startswith(fault)


def test_units_and_the_other_spelling_are_read() -> None:
    found = from_text(
        "scope: [user=a, client-id=*]\nquotas:\n- user: a\n  default_client_id: true\n  producer_byte_rate: 1.5MiB\n"
        "- client_id: x\n  request_percentage: 250%\n  controller_mutation_rate: 0.5/s\n"
        "- client_id: y\n  producer_byte_rate: 10 MB/s\n"
    )
    assert found.quotas == {
        (QuotaEntity(user="a", client_id=DEFAULT), PRODUCE): 1572864.0,
        (QuotaEntity(client_id="x"), QuotaKey.REQUEST_PERCENTAGE): 250.0,
        (QuotaEntity(client_id="x"), QuotaKey.CONTROLLER_MUTATION_RATE): 0.5,
        (QuotaEntity(client_id="y"), PRODUCE): 10_000_000.0,
    }
    assert found.notes == [
        "line 4: default-client-id is the preferred spelling of default_client_id",
        "line 6: client-id is the preferred spelling of client_id (also in 1 other line)",
    ]
    assert found.scope is not None
    assert str(found.scope) == "user=a or client-id=*"


@pytest.mark.parametrize(("text", "fault"), [
    ("quota:\n- user: a\n", "line 1: quota: unknown key; did you mean quotas?"),
    ("quotas: []\nmore: 1", "line 2: more: unknown key; known keys: quotas, scope"),
])  # fmt: skip
def test_another_key_beside_the_list_is_named(text: str, fault: str) -> None:
    with pytest.raises(QuotaTextError) as caught:
        from_text(text)
    assert caught.value.lines == [fault]


@pytest.mark.parametrize("text", [
    "", "[]", "quotas: 1", "quotas: []\nmore: 1", "quotas: [", "a: &a [*a]", "\x00",
    "!!python/object:os.x {}", "{[a]: 1}", "quotas: [{? {a: b} : 1}]",
])  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(QuotaTextError):
        from_text(text)


def test_aliases_inside_each_other_stay_small() -> None:
    levels = "".join(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 30))
    with pytest.raises(QuotaTextError, match="line 1: a0: unknown key; known keys"):
        from_text(f"a0: &a0 [x]\n{levels}")
    row = "- user: a\n  request_percentage: &b0 [x]\n" + "".join(
        f"- user: a{at}\n  request_percentage: &b{at} [{', '.join([f'*b{at - 1}'] * 9)}]\n" for at in range(1, 30)
    )
    with pytest.raises(QuotaTextError, match="request_percentage: a list is no number"):
        from_text(f"quotas:\n{row}")


def test_all_faults_are_told_at_once_and_one_entity_in_two_entries_is_one() -> None:
    with pytest.raises(QuotaTextError) as caught:
        from_text("quotas:\n- user: a\n- user: 1\n  speed: 1\n- user: b\n  consumer_byte_rate: 3\n")
    assert [line.split(":")[:2] for line in caught.value.lines] == [
        ["line 2", " quotas.0"], ["line 4", " quotas.1.speed"],
    ]  # fmt: skip
    other = "- user: a\n  producer_byte_rate: 3\n"
    row = "- user: a\n  consumer_byte_rate: 3\n"
    for second in (row, other):
        with pytest.raises(QuotaTextError) as caught:
            from_text(f"quotas:\n{row}{second}")
        assert caught.value.lines == [
            "line 4: quotas.1: user=a is in line 2 already (quotas.0); give all its quotas there"
        ]
    rows = "".join(f"- ip: '{ip}'\n  connection_creation_rate: 3\n" for ip in ("2001:db8::1", "2001:DB8::0:1"))
    with pytest.raises(QuotaTextError, match=r"^line 4: quotas\.1: ip=2001:db8::1 is in line 2 already"):
        from_text(f"quotas:\n{rows}")
    flow = "{user: a, producer_byte_rate: 1}"
    with pytest.raises(QuotaTextError, match=r"^line 1: quotas\.1: user=a is in line 1 already \(quotas\.0\)"):
        from_text(f"quotas: [{flow}, {flow}]")
