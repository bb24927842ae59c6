"""Without a gateway each command that asks one ends with one line; so it does where something else answers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.cli.main import make_parser
from testkit.command_line import parsers
from testkit.gateway import free_ports
from tests.gateway.cli.conftest import Run

COMMANDS = (
    "enforcement", "groups", "groups add a --user b", "groups remove a --user b", "groups delete a",
    "quotas", "quotas export", "quotas history", "quotas import FILE",
    "quotas diff FILE", "quotas apply FILE",
    "quotas set client-id=app producer_byte_rate=5", "reload", "shed", "top", "upgrade",
    "why --client-id app",
)  # fmt: skip


@contextmanager
def serving(answer: bytes) -> Iterator[str]:
    """Sends something to each client that has sent something, and closes; where it is."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listening.accept()
                except OSError:
                    return
                with sock:
                    sock.recv(65_536)  # all of it: a close with unread bytes would be a reset
                    sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def other_server() -> Iterator[str]:
    """Answers each connection as SSH does; where it is."""
    with serving(b"SSH-2.0-OpenSSH\r\n") as address:
        yield f"http://{address}"


@pytest.fixture
def ask(run: Run, tmp_path: Path) -> Callable[[str, str], tuple[int, str, str]]:
    """Run a command against an admin port."""
    file = tmp_path / "quotas.yml"
    file.write_text("quotas:\n- user: a\n  producer_byte_rate: 5\n")
    return lambda command, url: run(*command.replace("FILE", str(file)).split(), "--admin", url)


def test_all_commands_that_ask_a_gateway_are_tried() -> None:
    asking = {name for name, parser in parsers("", make_parser()) if "--admin" in parser.format_help()}
    assert {name for name in asking if any(f" {command} ".startswith(f"{name} ") for command in COMMANDS)} == asking
    assert len(asking) == len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_without_a_gateway_ends_with_one_line(
    command: str, ask: Callable[[str, str], tuple[int, str, str]]
) -> None:
    url = f"http://127.0.0.1:{free_ports(1)}"
    code, out, err = ask(command, url)
    assert (code, out) == (1, "")
    assert err.startswith("sluice: no")
    assert url in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [each for each in COMMANDS if each != "upgrade"])  # asks another socket
def test_command_at_the_port_of_something_else_ends_with_one_line(
    command: str, ask: Callable[[str, str], tuple[int, str, str]], other_server: str
) -> None:
    code, out, err = ask(command, other_server)
    assert (code, out) == (1, "")
    assert err.startswith(f"sluice: the server at {other_server} is not a Sluice admin port: it does not speak HTTP")
    assert err.count("\n") == 1


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["Kafka", "HTTP"])
def test_url_with_https_of_a_port_without_tls_is_told_as_such(
    ask: Callable[[str, str], tuple[int, str, str]], answer: bytes
) -> None:
    with serving(answer) as address:
        code, out, err = ask("quotas", f"https://{address}")
    assert (code, out) == (1, "")
    assert err.startswith(f"sluice: no answer from https://{address}: it ")
    assert "TLS; without TLS, its URL begins with http;" in err


def test_screen_without_a_terminal_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.top.snapshot_of", lambda url: None)
    assert run("top") == (2, "", "sluice: top needs a terminal\n")
