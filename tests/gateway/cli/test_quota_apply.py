"""``sluice quotas diff`` and ``apply``: what they ask, what they refuse, and their exit codes."""

import asyncio
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import admin_port, quota_apply, quota_endpoints
from gateway.cli.main import main
from gateway.cli.quota_endpoints import EndpointError, GatewayEndpoint, KafkaEndpoint, Source
from gateway.cli.quota_plan import Current, Plan, Quota, Step, make_plan
from gateway.cli.quota_scope import Scope, ScopeError
from gateway.quota_admin.store.interface import Alteration
from protocol.api_keys import ApiKey, describe
from protocol.client_quota_messages import MAX_ENTRIES, MAX_PARTS, parse_alter
from protocol.errors import TooManyElements
from protocol.steps import finish
from quota_client.client import Counting, QuotaClientError, Refusal, Setting
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.layered_quotas import Owner, QuotaChange
from testkit import wire
from testkit.admin_commands import sluice
from testkit.gateway import RunningGateway, running_gateway
from testkit.quota_stores import ALICE, ANYBODY, APP, FETCH, PRODUCE

Capsys = pytest.CaptureFixture[str]
TEXT = "quotas:\n- user: alice\n  producer_byte_rate: 1MB\n"
IN_SYNC, FAULT, DRIFT = 0, 1, 2
UNKNOWN = "the change was sent, and it may have been made in part; run sluice quotas diff"
NO_LOGIN = (
    "sluice: note: user=alice: no listener has SASL or client certificates, so all clients are ANONYMOUS and none "
    "has this name\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quotas.yaml"
    path.write_text(TEXT)
    return path


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def set_by(running: RunningGateway, owner: Owner, *changes: tuple[QuotaEntity, float | None]) -> None:
    made = tuple(QuotaChange(entity, PRODUCE, value, owner) for entity, value in changes)
    await running.gateway.live_quotas.alter(Alteration("User:bob", "a test", made))


# -- plans ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("patterns", "covered", "others"), [
    (["all"], [ALICE, ANYBODY, APP, QuotaEntity(ip="10.0.0.1")], []),
    (["user=alice"], [ALICE, QuotaEntity(user="alice", client_id="x")], [ANYBODY, APP, QuotaEntity(user="alice2")]),
    (["user=al*"], [ALICE], [ANYBODY, QuotaEntity(user="bob")]),
    (["user=*"], [ALICE, ANYBODY, QuotaEntity(user="a", topic="t")], [APP]),
    (["user=<default>"], [ANYBODY], [ALICE]),
    (["user=alice,client_id=*"], [QuotaEntity(user="alice", client_id=DEFAULT)], [ALICE, APP]),
    (['user="a*"'], [QuotaEntity(user="a*")], [QuotaEntity(user="abc"), ANYBODY]),
    (['user="*"'], [QuotaEntity(user="*")], [ALICE, ANYBODY]),
    (["client-id=app", "ip=10.*"], [APP, QuotaEntity(ip="10.0.0.1")], [ALICE, QuotaEntity(ip="11.0.0.1")]),
])  # fmt: skip
def test_a_scope_covers(patterns: list[str], covered: list[QuotaEntity], others: list[QuotaEntity]) -> None:
    scope = Scope.of(patterns)
    assert all(scope.covers(entity) for entity in covered)
    assert not any(scope.covers(entity) for entity in others)
    assert Scope.of(str(scope).split(" or ")) == scope


def test_a_scope_is_shown_as_entities_are() -> None:
    scope = Scope.of(['client_id=b,user="a*"', 'user="c"', "ip=<default>"])
    assert str(scope) == 'user="a*",client-id=b or user=c or ip=<default>'


@pytest.mark.parametrize(("patterns", "fault"), [
    (["all", "user=a"], "give all alone"), (["usr=a"], "did you mean user"), ([""], "names no entity"),
    (["alice"], "expected type=name"),
])  # fmt: skip
def test_what_is_no_scope_is_refused(patterns: list[str], fault: str) -> None:
    with pytest.raises(ScopeError, match=fault):
        Scope.of(patterns)


