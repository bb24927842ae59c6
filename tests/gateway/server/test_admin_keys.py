"""Tokens of the admin port: read from files, renewed, and compared."""

import hmac
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from config import ConfigError
from config.sections.admin import AdminKey, AdminRole
from gateway.server.admin_access import MAX_FAILURES, MAX_FAILURES_PER_ADDRESS, FailureRate, host_of, pod_hosts
from gateway.server.admin_keys import MIN_TOKEN_CHARS, AdminKeys, read_tokens

ONE = "0123456789abcdef" * 2
TWO = "fedcba9876543210" * 2
THREE = "0a1b2c3d4e5f6789" * 2


def key(name: str = "k", **fields: Any) -> AdminKey:
    return AdminKey.model_validate({"name": name, "roles": ["read"], **fields})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "token"
    found.write_text(f"{ONE}\n")
    return found


def holds(keys: AdminKeys, token: str) -> bool:
    return keys.of_token(token.encode()) is not None


def test_token_has_its_holder_and_each_other_text_has_none(file: Path) -> None:
    keys = AdminKeys((key("a", token_file=str(file)), key("b", token=TWO, roles=["operate", "quotas"])))
    one, two = keys.of_token(ONE.encode()), keys.of_token(TWO.encode())
    assert one is not None
    assert two is not None
    assert (one.name, one.roles) == ("a", {AdminRole.READ})
    assert (two.name, two.roles) == ("b", {AdminRole.OPERATE, AdminRole.QUOTAS})
    for wrong in ("", ONE[:-1], ONE[:-1] + "0", ONE + "0", "1" + ONE[1:], ONE.upper(), f"{ONE}\n", ONE + TWO):
        assert not holds(keys, wrong)


def test_token_is_compared_with_every_key_and_in_whole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = AdminKeys((key("a", token_file=str(file)), key("b", token=TWO)))
    compared: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token in (ONE, TWO, "x", ONE[:-1] + "0"):
        keys.of_token(token.encode())
        assert compared == [(32, 32)] * 2
        compared.clear()


def test_both_tokens_of_a_file_are_valid_while_they_are_renewed(file: Path) -> None:
    keys = AdminKeys((key(token_file=str(file)),))
    file.write_text(f"{ONE}\n{TWO}\n")
    assert keys.reload(only_if_changed=True, by="test")
    assert holds(keys, ONE)
    assert holds(keys, TWO)
    file.write_text(TWO)
    assert keys.reload(only_if_changed=True, by="test")
    assert not holds(keys, ONE)
    assert holds(keys, TWO)


