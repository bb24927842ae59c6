"""Values from files in a configuration: which files may be read, and that their text is not shown."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from config import Clusters, ConfigError, load, parse
from config.loader import parse_file
from config.value_files import MORE_DIRECTORIES
from gateway.cli.main import main
from gateway.server.reload import plan

FILE = """
[upstream]
bootstrap = ["k:1"]
[[listeners]]
name = "a"
bind = "127.0.0.1:19092"
"""
KEY = '[[admin.keys]]\nname = "ci"\nroles = ["read"]\ntoken = "${file:%s}"\n'
SECRET = "s3cret-" + "x" * 32


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "secrets"
    found.mkdir()
    monkeypatch.setenv(MORE_DIRECTORIES, str(found))
    return found


def token_of(path: object) -> str:
    token = parse(FILE + KEY % path, name="f", environment=os.environ).admin.keys[0].token
    assert token is not None
    return token.get_secret_value()


def fault_of(path: object) -> str:
    with pytest.raises(ConfigError) as caught:
        token_of(path)
    (line,) = caught.value.lines
    return line.removeprefix("f:10: admin.keys.0.token: ")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_text_of_a_file_is_the_value_without_its_line_end(secrets: Path, end: str) -> None:
    (secrets / "token").write_bytes((SECRET + end).encode())
    assert token_of(secrets / "token") == SECRET


def test_text_of_a_file_is_one_part_of_a_string_and_is_not_searched_again(secrets: Path) -> None:
    (secrets / "user").write_text('${HOME}"\\')
    quota = f'[[quotas]]\nuser = "a-${{file:{secrets}/user}}-$${{b}}"\nproducer_byte_rate = 1\n'
    assert parse(FILE + quota, name="f").quotas[0].user == 'a-${HOME}"\\-${b}'


def test_links_of_kubernetes_within_the_directory_are_followed(secrets: Path) -> None:
    (secrets / "..2026").mkdir()
    (secrets / "..2026" / "token").write_text(SECRET)
    (secrets / "..data").symlink_to("..2026")
    (secrets / "token").symlink_to("..data/token")
    assert token_of(secrets / "token") == SECRET


def outside(secrets: Path) -> Path:
    (secrets.parent / "secrets-of-others").mkdir()
    file = secrets.parent / "secrets-of-others" / "token"
    file.write_text(SECRET)
    return file


def link_out(secrets: Path) -> Path:
    (secrets / "token").symlink_to(outside(secrets))
    return secrets / "token"


def directory_link_out(secrets: Path) -> Path:
    (secrets / "more").symlink_to(outside(secrets).parent)
    return secrets / "more" / "token"


def link_through_proc(secrets: Path) -> Path:
    (secrets / "token").symlink_to("/proc/self/environ")
    return secrets / "token"


@pytest.mark.parametrize(
    "path_of",
    [
        outside,
        link_out,
        directory_link_out,
        link_through_proc,
        lambda secrets: secrets / ".." / "secrets-of-others" / outside(secrets).name,
        lambda secrets: secrets / ".." / "no such file",
        lambda _: "/etc/shadow",
        lambda _: "/dev/zero",
        lambda _: "/etc/sluice/../passwd",
    ],
)
def test_file_elsewhere_is_refused_and_nothing_is_said_of_it(
    secrets: Path, path_of: Callable[[Path], object]
) -> None:
    assert fault_of(path_of(secrets)).endswith(
        " is below none of the directories with values: "
        f"/run/secrets, /etc/sluice, {secrets}; SLUICE_SECRET_DIRS names more of them"
    )


def test_link_that_comes_after_the_look_at_the_path_is_not_followed(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = outside(secrets)
    (secrets / "more").mkdir()
    (secrets / "more" / "token").write_text("inside")
    realpath = os.path.realpath

    def swapped(path: str) -> str:
        found = realpath(path)
        if found.endswith("more/token"):
            (secrets / "more").rename(secrets / "before")
            (secrets / "more").symlink_to(target.parent)
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    assert fault_of(secrets / "more" / "token").endswith("cannot be read: Not a directory")


def fifo(file: Path) -> None:
    os.mkfifo(file)


def unix_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(file))


def large(file: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda file: None, "cannot be read: No such file or directory"),
        (Path.mkdir, "is not a regular file"),
        (fifo, "is not a regular file"),
        (unix_socket, "is not a regular file"),
        (lambda file: file.write_bytes(b""), "is empty"),
        (lambda file: file.write_bytes(b"\n"), "is empty"),
        (lambda file: file.write_bytes(b"s3cret\n\n"), "is not one line of printable characters"),
        (lambda file: file.write_bytes(b"s3cret\x00"), "is not one line of printable characters"),
        (lambda file: file.write_bytes(b"\xef\xbb\xbfs3cret"), "is not one line of printable characters"),
        (lambda file: file.write_bytes(b"s3cret\xff"), "is not UTF-8 text"),
        (lambda file: file.write_bytes(b"s3cret" * 1000), "is larger than 4,096 bytes"),
        (large, "is larger than 4,096 bytes"),
    ],
)
def test_what_is_no_value_is_refused_without_its_text(
    secrets: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], fault: str
) -> None:
    monkeypatch.chdir(secrets)
    make(Path("t"))
    found = fault_of(secrets / "t")
    assert found.endswith(fault)
    assert "s3cret" not in found


@pytest.mark.parametrize("path", ["token", "secrets/token", "~/token"])
def test_path_is_absolute(path: str) -> None:
    assert fault_of(path) == f'the file "{path}" is no absolute path'


def test_directory_with_credentials_of_systemd_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path), MORE_DIRECTORIES: "relative::"}
    found = parse(FILE + KEY % (tmp_path / "token"), name="f", environment=environment)
    assert found.admin.keys[0].token is not None


def test_a_file_is_read_once_for_all_keys(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "h").write_text("kafka")
    opened: list[object] = []
    open_before = os.open
    monkeypatch.setattr(os, "open", lambda *args, **kw: opened.append(args[0]) or open_before(*args, **kw))
    brokers = f'["${{file:{secrets}/h}}:1", "${{file:{secrets}/h}}:2"]'
    found = parse(FILE.replace('["k:1"]', brokers), name="f")
    assert [str(each) for each in found.upstream.bootstrap] == ["kafka:1", "kafka:2"]
    assert opened.count("h") == 1


WRONG = [
    ("[admin]\nbind = {}", "admin.bind"),
    ("[log]\nlevel = {}", "log.level"),
    ("[drain]\ntimeout_ms = {}", "drain.timeout_ms"),
    ("[limits]\nmax_frame_bytes = {}", "limits.max_frame_bytes"),
    ("[traces]\nendpoint = {}", "traces.endpoint"),
    ("[usage]\ngateway_id = {}", "usage.gateway_id"),
    ("[quota_admin]\nadmins = [{}]", "quota_admin.admins.0"),
    ("[[quotas]]\nip = {}\nconnection_creation_rate = 1", "quotas.0.ip"),
    ("[server]\nworkers = {}", "server.workers"),
    ("[[quotas]]\nuser = {0}\nproducer_byte_rate = 1\n[[quotas]]\nuser = {0}\nproducer_byte_rate = 1", "quotas.1"),
]


@pytest.mark.parametrize(("text", "key"), WRONG)
def test_errors_do_not_show_the_text_of_a_file(secrets: Path, text: str, key: str) -> None:
    (secrets / "x").write_text("10 s3cret/ MB:77777")
    with pytest.raises(ConfigError, match=key) as caught:
        parse(FILE + text.format(f'"${{file:{secrets}/x}}"'), name="f")
    assert "s3cret" not in str(caught.value)


def test_errors_of_clusters_do_not_show_the_text_of_a_file(secrets: Path) -> None:
    (secrets / "x").write_text("s3cret:77777")
    clusters = """
    [[clusters]]
    name = "one"
    [clusters.upstream]
    bootstrap = ["k:1"]
    [[clusters.listeners]]
    name = "a"
    bind = "127.0.0.1:19092"
    """
    wrong = f'"${{file:{secrets}/x}}"'
    with pytest.raises(ConfigError, match=r"clusters.one.upstream.bootstrap.0: the value, which is from a file"):
        parse_file(clusters.replace('"k:1"', wrong), name="f")
    with pytest.raises(ConfigError, match=r"clusters.0.name: .*hidden"):
        parse_file(clusters.replace('"one"', wrong), name="f")
    assert isinstance(parse_file(clusters, name="f"), Clusters)


def test_check_config_names_the_file_and_hides_its_text(secrets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (secrets / "host").write_text("s3cret-host\n")
    (secrets / "token").write_text(SECRET)
    (secrets / "token").chmod(0o644)
    file = secrets / "sluice.toml"
    text = FILE.replace('"k:1"', f'"${{file:{secrets}/host}}:9092"') + KEY % (secrets / "token")
    quota = f'[[quotas]]\nuser = "${{file:{secrets}/token}}"\nproducer_byte_rate = 1\n'
    file.write_text(text + quota)
    assert main(["check-config", str(file)]) == 0
    out, err = capsys.readouterr()
    assert "s3cret" not in out + err
    assert f"file {secrets}/host" in out
    assert "in upstream.bootstrap.0" in out
    assert "in admin.keys.0.token, quotas.0" in out
    assert f"admin.keys.0.token: {secrets}/token has mode 0644" in err
    assert "a token is in this file" not in err
    file.write_text(text + quota + "[log]\nlevel = 1\n")
    assert main(["check-config", str(file)]) == 2
    assert "s3cret" not in capsys.readouterr().err


def test_a_reload_reads_the_file_again(secrets: Path) -> None:
    file = secrets / "sluice.toml"
    file.write_text(FILE + KEY % (secrets / "token"))
    (secrets / "token").write_text(SECRET)
    running = load(file)
    assert plan(running, load(file)).applies == ()
    (secrets / "token").write_text(SECRET[::-1])
    found = plan(running, load(file))
    assert found.applies == ("admin.keys",)
    token = found.config.admin.keys[0].token
    assert token is not None
    assert token.get_secret_value() == SECRET[::-1]


def test_path_elsewhere_is_refused_before_its_links_are_resolved(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That could mount a host, or wait for a disk."""
    realpath = os.path.realpath

    def not_elsewhere(path: str) -> str:
        assert not str(path).startswith("/net")
        return realpath(path)

    monkeypatch.setattr(os.path, "realpath", not_elsewhere)
    assert "is below none of the directories" in fault_of("/net/host/file")
    assert "is below none of the directories" in fault_of(f"{secrets}/../../../../../../../net/host/file")