def test_a_plan_removes_only_within_its_scope() -> None:
    current = {(ALICE, PRODUCE): Current(1.0, Owner.API), (APP, FETCH): Current(2.0, Owner.APPLY)}
    removal = Step((ALICE, PRODUCE), 1.0, None)
    assert make_plan({}, current, Scope.of(["user=*"]), prune=True) == Plan((removal,), (), ())
    assert make_plan({}, current, Scope.of(["user=*"]), prune=False) == Plan((), (), ((ALICE, PRODUCE),))
    assert make_plan({}, current, None, prune=True) == Plan((), (), ())


def test_a_quota_with_another_owner_is_taken_over_and_is_no_difference() -> None:
    wanted = {(ALICE, PRODUCE): 1.0}
    for owner, taken in ((Owner.API, 1), (Owner.UNKNOWN, 1), (Owner.APPLY, 0), (None, 0)):
        plan = make_plan(wanted, {(ALICE, PRODUCE): Current(1.0, owner)}, None, prune=False)
        assert (plan.steps, len(plan.taken_over)) == ((), taken)
    assert str(Step((ALICE, PRODUCE), 1e6, 1e6)) == "= user=alice producer_byte_rate 1MB, the owner becomes apply"


_NAMES = st.sampled_from(["a", "ab", "b"])
_QUOTAS = st.tuples(
    st.one_of(
        st.builds(QuotaEntity, user=_NAMES),
        st.builds(QuotaEntity, client_id=_NAMES),
        st.builds(QuotaEntity, user=_NAMES, client_id=st.one_of(_NAMES, st.just(DEFAULT))),
    ),
    st.sampled_from([PRODUCE, FETCH]),
)
_LIMITS = st.sampled_from([1.0, 2.0])


@given(
    wanted=st.dictionaries(_QUOTAS, _LIMITS, max_size=8),
    current=st.dictionaries(_QUOTAS, st.builds(Current, _LIMITS, st.sampled_from(Owner)), max_size=8),
    patterns=st.lists(st.sampled_from(["user=a*", "user=b", "client-id=*", "user=ab,client-id=b"]), max_size=2),
    prune=st.booleans(),
)
def test_a_plan_brings_the_file_into_force_and_touches_nothing_outside_its_scope(
    wanted: dict[Quota, float], current: dict[Quota, Current], patterns: list[str], prune: bool
) -> None:
    scope = Scope.of(patterns) if patterns else None
    if scope is not None:
        wanted = {quota: limit for quota, limit in wanted.items() if scope.covers(quota[0])}
    plan = make_plan(wanted, current, scope, prune=prune)
    after = dict(current)
    for step in plan.all_steps:
        assert step.old == (None if step.quota not in current else current[step.quota].limit)
        after.pop(step.quota, None)
        if step.new is not None:
            after[step.quota] = Current(step.new, Owner.APPLY)
    assert make_plan(wanted, after, scope, prune=prune).all_steps == ()
    assert {quota: after[quota].limit for quota in wanted} == wanted
    for quota, now in current.items():
        if quota not in wanted and (not prune or scope is None or not scope.covers(quota[0])):
            assert after[quota] == now


# -- a gateway ------------------------------------------------------------------------------------------------


async def test_apply_takes_over_what_others_have_set_to_the_same(file: Path, capsys: Capsys) -> None:
    async with running_gateway(9) as running:
        await set_by(running, Owner.API, (ALICE, 1e6))
        code, out, _ = await sluice(running, capsys, "quotas", "diff", str(file))
        assert (code, out.splitlines()[-1]) == (IN_SYNC, "no difference")
        assert out.startswith(
            "= user=alice producer_byte_rate 1MB, the owner becomes apply (set by User:bob, a test, "
        )
        code, out, _ = await sluice(running, capsys, "quotas", "apply", str(file), "--yes")
        assert (code, out.splitlines()[1]) == (IN_SYNC, "0 to change, 1 to take over")
        assert running.gateway.live_quotas.quotas.owner(ALICE, PRODUCE) is Owner.APPLY
        assert (await sluice(running, capsys, "quotas", "apply", str(file)))[:2] == (IN_SYNC, "no difference\n")
        _, out, _ = await sluice(running, capsys, "quotas")
        assert out.splitlines()[-1].endswith("store: apply")
        await sluice(running, capsys, "quotas", "set", "user=alice", "producer_byte_rate=2MB")
        _, out, _ = await sluice(running, capsys, "quotas")
        assert out.splitlines()[-1].endswith("store: set")


