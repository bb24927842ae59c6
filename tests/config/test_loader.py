from pathlib import Path

import pytest

from config.host_port import HostPort
from config.loader import ConfigError, default_config, load, parse, parse_bootstrap, replace_upstream

MINIMAL = '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'


def test_file_is_read_with_defaults_filled_in(tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text(MINIMAL)
    found = load(file)
    assert found.upstream.bootstrap == (HostPort("k", 1),)
    assert found.admin.bind == HostPort("127.0.0.1", 9644)
    assert found.limits.max_frame_bytes == 104_857_600


def test_unreadable_file_is_one_line_with_its_name(tmp_path: Path) -> None:
    binary = tmp_path / "sluice.toml"
    binary.write_bytes(b"# \xff")
    reasons = {
        tmp_path / "none.toml": "cannot be read: No such file or directory",
        tmp_path: "cannot be read: Is a directory",
        binary: "is not UTF-8 text (byte 2)",
    }
    for path, reason in reasons.items():
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert caught.value.lines == [f"{path}: {reason}"]
    with pytest.raises(ConfigError, match=r"^f: not TOML: .*line 2, column 5"):
        parse("[log]\na = =\n", name="f")


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "a = 1\na = 2", "\x00"])
def test_hostile_toml_is_one_line_too(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, name="f")
    assert len(caught.value.lines) == 1
    assert "\n" not in caught.value.lines[0]


def test_without_a_file_the_gateway_listens_on_loopback_and_not_before_itself() -> None:
    found = default_config((HostPort("k", 1),))
    assert found.listeners[0].bind == HostPort("127.0.0.1", 19_092)
    assert found.admin.bind == HostPort("127.0.0.1", 9644)
    assert found.quota_items() == []
    assert found == parse(MINIMAL.replace('"a"', '"default"'), name="f")
    itself = (HostPort("127.0.0.1", 19_092),)
    with pytest.raises(ConfigError, match="is the gateway itself"):
        default_config(itself)
    with pytest.raises(ConfigError, match="is the gateway itself"):
        replace_upstream(parse(MINIMAL, name="f"), itself)


def test_bootstrap_text_is_kafkas_comma_list() -> None:
    assert parse_bootstrap("a:1, [::1]:2") == (HostPort("a", 1), HostPort("::1", 2))
    for wrong in ("", "a:1,", "a"):
        with pytest.raises(ConfigError, match="is not host:port"):
            parse_bootstrap(wrong)
