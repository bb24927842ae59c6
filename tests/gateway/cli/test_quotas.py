import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cli.conftest import Run

HEAD = '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'
QUOTAS = """
[[quotas]]
user = "alice"
client_id = "app"
controller_mutation_rate = 5
[[quotas]]
default_user = true
controller_mutation_rate = 2.5
[[quotas]]
client_id = "<default>"
controller_mutation_rate = 7
"""


class Quotas:
    """``sluice quotas`` with a configuration."""

    def __init__(self, file: Path, run: Run) -> None:
        self.file, self._run = file, run

    def __call__(self, *argv: str, text: str = HEAD + QUOTAS) -> str:
        self.file.write_text(text)
        code, out, _ = self._run("quotas", "--config", self.file, *argv)
        assert code == 0
        return out

    def json(self, *argv: str, text: str = HEAD + QUOTAS) -> Any:
        return json.loads(self(*argv, "--json", text=text))


@pytest.fixture
def quotas(file: Path, run: Run) -> Quotas:
    return Quotas(file, run)


def test_list_tells_the_default_from_names_that_look_like_it_to_people_and_programs(quotas: Quotas) -> None:
    assert quotas().splitlines() == [
        "USER       CLIENT-ID    QUOTA                     LIMIT  MODE",
        "alice      app          controller_mutation_rate  5/s    enforce",
        "<default>  -            controller_mutation_rate  2.5/s  enforce",
        '-          "<default>"  controller_mutation_rate  7/s    enforce',
    ]
    alice, app = {"type": "user", "name": "alice"}, {"type": "client-id", "name": "app"}
    default, named_so = {"type": "user", "name": None}, {"type": "client-id", "name": "<default>"}
    rest = {"quota": "controller_mutation_rate", "mode": "enforce"}
    assert quotas.json() == [
        {"entity": [alice, app], "limit": 5.0} | rest,
        {"entity": [default], "limit": 2.5} | rest,
        {"entity": [named_so], "limit": 7.0} | rest,
    ]
    assert quotas(text=HEAD) == "no quotas: every client is unlimited\n"
    shown = quotas("--user", "a\x1b[31m\n", "--client-id", "<default>")
    assert all(line.isprintable() for line in shown.splitlines())
    assert 'user="a\\u001b[31m\\n"' in shown
    assert 'client-id="<default>"' in shown


def test_without_a_file_a_gateway_has_to_answer(run: Run) -> None:
    code, out, err = run("quotas", "--admin", "127.0.0.1:9")
    assert (code, out) == (1, "")
    assert err.startswith("sluice: no answer from http://127.0.0.1:9: ")
    assert err.endswith("; --admin URL or SLUICE_ADMIN names another port, --config FILE a file\n")


def test_walk_shows_all_eight_levels_and_the_one_that_decides(quotas: Quotas) -> None:
    assert quotas("--user", "alice", "--client-id", "app").splitlines() == [
        "client  user=alice,client-id=app",
        "",
        "quota       controller_mutation_rate",
        "limit       5/s, bursts up to 55",
        "decided by  level user_client",
        "counted by  user=alice,client-id=app, alone",
        "",
        "     LEVEL                        ENTITY                              LIMIT",
        "  1  user_client                  user=alice,client-id=app            5      <- decides",
        "  2  user_default_client          user=alice,client-id=<default>      -",
        "  3  user                         user=alice                          -",
        "  4  default_user_client          user=<default>,client-id=app        -",
        "  5  default_user_default_client  user=<default>,client-id=<default>  -",
        "  6  default_user                 user=<default>                      2.5",
        "  7  client                       client-id=app                       -",
        "  8  default_client               client-id=<default>                 -",
        "",
        "set for no entity, so not counted: producer_byte_rate, consumer_byte_rate, request_percentage",
    ]