async def test_what_somebody_changes_between_plan_and_application_is_not_lost(
    file: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, f"{TEXT}- client-id: app\n  producer_byte_rate: 5\n")
    apply, loop = GatewayEndpoint.apply, asyncio.get_running_loop()
    async with running_gateway(9) as running:

        def late(endpoint: GatewayEndpoint, steps: Sequence[Step], source: Source) -> int | None:
            asyncio.run_coroutine_threadsafe(set_by(running, Owner.API, (ALICE, 7e6)), loop).result(60)
            return apply(endpoint, steps, source)

        await set_by(running, Owner.API, (ALICE, 5e5))
        monkeypatch.setattr(GatewayEndpoint, "apply", late)
        code, _, err = await sluice(running, capsys, "quotas", "apply", str(file), "--yes")
        assert (code, err.removeprefix(NO_LOGIN)) == (
            DRIFT,
            "sluice: user=alice producer_byte_rate was 500kB, and is 7MB now\n"
            "sluice: 1 quota changed meanwhile, so nothing was changed\n",
        )
        quotas = running.gateway.live_quotas.quotas
        assert (quotas.override(ALICE, PRODUCE), quotas.override(APP, PRODUCE)) == (7e6, None)


@pytest.mark.parametrize(("answer", "code"), [("y\n", IN_SYNC), ("YES\n", IN_SYNC), ("\n", DRIFT), ("", DRIFT)])
async def test_apply_asks_at_a_terminal(
    file: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    async with running_gateway(9) as running:
        found, out, err = await sluice(running, capsys, "quotas", "apply", str(file))
        assert (found, err) == (code, f"{NO_LOGIN}Change these quotas? [y/N] ")
        assert ("nothing was changed" in out) == (code == DRIFT)
        assert running.gateway.live_quotas.store.version == (code == IN_SYNC)


async def test_apply_without_a_terminal_needs_yes(
    file: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "sluice: there is no terminal to ask at, so nothing was changed; give --yes\n"
    async with running_gateway(9) as running:
        for name in (str(file), "-"):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
            code, _, err = await sluice(running, capsys, "quotas", "apply", name)
            assert (code, err) == (FAULT, NO_LOGIN + refusal)
        assert running.gateway.live_quotas.store.version == 0


async def test_import_is_apply_and_its_dry_run_ends_with_0(file: Path, capsys: Capsys) -> None:
    note = "sluice: note: import is kept for scripts that have it; its name is now: sluice quotas "
    async with running_gateway(9) as running:
        await set_by(running, Owner.API, (APP, 5.0))
        code, out, err = await sluice(running, capsys, "quotas", "import", str(file), "--dry-run", "--prune")
        assert (code, out.splitlines()[-1]) == (IN_SYNC, "2 to change; nothing was changed")
        assert err == f"{NO_LOGIN}{note}diff\n"
        code, out, err = await sluice(running, capsys, "quotas", "import", str(file), "--prune")
        assert (code, err) == (IN_SYNC, f"{NO_LOGIN}{note}apply --yes\n")
        assert list(running.gateway.live_quotas.quotas.overrides()) == [(ALICE, PRODUCE, 1e6)]


async def test_a_scope_on_the_command_line_is_that_of_the_file_or_the_only_one(file: Path, capsys: Capsys) -> None:
    write(file, f"scope: user=al*\n{TEXT}")
    async with running_gateway(9) as running:
        code, _, err = await sluice(running, capsys, "quotas", "diff", str(file), "--scope", "user=*")
        assert code == FAULT
        assert err == f"sluice: --scope is user=*, and the scope of {file} is user=al*; give one of them\n"
        assert (await sluice(running, capsys, "quotas", "diff", str(file), "--scope", "user=al*"))[0] == DRIFT
        write(file, f"scope: [user=b, user=al*]\n{TEXT}")
        either = ("--scope", "user=al*", "--scope", 'user="b"')
        assert (await sluice(running, capsys, "quotas", "diff", str(file), *either))[0] == DRIFT
        code, _, err = await sluice(running, capsys, "quotas", "diff", str(file), "--scope", "usr=a")
        assert (code, "--scope: 'usr=a': unknown entity type 'usr'; did you mean user?" in err) == (FAULT, True)


@pytest.mark.parametrize("words", [
    ["diff"], ["apply"], ["diff", "FILE", "--prun"], ["apply", "FILE", "more"], ["diff", "FILE", "--admin", "ftp://x"],
])  # fmt: skip
def test_wrong_arguments_are_a_fault_and_no_difference(words: list[str], capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["quotas", *words])
    assert ended.value.code == FAULT
    assert f"(see sluice quotas {words[0]} --help)" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["quotas", "history", "--bogus"])
    assert ended.value.code == 2


@pytest.mark.parametrize(("words", "variable"), [
    ("quotas --admin ftp://x diff f", ""), ("quotas --cluster 'b b' diff f", ""), ("quotas --json=1 diff f", ""),
    ("--version=1 quotas diff f", ""), ("quotas apply --yes f", "ftp://x"), ("quotas diff f", "ftp://x"),
])  # fmt: skip
def test_what_the_commands_above_find_wrong_is_a_fault_too(
    words: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ADMIN", variable)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words))
    assert ended.value.code == FAULT
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words.replace("apply --yes", "set").replace("diff", "set")))
    assert ended.value.code == 2


