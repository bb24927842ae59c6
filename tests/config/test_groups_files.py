"""Groups of clients in a file of their own."""

import os
from pathlib import Path

import pytest

import config
from gateway.server.reload import plan

HEAD = '[upstream]\nbootstrap = ["k:9092"]\n'
LISTENER = '[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'
ORDERS = '[[groups]]\nname = "orders"\nusers = ["orders-*"]\ncost_center = "C-17"\nowner = "Ann"\ntier = 0\n'
SEARCH = '[[groups]]\nname = "search"\nclient_ids = ["indexer"]\naddresses = ["010.2.0.0/16"]\n'


def written(folder: Path, groups: str, own: str = "") -> Path:
    (folder / "groups.toml").write_text(groups)
    section = f'[groups_file]\npath = "{folder}/groups.toml"\n'
    file = folder / "sluice.toml"
    file.write_text(HEAD + LISTENER + section + own)
    return file


def faults(file: Path) -> list[str]:
    with pytest.raises(config.ConfigError) as caught:
        config.load(file)
    return [line.replace(f"{file.parent}/", "") for line in caught.value.lines]


def test_groups_of_both_files_are_in_force_and_those_of_the_configuration_come_first(tmp_path: Path) -> None:
    own = '[[groups]]\nname = "own"\nusers = ["orders-1"]\n'

    groups = config.load(written(tmp_path, ORDERS + SEARCH, own)).member_groups()

    assert groups.of("orders-1", "indexer", "10.2.3.4") == ("own", "orders", "search")


def test_a_reload_applies_what_changed_in_the_file_of_groups(tmp_path: Path) -> None:
    before = config.load(written(tmp_path, ORDERS))
    after = config.load(written(tmp_path, ORDERS + SEARCH))

    planned = plan(before, after)

    assert planned.changes("groups")
    assert not planned.needs_restart
    assert "search" in planned.config.member_groups()


def test_a_reload_takes_another_file_of_groups_without_a_restart(tmp_path: Path) -> None:
    file = written(tmp_path, ORDERS)
    before = config.load(file)
    (tmp_path / "other.toml").write_text(SEARCH)
    file.write_text(file.read_text().replace("groups.toml", "other.toml"))

    planned = plan(before, config.load(file))

    assert planned.changes("groups")
    assert not planned.needs_restart


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (SEARCH + ORDERS.replace("tier = 0", "tier = 4"),
         "groups.toml:10: groups.1.tier: is not a whole number in 0..3"),
        (ORDERS + "colour = 1\n", "groups.toml:7: groups.0.colour: unknown key; known keys: name, users, "
         "client_ids, addresses, topics, cost_center, owner, tier"),
        (ORDERS + "\n" + ORDERS, "groups.toml:9: groups.1.name: is the name of groups.0 already"),
        (SEARCH.replace("010.2", "x"), "groups.toml:4: groups.0.addresses.0: is not an IP address or a block such as "
         "10.0.0.0/8"),
        ('[[groups]]\nname = "a"\n', "groups.toml:1: groups.0: has no members; give users, client_ids or addresses"),
        ('[[groups]]\nname = "a"\nusers = ["*"]\n', "groups.toml:3: groups.0.users.0: would be all clients; give the "
         "beginning of a name before the star"),
        (ORDERS + 'topics = ["a", "*", "a"]\n', "groups.toml:7: groups.0.topics.1: would be all topics; give the "
         "beginning of a name before the star\ngroups.toml:7: groups.0.topics.2: is given twice"),
        ("[[quotas]]\nuser = 'a'\n", "groups.toml:1: quotas: unknown key; this file has [[groups]] alone"),
        ("groups = 7\n", "groups.toml:1: groups: is not an array of tables: [[groups]]"),
        ("[[groups]\n",
         "groups.toml: not TOML: Expected ']]' at the end of an array declaration (at line 1, column 9)"),
    ],
)  # fmt: skip
def test_a_fault_in_the_file_of_groups_has_its_line(tmp_path: Path, groups: str, expected: str) -> None:
    assert faults(written(tmp_path, groups)) == expected.split("\n")


def test_a_group_that_is_in_both_files_is_an_error(tmp_path: Path) -> None:
    own = '[[groups]]\nname = "orders"\nusers = ["x"]\n'

    (fault,) = faults(written(tmp_path, SEARCH + ORDERS, own))

    assert fault == 'groups.toml:6: groups.1.name: "orders" is the name of a group in sluice.toml already'


def test_faults_of_both_files_are_reported_at_once(tmp_path: Path) -> None:
    found = faults(written(tmp_path, ORDERS + "colour = 1\n", "[drain]\nnothing = 1\n"))

    assert [each.split(":")[0] for each in found] == ["sluice.toml", "groups.toml"]


def test_a_file_of_groups_that_is_not_there_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    file = written(tmp_path, ORDERS)
    (tmp_path / "groups.toml").unlink()

    (fault,) = faults(file)

    assert fault.startswith('sluice.toml:7: groups_file.path: "')
    assert fault.endswith("cannot be read: No such file or directory")


def test_a_fifo_as_the_file_of_groups_is_a_fault_and_no_wait(tmp_path: Path) -> None:
    file = written(tmp_path, ORDERS)
    (tmp_path / "groups.toml").unlink()
    os.mkfifo(tmp_path / "groups.toml")

    (fault,) = faults(file)

    assert fault.endswith("cannot be read: is no regular file")


def test_each_cluster_has_a_file_of_groups_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "groups.toml").write_text(ORDERS)
    text = ""
    for at, (name, extra) in enumerate(
        (("a", f'[clusters.groups_file]\npath = "{tmp_path}/groups.toml"\n'), ("b", ""))
    ):
        text += (
            f'[[clusters]]\nname = "{name}"\n[clusters.upstream]\nbootstrap = ["k:{at + 1}"]\n'
            f'[[clusters.listeners]]\nname = "l"\nbind = "127.0.0.1:{19092 + 200 * at}"\n{extra}'
        )
    found = config.parse_file(text, name="sluice.toml")

    assert isinstance(found, config.Clusters)
    assert ["orders" in each.member_groups() for each in found.by_name.values()] == [True, False]