def test_walk_shows_the_groups_that_count_too(quotas: Quotas) -> None:
    text = HEAD + (
        '[[groups]]\nname = "team"\nusers = ["al*"]\n[[groups]]\nname = "other"\nusers = ["bob"]\n'
        '[[quotas]]\ngroup = "team"\nproducer_byte_rate = 5\n[[quotas]]\ngroup = "other"\nproducer_byte_rate = 6\n'
    )
    assert quotas("--user", "alice", "--client-id", "app", text=text).splitlines()[-3:-2] == [
        "     group                        group=team                          5      <- counts too"
    ]
    (found,) = (each for each in quotas.json("--user", "alice", text=text)["quotas"] if each["groups"])
    team = {"entity": [{"type": "group", "name": "team"}], "limit": 5.0, "burst_seconds": None, "observe": False}
    assert (found["quota"], found["limit"], found["groups"]) == ("producer_byte_rate", None, [team])
    assert quotas(text=text).splitlines()[:2] == [
        "USER  CLIENT-ID  GROUP  QUOTA               LIMIT  MODE",
        "-     -          team   producer_byte_rate  5 B/s  enforce",
    ]
    text = text.replace("rate = 5", "rate = 5\nproducer_byte_burst_seconds = 2")
    walk = " ".join(quotas("--user", "alice", text=text).split())
    assert "group group=team 5 (producer_byte_burst_seconds = 2) <- counts too" in walk
    (found,) = (each for each in quotas.json("--user", "alice", text=text)["quotas"] if each["groups"])
    assert found["groups"] == [team | {"burst_seconds": 2.0}]


@pytest.mark.parametrize(("argv", "rule", "limit", "tracker_key", "words"), [
    (["--user", "alice"], "default_user", 2.5, ("alice", ""), "user=alice, all clients of this user together"),
    (["--client-id", "x"], "default_user", 2.5, ("ANONYMOUS", ""),
     "user=ANONYMOUS, all clients of this user together"),
    (["--user", "alice", "--client-id", "app"], "user_client", 5.0, ("alice", "app"),
     "user=alice,client-id=app, alone"),
])  # fmt: skip
def test_answer_names_rule_limit_and_who_shares_the_counter(
    quotas: Quotas, argv: list[str], rule: str, limit: float, tracker_key: tuple[str, str], words: str
) -> None:
    found = quotas.json(*argv)["quotas"][-1]
    assert found["quota"] == "controller_mutation_rate"
    assert (found["rule"], found["limit"]) == (rule, limit)
    assert found["tracker_key"] == {"user": tracker_key[0], "client_id": tracker_key[1]}
    assert found["counted"] is True
    assert [level["rule"] for level in found["levels"] if level["decides"]] == [rule]
    assert len(found["levels"]) == 8
    assert f"counted by  {words}\n" in quotas(*argv)


def test_client_level_shares_its_counter_across_users_and_an_empty_id_is_read_as_set(quotas: Quotas) -> None:
    text = HEAD + '[[quotas]]\nclient_id = "app"\ncontroller_mutation_rate = 1\n'
    assert "counted by  client-id=app, of all users together\n" in quotas(
        "--user", "alice", "--client-id", "app", text=text
    )
    text = HEAD + '[[quotas]]\nuser = "alice"\ndefault_client_id = true\ncontroller_mutation_rate = 1\n'
    assert "limit       unlimited\n" in quotas("--user", "alice", text=text)
    as_named = text + '[client_ids]\nempty = "as_named"\n'
    shown = quotas("--user", "alice", text=as_named)
    assert "decided by  level user_default_client\n" in shown
    assert "counted by  user=alice, those without a client id together\n" in shown


def test_unlimited_client_is_decided_by_nothing_and_counted_only_when_quota_is_in_use(quotas: Quotas) -> None:
    text = HEAD + '[[quotas]]\nuser = "alice"\ncontroller_mutation_rate = 1\n'
    shown = quotas("--user", "bob", text=text)
    assert "limit       unlimited\ndecided by  nothing\n" in shown
    assert "counted by  user=bob, all clients of this user together\n" in shown
    assert "<- decides" not in shown
    assert quotas("--user", "bob", text=HEAD).splitlines()[1:] == [
        "",
        "set for no entity, so not counted: producer_byte_rate, consumer_byte_rate, request_percentage,"
        " controller_mutation_rate",
    ]


