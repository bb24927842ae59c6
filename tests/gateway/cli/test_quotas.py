from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main

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

    def __init__(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = file
        self._capsys = capsys

    def __call__(self, *argv: str, text: str = HEAD + QUOTAS) -> str:
        self.file.write_text(text)
        assert main(["quotas", "--config", str(self.file), *argv]) == 0
        return self._capsys.readouterr().out

    def json(self, *argv: str, text: str = HEAD + QUOTAS) -> Any:
        return json.loads(self(*argv, "--json", text=text))


@pytest.fixture
def quotas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Quotas:
    return Quotas(tmp_path / "sluice.toml", capsys)


def test_list_tells_the_default_from_a_name_that_looks_like_it(quotas: Quotas) -> None:
    assert quotas().splitlines() == [
        "USER       CLIENT-ID    QUOTA                     LIMIT  MODE",
        "alice      app          controller_mutation_rate  5/s    enforce",
        "<default>  -            controller_mutation_rate  2.5/s  enforce",
        '-          "<default>"  controller_mutation_rate  7/s    enforce',
    ]


def test_list_for_programs_has_null_for_the_default(quotas: Quotas) -> None:
    assert quotas.json() == [
        {
            "entity": [{"type": "user", "name": "alice"}, {"type": "client-id", "name": "app"}],
            "quota": "controller_mutation_rate",
            "limit": 5.0,
            "mode": "enforce",
        },
        {
            "entity": [{"type": "user", "name": None}],
            "quota": "controller_mutation_rate",
            "limit": 2.5,
            "mode": "enforce",
        },
        {
            "entity": [{"type": "client-id", "name": "<default>"}],
            "quota": "controller_mutation_rate",
            "limit": 7.0,
            "mode": "enforce",
        },
    ]


def test_no_quotas_are_said_in_words(quotas: Quotas) -> None:
    assert quotas(text=HEAD) == "no quotas: every client is unlimited\n"


def test_without_a_file_a_gateway_has_to_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quotas", "--admin", "127.0.0.1:9"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sluice: no gateway answers at http://127.0.0.1:9: ")
    assert err.endswith("; --config FILE looks at a file instead\n")


def test_walk_shows_all_eight_levels_and_the_one_that_decides(quotas: Quotas) -> None:
    assert quotas("--user", "alice", "--client-id", "app").splitlines() == [
        "client  user=alice client-id=app",
        "",
        "quota       controller_mutation_rate",
        "limit       5/s, in a burst up to 55 before the debt begins",
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
        "set for nobody, so nothing is counted: producer_byte_rate, consumer_byte_rate, request_percentage",
    ]


@pytest.mark.parametrize(
    ("argv", "rule", "limit", "tracker_key", "words"),
    [
        (["--user", "alice"], "default_user", 2.5, ("alice", ""), "user=alice, all clients of this user together"),
        (["--client-id", "x"], "default_user", 2.5, ("ANONYMOUS", ""),
         "user=ANONYMOUS, all clients of this user together"),
        (["--user", "alice", "--client-id", "app"], "user_client", 5.0, ("alice", "app"),
         "user=alice,client-id=app, alone"),
    ],
)  # fmt: skip
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


def test_client_level_shares_its_counter_across_users(quotas: Quotas) -> None:
    text = HEAD + '[[quotas]]\nclient_id = "app"\ncontroller_mutation_rate = 1\n'
    assert "counted by  client-id=app, of all users together\n" in quotas(
        "--user", "alice", "--client-id", "app", text=text
    )


def test_client_without_an_id_is_shown_as_the_setting_reads_it(quotas: Quotas) -> None:
    text = HEAD + '[[quotas]]\nuser = "alice"\ndefault_client_id = true\ncontroller_mutation_rate = 1\n'
    assert "limit       unlimited\n" in quotas("--user", "alice", text=text)
    as_named = text + '[client_ids]\nempty = "as_named"\n'
    shown = quotas("--user", "alice", text=as_named)
    assert "decided by  level user_default_client\n" in shown
    assert "counted by  user=alice, those without a client id together\n" in shown


def test_unlimited_client_is_decided_by_nothing_and_counted_only_when_the_quota_is_in_use(
    quotas: Quotas,
) -> None:
    text = HEAD + '[[quotas]]\nuser = "alice"\ncontroller_mutation_rate = 1\n'
    shown = quotas("--user", "bob", text=text)
    assert "limit       unlimited\ndecided by  nothing\n" in shown
    assert "counted by  user=bob, all clients of this user together\n" in shown
    assert "<- decides" not in shown
    assert quotas("--user", "bob", text=HEAD).splitlines()[1:] == [
        "",
        "set for nobody, so nothing is counted: producer_byte_rate, consumer_byte_rate, request_percentage,"
        " controller_mutation_rate",
    ]


def test_every_quota_is_walked_with_its_own_unit_and_burst(quotas: Quotas) -> None:
    text = HEAD + (
        '[[quotas]]\nuser = "alice"\nproducer_byte_rate = 1000\nconsumer_byte_rate = 2000\n'
        "request_percentage = 12.5\ncontroller_mutation_rate = 1\n"
    )
    shown = quotas("--user", "alice", text=text)
    assert [line[12:] for line in shown.splitlines() if line.startswith("limit ")] == [
        "1000 B/s, in a burst up to 10000 before the debt begins",
        "2000 B/s, in a burst up to 20000 before the debt begins",
        "12.5 %",
        "1/s, in a burst up to 11 before the debt begins",
    ]
    assert "set for nobody" not in shown
    assert [each["burst"] for each in quotas.json("--user", "alice", text=text)["quotas"]] == [
        10_000,
        20_000,
        None,
        11,
    ]


def test_observed_quotas_say_so(quotas: Quotas) -> None:
    text = HEAD + '[[quotas]]\nuser = "alice"\nobserve = true\nproducer_byte_rate = 1000\n'
    assert quotas(text=text).splitlines()[1].endswith("observe")
    assert "before the debt begins; only observed\n" in quotas("--user", "alice", text=text)
    assert "only observed" not in quotas("--user", "bob", text=text)


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_mode_of_the_file_is_told(quotas: Quotas, mode: str) -> None:
    text = HEAD + QUOTAS + f'[enforcement]\nmode = "{mode}"\n'
    assert f"\nenforcement  {mode}: " in quotas("--user", "alice", text=text)
    assert all(line.endswith(f"  {mode}") for line in quotas(text=text).splitlines()[1:])
    assert quotas.json("--user", "alice", text=text)["enforcement"] == mode


def test_burst_is_told_for_the_token_bucket_only(quotas: Quotas) -> None:
    client = ("--user", "alice", "--client-id", "app")
    bucket = HEAD + QUOTAS + "[mutation_quota]\nwindow_num = 100\n"
    assert "limit       5/s, in a burst up to 500 before the debt begins\n" in quotas(*client, text=bucket)
    assert "limit       5/s\n" in quotas(*client, text=bucket + 'algorithm = "rate"\n')


def test_a23_hostile_names_are_quoted(quotas: Quotas) -> None:
    shown = quotas("--user", "a\x1b[31m\n", "--client-id", "<default>")
    assert all(line.isprintable() for line in shown.splitlines())
    assert 'user="a\\u001b[31m\\n"' in shown
    assert 'client-id="<default>"' in shown