def test_file_that_cannot_be_used_keeps_its_tokens_and_does_not_hold_up_others(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(TWO)
    keys = AdminKeys((key("a", token_file=str(file)), key("b", token_file=str(other))))
    file.write_text("short")
    other.write_text(THREE)
    assert not keys.reload(only_if_changed=True, by="test")
    assert keys.last_reload_failed
    assert holds(keys, ONE)
    assert not holds(keys, TWO)
    assert holds(keys, THREE)
    file.write_text(ONE.upper())
    assert keys.reload(only_if_changed=True, by="test")
    assert not keys.last_reload_failed
    assert not holds(keys, ONE)


@pytest.mark.parametrize("how", ["truncated", "blank", "removed"])
def test_last_token_is_out_of_force_once_its_line_or_its_file_is_gone(file: Path, how: str) -> None:
    keys = AdminKeys((key("a", token_file=str(file)), key("b", token=TWO)))
    if how == "removed":
        file.unlink()
    else:
        file.write_text("" if how == "truncated" else "\n \n")
    with capture_logs() as lines:
        assert keys.reload(only_if_changed=True, by="test")
    assert not holds(keys, ONE)
    assert holds(keys, TWO)
    assert keys
    assert not keys.last_reload_failed
    assert [(each["event"], each["key"], each["tokens"]) for each in lines] == [("admin_key_reloaded", "a", 0)]
    file.write_text(THREE)
    assert keys.reload(only_if_changed=True, by="test")
    assert holds(keys, THREE)


def test_file_that_cannot_be_opened_keeps_its_tokens(file: Path) -> None:
    keys = AdminKeys((key(token_file=str(file)),))
    file.unlink()
    file.mkdir()
    assert not keys.reload(only_if_changed=True, by="test")
    assert holds(keys, ONE)


def test_file_without_lines_starts_with_a_warning_and_needs_a_key_all_the_same(file: Path) -> None:
    file.write_text("\n")
    with capture_logs() as lines:
        keys = AdminKeys((key(token_file=str(file)),))
    assert [(each["event"], each["log_level"]) for each in lines] == [("admin_key_without_tokens", "warning")]
    assert keys
    assert not holds(keys, "")
    assert not holds(keys, ONE)


def test_file_that_brings_the_token_of_another_key_keeps_its_own(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(TWO)
    keys = AdminKeys((key("a", token_file=str(file)), key("b", token_file=str(other), roles=["operate"])))
    file.write_text(f"{THREE}\n{TWO}\n")
    with capture_logs() as lines:
        assert not keys.reload(only_if_changed=True, by="test")
        assert not keys.reload(only_if_changed=True, by="test")
    assert [each["fault"] for each in lines] == ["has the same token as the key b"]
    assert keys.last_reload_failed
    found = keys.of_token(TWO.encode())
    assert found is not None
    assert found.name == "b"
    assert holds(keys, ONE)
    assert not holds(keys, THREE)
    other.write_text(THREE)  # it has the first file's next token now, and the first file lets go of its own
    file.write_text(TWO)
    assert keys.reload(only_if_changed=True, by="test")
    assert not holds(keys, ONE)
    assert [found.name for token in (TWO, THREE) if (found := keys.of_token(token.encode()))] == ["a", "b"]


def test_of_two_files_that_bring_one_token_the_second_keeps_its_own(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(TWO)
    keys = AdminKeys((key("a", token_file=str(file)), key("b", token_file=str(other))))
    file.write_text(THREE)
    other.write_text(THREE)
    assert not keys.reload(only_if_changed=True, by="test")
    assert [found and found.name for token in (ONE, TWO, THREE) for found in [keys.of_token(token.encode())]] == [
        None,
        "b",
        "a",
    ]


def test_keys_that_were_prepared_come_into_force_and_others_do_not(file: Path) -> None:
    keys = AdminKeys((key(token_file=str(file)),))
    wanted = (key("b", token=TWO),)
    keys.use(wanted)
    assert holds(keys, ONE)
    keys.prepare(wanted)
    assert holds(keys, ONE)
    keys.use(wanted)
    assert not holds(keys, ONE)
    assert holds(keys, TWO)
    with pytest.raises(ConfigError, match=r"admin\.keys\.0\.token_file"):
        keys.prepare((key(token_file=str(file.with_name("none"))),))
    assert holds(keys, TWO)


def test_look_at_the_files_brings_no_key_back_that_a_reload_has_taken_away(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = AdminKeys((key(token_file=str(file)),))
    keys.prepare((key("b", token=TWO),))

    def read(name: str) -> list[bytes]:
        keys.use((key("b", token=TWO),))
        return [ONE.encode()]

    monkeypatch.setattr("gateway.server.admin_keys.read_tokens", read)
    keys.reload(only_if_changed=False, by="test")
    assert not holds(keys, ONE)
    assert holds(keys, TWO)


@pytest.mark.parametrize(
    "content",
    [
        ONE[: MIN_TOKEN_CHARS - 1],
        "a" * 64,
        f"{ONE} {TWO}",
        f"{ONE}é",
        "\n".join(f"{ONE}{at}" for at in range(9)),
        f"{ONE}{'x' * 20_000}",
        f"{ONE}\0",
    ],
)
def test_a_file_without_a_token_is_refused_and_not_shown(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        AdminKeys((key(token_file=str(file)),))
    assert caught.value.lines[0].startswith("admin.keys.0.token_file: ")
    assert "0123456789" not in str(caught.value)


def test_a_file_of_tokens_that_became_a_fifo_leaves_its_tokens_in_force(file: Path) -> None:
    keys = AdminKeys((key(token_file=str(file)),))
    file.unlink()
    os.mkfifo(file)
    assert not keys.reload(only_if_changed=True, by="tests")  # without a writer, and so without an end
    assert holds(keys, ONE)


def test_all_wrong_keys_are_named_and_a_token_belongs_to_one_key(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        AdminKeys((key("a", token=""), key("b", token_file=str(file)), key("c", token=ONE), key("d", token="x")))
    assert [line.partition(": ")[0] for line in caught.value.lines] == [
        "admin.keys.0.token",
        "admin.keys.2.token",
        "admin.keys.3.token",
    ]
    assert ONE not in str(caught.value)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no regular file"):
        read_tokens(str(tmp_path))


# -- failures ------------------------------------------------------------------------------------------------


def test_failures_of_an_address_and_of_all_are_limited_each_second() -> None:
    rate = FailureRate()
    assert [rate.exceeded("a", now_ms=0) for _ in range(MAX_FAILURES_PER_ADDRESS + 2)].count(True) == 2
    assert not rate.exceeded("b", now_ms=999)
    assert rate.exceeded("a", now_ms=999)
    assert not rate.exceeded("a", now_ms=1_000)


def test_failures_of_many_addresses_take_little_memory() -> None:
    rate = FailureRate()
    late = sum(rate.exceeded(f"10.0.{at // 250}.{at % 250}", now_ms=5) for at in range(10_000))
    assert late == 10_000 - MAX_FAILURES
    assert len(rate._by_network) <= MAX_FAILURES


# -- hosts ---------------------------------------------------------------------------------------------------


def test_names_of_services_are_ours_in_a_pod_only() -> None:
    assert pod_hosts({}) == ()
    assert pod_hosts({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == ("*.svc", "*.svc.cluster.local")


@pytest.mark.parametrize(
    ("named", "host"), [("a:1", "a"), ("a.", "a"), ("[::1]:2", "::1"), ("[::1]", "::1"), ("", ""), (":1", "")]
)
def test_host_of_a_header(named: str, host: str) -> None:
    assert host_of(named) == host