def test_every_quota_is_walked_with_its_own_unit_and_burst(quotas: Quotas) -> None:
    text = HEAD + (
        '[[quotas]]\nuser = "alice"\nproducer_byte_rate = 1000\nconsumer_byte_rate = 2000\n'
        "request_percentage = 12.5\ncontroller_mutation_rate = 1\n"
    )
    shown = quotas("--user", "alice", text=text)
    assert [line[12:] for line in shown.splitlines() if line.startswith("limit ")] == [
        "1000 B/s, bursts up to 10000",
        "2000 B/s, bursts up to 20000",
        "12.5 %",
        "1/s, bursts up to 11",
    ]
    assert "set for nobody" not in shown
    assert [each["burst"] for each in quotas.json("--user", "alice", text=text)["quotas"]] == [
        10_000, 20_000, None, 11,
    ]  # fmt: skip


def test_a_share_of_a_capacity_is_no_limit_with_a_burst_of_windows(quotas: Quotas) -> None:
    text = (
        HEAD
        + '[capacity]\nproducer_byte_rate = 9000\n{}[[quotas]]\nuser = "alice"\n'
        + ("producer_byte_rate = 1000\nconsumer_byte_rate = 2000\n")
    )
    for observe, limit in (
        ("", "1000 B/s or less, as its share of the capacity, bursts up to 1000"),
        ("observe = true\n", "1000 B/s, bursts up to 10000"),
    ):
        shown = quotas("--user", "alice", text=text.format(observe))
        assert [line[12:] for line in shown.splitlines() if line.startswith("limit ")] == [
            limit,
            "2000 B/s, bursts up to 20000",
        ]


def test_a_burst_is_shown_with_its_rate_and_limits_of_apis_where_they_are_set(quotas: Quotas) -> None:
    text = HEAD + (
        '[[quotas]]\nuser = "alice"\nproducer_byte_rate = 1000\nproducer_byte_burst_seconds = 3\n'
        "metadata_request_rate = 5\n"
    )
    shown = quotas("--user", "alice", text=text)
    assert [line[12:] for line in shown.splitlines() if line.startswith("limit ")] == [
        "1000 B/s, bursts up to 3000 (producer_byte_burst_seconds = 3)",
        "5/s, bursts up to 10",
    ]
    answers = {each["quota"]: each for each in quotas.json("--user", "alice", text=text)["quotas"]}
    assert answers["producer_byte_rate"]["burst_seconds"] == 3
    assert "producer_byte_burst_seconds" not in answers
    assert "list_offsets_request_rate" not in answers


def test_observed_quotas_and_bursts_of_the_token_bucket_are_told(quotas: Quotas) -> None:
    text = HEAD + '[[quotas]]\nuser = "alice"\nobserve = true\nproducer_byte_rate = 1000\n'
    assert quotas(text=text).splitlines()[1].endswith("observe")
    assert "; only observed\n" in quotas("--user", "alice", text=text)
    assert "only observed" not in quotas("--user", "bob", text=text)
    client = ("--user", "alice", "--client-id", "app")
    bucket = HEAD + QUOTAS + "[mutation_quota]\nwindow_num = 100\n"
    assert "limit       5/s, bursts up to 500\n" in quotas(*client, text=bucket)
    assert "limit       5/s\n" in quotas(*client, text=bucket + 'algorithm = "rate"\n')


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_mode_of_the_file_is_told(quotas: Quotas, mode: str) -> None:
    text = HEAD + QUOTAS + f'[enforcement]\nmode = "{mode}"\n'
    assert f"\nenforcement  {mode}: " in quotas("--user", "alice", text=text)
    assert all(line.endswith(f"  {mode}") for line in quotas(text=text).splitlines()[1:])
    assert quotas.json("--user", "alice", text=text)["enforcement"] == mode


@pytest.mark.parametrize("command", [["history"], ["export"], ["import", "-"], ["diff", "-"]])
def test_admin_port_may_stand_before_the_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"quotas: []")))
    code, _, err = run("quotas", "--admin", "127.0.0.1:9", *command)
    assert code == 1
    assert "http://127.0.0.1:9:" in err


def test_export_of_a_file_needs_no_gateway_and_what_needs_a_store_says_so(file: Path, run: Run) -> None:
    file.write_text(HEAD + '[[quotas]]\nuser = "carol"\nproducer_byte_rate = 7\n')
    named = ("--config", file)
    for argv in ((*named, "export"), ("export", *named)):
        assert run("quotas", *argv)[:2] == (0, "quotas:\n- user: carol\n  producer_byte_rate: 7\n")
    for command, wanted in ((["history"], 2), (["import", "-"], 1), (["diff", "-"], 1)):
        code, _, err = run("quotas", *named, *command)
        assert code == wanted
        assert "--admin names the gateway that has it" in err


