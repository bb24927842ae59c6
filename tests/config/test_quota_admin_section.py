"""[quota_admin]: who may change quotas; nobody by default."""

from __future__ import annotations

import pytest

from config.loader import ConfigError, parse
from config.model import Config
from config.quota_admin_section import Authorize, LimitsBy

HEAD = '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'


def read(text: str) -> Config:
    return parse(f"{HEAD}[quota_admin]\n{text}", name="f")


def test_g14_nobody_may_by_default() -> None:
    found = read("").quota_admin
    assert (found.authorize, found.admins, found.broker_limits) == (Authorize.DENY, (), LimitsBy.GATEWAY)


def test_admins_are_principals_of_which_the_name_counts() -> None:
    assert read('admins = ["User:alice", "User:CN=x,O=y"]').quota_admin.admin_names() == {"alice", "CN=x,O=y"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('admins = ["alice"]', r'quota_admin.admins.0: "alice" must be a principal such as "User:alice"'),
        ('admins = ["User:"]', "quota_admin.admins.0"),
        ('admins = ["Group:ops"]', "quota_admin.admins.0"),
        ('authorize = "all"', "quota_admin.authorize"),
        ('broker_limits = "both"', "quota_admin.broker_limits"),
    ],
)
def test_a_fault_names_its_key(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        read(text)


def test_letting_anyone_change_quotas_is_warned_about() -> None:
    (warning,) = read('authorize = "anyone"').warnings()
    assert warning == "quota_admin.authorize: every client may change quotas; for development only"
    assert read('authorize = "ask_cluster"').warnings() == []