async def test_client_id_in_either_spelling_is_read(file: Path, capsys: Capsys) -> None:
    write(file, "quotas:\n- client_id: app\n  producer_byte_rate: 1kB\n")
    async with running_gateway(9) as running:
        code, _, err = await sluice(running, capsys, "quotas", "apply", str(file), "--yes")
        assert (code, err) == (
            IN_SYNC,
            f"sluice: note: {file}: line 2: client-id is the preferred spelling of client_id\n",
        )
        code, _, err = await sluice(running, capsys, "quotas", "set", "client_id=app", "producer_byte_rate=2kB")
        assert (code, err) == (0, "sluice: note: client-id is the preferred spelling of client_id\n")
        assert running.gateway.limits.get(APP, PRODUCE) == 2000
        code, _, err = await sluice(running, capsys, "quotas", "set", "clientid=app", "producer_byte_rate=2kB")
        assert (code, "unknown entity type 'clientid'; did you mean client-id?" in err) == (2, True)


@pytest.mark.parametrize(("answer", "fault"), [
    ({"quotas": [], "client_ids": {"prefixes": False}}, "is of an earlier version; upgrade it first"),
    ({"quotas": 5, "client_ids": {}, "logins": True}, "is not a Sluice admin port that has quotas"),
    ([], "is not a Sluice admin port that has quotas"),
])  # fmt: skip
def test_a_gateway_that_cannot_compare_is_not_asked_to_change_anything(
    answer: object, fault: str, file: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(_url: str, path: str, **_options: Any) -> tuple[int, object]:
        asked.append(path)
        return 200, answer

    monkeypatch.setattr(admin_port, "ask", ask)
    assert main(["quotas", "apply", str(file), "--yes"]) == FAULT
    assert (asked, fault in capsys.readouterr().err) == (["/quotas"], True)


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("status", [None, 200, 503, 400])
async def test_a_gateway_whose_answer_is_lost_is_read_again(
    made: bool, status: int | None, file: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = admin_port.ask

    def loses(url: str, path: str, **options: Any) -> tuple[int, object]:
        if options["method"] == "GET":
            return ask(url, path, **options)
        if made:
            ask(url, path, **options)
        if status is None:
            raise admin_port.AdminPortError("no answer")
        return status, {} if status == 200 else {"error": "the parent has gone"}

    async with running_gateway(9) as running:
        monkeypatch.setattr(admin_port, "ask", loses)
        code, out, err = await sluice(running, capsys, "quotas", "apply", str(file), "--yes")
    known = status == 400  # a refusal, which comes before the change
    assert code == (IN_SYNC if made and not known else FAULT)
    assert ("1 changed, from quotas.yaml" in out) == (code == IN_SYNC)
    assert (UNKNOWN in err) == (code == FAULT and not known)


# -- Kafka's own API ------------------------------------------------------------------------------------------


class Cluster:
    """Quotas as Describe and Alter show them; in place of the client that asks for them."""

    def __init__(self) -> None:
        self.quotas: dict[tuple[QuotaEntity, QuotaKey], float] = {}
        self.requests: list[tuple[bool, bool, list[Setting]]] = []
        self.refused: list[Refusal] = []
        self.before: list[dict[tuple[QuotaEntity, QuotaKey], float]] = []
        self.after_altering: dict[tuple[QuotaEntity, QuotaKey], float] = {}
        self.late: list[dict[tuple[QuotaEntity, QuotaKey], float]] = []
        self.loses: tuple[QuotaEntity, ...] | None = None
        self.kafka: bool | None = True

    def counting(self) -> Counting:
        return Counting(3, self.kafka)

    def __call__(self, bootstrap: str, properties: dict[str, Any]) -> Self:
        if bootstrap == "nowhere:1":
            raise QuotaClientError("nowhere:1: no answer in time")
        assert properties["client_id"] == "sluice-quotas"
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def describe(self) -> dict[tuple[QuotaEntity, QuotaKey], float]:
        if self.before:
            self.quotas |= self.before.pop(0)
        altered = any(not validate_only for validate_only, _, _ in self.requests)
        return self.late.pop() if altered and self.late else dict(self.quotas)

    def alter(self, settings: list[Setting], *, validate_only: bool, at_once: bool = False) -> list[Refusal]:
        self.requests.append((validate_only, at_once, settings))
        if not validate_only:
            for each in settings:
                if each.entity in (self.loses or ()):
                    continue
                self.quotas.pop((each.entity, each.key), None)
                if each.value is not None:
                    self.quotas[each.entity, each.key] = each.value
            self.quotas |= self.after_altering
            if self.loses is not None:
                raise QuotaClientError("kafka:9092: no answer in time")
        return self.refused


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr("quota_client.client.QuotaClient", made)
    return made


def on_cluster(command: str, file: Path, *options: str, server: str = "kafka:9092") -> int:
    return main(["quotas", command, str(file), "--bootstrap-server", server, *options])


def test_a_cluster_is_brought_to_what_the_file_says(file: Path, cluster: Cluster, capsys: Capsys) -> None:
    cluster.quotas = {(ALICE, PRODUCE): 5e5, (ANYBODY, FETCH): 3.0, (APP, FETCH): 4.0}
    scope = ("--prune", "--scope", "user=*")
    assert on_cluster("diff", file, *scope) == DRIFT
    assert capsys.readouterr().out == (
        "- user=<default> consumer_byte_rate 3\n~ user=alice producer_byte_rate 500kB -> 1MB\n"
        "2 to change; nothing was changed\n"
    )
    assert cluster.requests == []
    assert on_cluster("apply", file, "--yes", *scope) == IN_SYNC
    settings = [Setting(ANYBODY, FETCH, None), Setting(ALICE, PRODUCE, 1e6)]
    assert cluster.requests == [(True, False, settings), (False, True, settings)]
    assert cluster.quotas == {(ALICE, PRODUCE): 1e6, (APP, FETCH): 4.0}
    assert on_cluster("diff", file, *scope) == IN_SYNC


def test_nothing_is_altered_where_one_change_would_be_refused(file: Path, cluster: Cluster, capsys: Capsys) -> None:
    cluster.refused = [Refusal(ALICE, 44, "no")]
    assert on_cluster("apply", file, "--yes") == FAULT
    assert [validate_only for validate_only, _, _ in cluster.requests] == [True]
    assert "user=alice: error 44: no" in capsys.readouterr().err


def test_a_cluster_that_was_changed_since_the_plan_is_left_alone(
    file: Path, cluster: Cluster, capsys: Capsys
) -> None:
    cluster.before = [{}, {(ALICE, PRODUCE): 9.0}]
    assert on_cluster("apply", file, "--yes") == DRIFT
    assert cluster.requests == []
    assert "user=alice producer_byte_rate was nothing, and is 9 now\n" in capsys.readouterr().err


def test_a_broker_that_follows_later_is_waited_for(file: Path, cluster: Cluster) -> None:
    cluster.late = [{}, {(ALICE, PRODUCE): 5.0}]
    assert on_cluster("apply", file, "--yes") == IN_SYNC
    assert cluster.late == []


def test_a_cluster_that_was_changed_right_after_is_no_success(
    file: Path, cluster: Cluster, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_endpoints, "VERIFY_S", 0.0)
    cluster.after_altering = {(ALICE, PRODUCE): 9.0}
    assert on_cluster("apply", file, "--yes") == DRIFT
    assert "producer_byte_rate was 1MB, and is 9 now\n" in (err := capsys.readouterr().err)
    assert "1 quota changed right after the plan was carried out" in err


@pytest.mark.parametrize(("lost", "code"), [((), IN_SYNC), ((ALICE,), FAULT), ((ALICE, APP), FAULT)])
def test_a_cluster_whose_answer_is_lost_is_read_again(
    lost: tuple[QuotaEntity, ...],
    code: int,
    file: Path,
    cluster: Cluster,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quota_endpoints, "VERIFY_S", 0.0)
    write(file, f"{TEXT}- client-id: app\n  producer_byte_rate: 5\n")
    cluster.loses = lost
    assert on_cluster("apply", file, "--yes") == code
    out, err = capsys.readouterr()
    assert ("2 changed, from quotas.yaml" in out) == (code == IN_SYNC)
    faults = f"sluice: kafka:9092: no answer in time\nsluice: {UNKNOWN}\n"
    assert err == ("" if code == IN_SYNC else faults)


@pytest.mark.parametrize(("entities", "quotas"), [
    (MAX_ENTRIES, MAX_PARTS - 2 * MAX_ENTRIES), (MAX_ENTRIES, MAX_PARTS - 2 * MAX_ENTRIES + 1),
    (MAX_ENTRIES + 1, MAX_ENTRIES + 1),
])  # fmt: skip
def test_a_plan_that_a_gateway_would_not_read_in_one_request_is_not_sent_to_it(
    entities: int, quotas: int, cluster: Cluster
) -> None:
    pairs = [QuotaEntity(user=f"u{at}", client_id="c") for at in range(entities)]
    keys = (PRODUCE, FETCH, QuotaKey.REQUEST_PERCENTAGE)
    steps = [Step((pair, key), None, 5.0) for key in keys for pair in pairs][:quotas]
    name, op = {"entity_type": "user", "entity_name": "u"}, {"key": "k", "value": 1.0, "remove": False}
    more, rest = divmod(quotas, entities)
    rows = [{"entity": [name, name], "ops": [op] * (more + (at < rest))} for at in range(entities)]
    frame = wire.request("AlterClientQuotas", 1, entries=rows, validate_only=False)
    try:
        finish(parse_alter(frame, describe(ApiKey.ALTER_CLIENT_QUOTAS, 1)))
        is_read = True
    except TooManyElements:
        is_read = False
    endpoint = KafkaEndpoint("gateway:9092", None)
    cluster.kafka = False
    if not is_read:
        with pytest.raises(EndpointError, match=rf"^refused: {entities:,} entities, .* use --admin, or apply"):
            endpoint.apply(steps, Source("f", ""))
        assert cluster.requests == []
        cluster.kafka = True
    assert endpoint.apply(steps, Source("f", "")) is None
    assert len(cluster.quotas) == quotas


@pytest.mark.slow
def test_a_reader_that_has_gone_changes_no_exit_code(
    file: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = "".join(f"- user: u{number}\n  producer_byte_rate: 1MB\n" for number in range(1000))
    write(file, f"quotas:\n{many}")  # more than a buffer holds

    def run(stream: str, command: str, *options: str) -> int:
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as closed, monkeypatch.context() as patch:
            patch.setattr(sys, stream, closed)
            return on_cluster(command, file, *options)

    assert run("stdout", "diff") == DRIFT
    assert run("stdout", "apply") == FAULT
    assert run("stderr", "apply") == FAULT
    assert cluster.requests == []
    assert run("stdout", "apply", "--yes") == IN_SYNC
    assert len(cluster.quotas) == 1000
    assert run("stdout", "diff") == IN_SYNC


@pytest.mark.usefixtures("cluster")
def test_faults_of_the_connection(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert on_cluster("diff", file, server="nowhere:1") == FAULT
    settings = tmp_path / "client.properties"
    settings.write_text("sasl.plain.pasword=secret\n")
    assert on_cluster("diff", file, "--client-config", str(settings)) == FAULT
    assert "secret" not in (err := capsys.readouterr().err)
    assert "did you mean sasl_plain_password?" in err
    assert main(["quotas", "diff", str(file), "--client-config", str(settings)]) == FAULT
    assert "--client-config is for --bootstrap-server" in capsys.readouterr().err


def test_a_file_that_is_too_large_or_no_text_is_refused(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_apply, "_MAX_TEXT_BYTES", 10)
    (tmp_path / "large").write_bytes(b"x" * 11)
    (tmp_path / "binary").write_bytes(b"\xff")
    for name, words in (("large", "is larger than 10 bytes"), ("binary", "is not UTF-8"), ("none", "cannot be read")):
        assert main(["quotas", "diff", str(tmp_path / name)]) == FAULT
        assert words in capsys.readouterr().err