# -- of an address ------------------------------------------------
ADDRESSES = (
    HEAD
    + """
[connections]
ipv6_prefix_bits = 64
[[quotas]]
ip = "10.0.0.7"
connection_creation_rate = 50
[[quotas]]
ip = "10.1.0.0/16"
connection_creation_rate = 200
observe = true
[[quotas]]
user = "alice"
producer_byte_rate = 5
"""
)
WITH_DEFAULT = ADDRESSES + "[[quotas]]\ndefault_ip = true\nconnection_creation_rate = 20\n"


@pytest.mark.parametrize(("ip", "limit", "decided_by", "counted_by", "observe"), [
    ("10.0.0.7", 50, "ip=10.0.0.7", "10.0.0.7", False),
    ("::ffff:10.0.0.7", 50, "ip=10.0.0.7", "10.0.0.7", False),
    ("010.7", 50, "ip=10.0.0.7", "10.0.0.7", False),
    ("10.1.2.3", 200, "ip=10.1.0.0/16", "10.1.0.0/16", True),
    ("10.2.0.1", 20, "ip=<default>", "10.2.0.1", False),
    ("2001:db8::1", 20, "ip=<default>", "2001:db8::/64", False),
])  # fmt: skip
def test_address_has_the_rate_of_the_row_that_decides(
    quotas: Quotas, ip: str, limit: int, decided_by: str, counted_by: str, observe: bool
) -> None:
    told = quotas.json("--ip", ip, text=WITH_DEFAULT)
    assert (told["limit"], told["decided_by"], told["counted_by"]) == (limit, decided_by, counted_by)
    assert (told["burst"], told["observe"]) == (limit * 10, observe)
    assert "unlimited" in quotas("--ip", "10.2.0.1", text=ADDRESSES)


def test_people_are_told_who_shares_the_counter_of_an_address(quotas: Quotas) -> None:
    assert quotas("--ip", "10.1.2.3", text=WITH_DEFAULT).splitlines() == [
        "address     10.1.2.3",
        "quota       connection_creation_rate",
        "limit       200/s, at once up to 2000 after a quiet while; only observed",
        "decided by  ip=10.1.0.0/16",
        "counted by  10.1.0.0/16, all its addresses together",
    ]
    lines = [line.split() for line in quotas(text=WITH_DEFAULT).splitlines()]
    assert lines[0] == ["USER", "CLIENT-ID", "IP", "QUOTA", "LIMIT", "MODE"]
    assert [line[2] for line in lines[1:]] == ["-", "10.0.0.7", "10.1.0.0/16", "<default>"]


def test_connections_of_a_user_are_shown_where_any_user_has_such_a_quota(quotas: Quotas) -> None:
    assert "connection" not in quotas("--user", "alice", text=WITH_DEFAULT)
    text = WITH_DEFAULT + "[[quotas]]\ndefault_user = true\nconnection_count = 9\nconnection_creation_rate = 4\n"
    for client_id in ("", "app"):
        blocks = quotas("--user", "bob", "--client-id", client_id, text=text).split("\n\n")
        (rate,) = [block for block in blocks if block.startswith("quota       connection_creation_rate")]
        (count,) = [block for block in blocks if block.startswith("quota       connection_count")]
        assert "limit       4/s, bursts up to 8" in rate
        assert "limit       9\n" in count
        for block in (rate, count):
            assert "decided by  level default_user" in block
            assert "counted by  user=bob, all its connections" in block
    text = WITH_DEFAULT + '[[quotas]]\nuser = "bob"\nconnection_count = 9\nconnection_creation_rate = 4\n'
    shown = quotas("--user", "alice", "--client-id", "app", text=text)
    assert shown.count("decided by  nothing\ncounted by  user=alice, all its connections") == 2


@pytest.mark.parametrize("argv", [["--ip", "localhost"], ["--ip", "10.0.0.1", "--user", "alice"]])
def test_what_is_no_address_alone_is_one_line_and_code_2(file: Path, run: Run, argv: list[str]) -> None:
    file.write_text(WITH_DEFAULT)
    code, _, err = run("quotas", "--config", file, *argv)
    assert (code, err.count("\n")) == (2, 1)
    assert "--ip" in err
