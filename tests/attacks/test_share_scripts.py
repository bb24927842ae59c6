"""The attacks on shares at a real broker: their scripts, their quotas and their verdicts."""

from __future__ import annotations

import tomllib
import uuid
from struct import unpack_from

import pytest

from campaigns.adversary.player import Login
from campaigns.adversary.requests import encode
from campaigns.adversary.script import Script
from campaigns.adversary.shares import ATTACKS, FRAME_BYTES, SECONDS, configuration, flood, judge, renames
from config import Config
from simulation.attacks import ATTACKS as SIMULATED

LOGIN = Login((("h", 1),), "alice", "secret", ("t", uuid.uuid4()), (("r", uuid.uuid4()), ("r", uuid.uuid4())))


def client_ids(script: Script) -> set[str | None]:
    return {LOGIN.client_id(step["client"]) for step in script.steps if step["do"] == "send"}


def test_each_attack_is_one_of_the_simulation_too() -> None:
    assert list(ATTACKS) == list(SIMULATED)


def test_a_split_uses_as_many_client_ids_as_it_is_told() -> None:
    assert len(client_ids(flood(ids=10, first=10))) == 10


def test_no_client_id_comes_back_in_a_renaming_script() -> None:
    scripts = [renames(player) for player in range(6)]
    ids = [client_ids(each) for each in scripts]
    assert len(set().union(*ids)) == sum(map(len, ids)) >= 6 * 10 * SECONDS


def test_a_request_is_not_larger_than_the_bounds_count_for_it() -> None:
    step = flood().steps[0]
    frame = encode(
        step, prefix="p", client_id="c" * 40, write_topic=("t" * 10, uuid.uuid4()), read_topic=("r", uuid.uuid4()),
        ids={}, session=(0, -1),
    )  # fmt: skip
    assert unpack_from(">i", frame)[0] + 4 <= FRAME_BYTES


def test_the_gateway_takes_the_quotas_of_the_attacks() -> None:
    tables = tomllib.loads(configuration())
    listener = {"name": "l", "bind": "127.0.0.1:1", "first_broker_port": 2}
    config = Config.model_validate({"upstream": {"bootstrap": ["b:1"]}, "listeners": [listener], **tables})
    assert config.capacity.by_quota()


@pytest.mark.parametrize(
    ("got", "offered", "kinds"), [(100, 130, []), (101, 200, ["produced"]), (50, 129, ["played"])]
)
def test_a_verdict_has_a_bound_and_wants_an_attack_that_could_break_it(
    got: int, offered: int, kinds: list[str]
) -> None:
    assert [each.kind for each in judge("split", got, 100, offered, 10.0).violations] == kinds
