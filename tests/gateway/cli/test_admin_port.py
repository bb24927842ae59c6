"""The client of the admin port and what its commands print; what they do is tested at the gateway."""

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import admin_port
from gateway.cli.admin_port import DEFAULT_URL, AdminPortError, add_argument, ask, exit_code
from testkit.gateway import free_ports
from tests.gateway.cli.conftest import Run


class Server:
    """Answers every request alike and keeps what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.answer = b'{"mode": "off"}'
        self.asked: list[tuple[str, str, str | None, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                outer.asked.append((self.command, self.path, self.headers.get("Content-Type"), body))
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(outer.answer)))
                self.end_headers()
                self.wfile.write(outer.answer)

            do_PUT = do_POST = do_GET  # noqa: N815  (the names that the base class calls)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def test_body_goes_as_json_and_the_answer_comes_back_with_its_status(server: Server) -> None:
    assert ask(server.url, "/x") == (200, {"mode": "off"})
    server.status = 422
    assert ask(server.url, "/x", method="PUT", body={"a": 1}) == (422, {"mode": "off"})
    body = json.dumps({"a": 1}).encode()
    assert server.asked == [("GET", "/x", None, b""), ("PUT", "/x", "application/json", body)]


def test_environments_proxy_is_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)}")
    monkeypatch.setenv("no_proxy", "")
    assert ask(server.url, "/x")[0] == 200


def test_redirects_are_not_followed(server: Server) -> None:
    server.status, server.headers = 302, {"Location": f"{server.url}/elsewhere"}
    assert ask(server.url, "/x")[0] == 302
    assert len(server.asked) == 1


def test_a_port_without_a_gateway_is_a_line_with_the_address(server: Server) -> None:
    url = f"http://127.0.0.1:{free_ports(1)}"
    with pytest.raises(AdminPortError, match=rf"^no answer from {url}: Connection refused$"):
        ask(url, "/x")
    server.status, server.answer = 404, b"<html>"
    with pytest.raises(AdminPortError, match=r"is not a Sluice admin port \(HTTP status 404\)$"):
        ask(server.url, "/x")


def test_many_long_names_fit_in_an_answer(server: Server, run: Run) -> None:
    server.answer = json.dumps({"groups": [{"name": "g", "client_ids": ["x" * 200] * 10_000}]}).encode()
    code, out, err = run("groups", "--admin", server.url)
    assert (code, err) == (0, "")
    assert out.count("x" * 200) == 10_000
    server.status, server.answer = 403, json.dumps({"error": "x" * 2_000_000}).encode()
    assert run("why", "--user", "u", "--admin", server.url) == (1, "", f"sluice: refused: {'x' * 2_000_000}\n")


@pytest.mark.parametrize("status", [200, 422])
def test_an_answer_that_is_too_large_is_named_as_such(server: Server, status: int) -> None:
    mib = 1024 * 1024
    server.status = status
    server.answer = b'"' + b"x" * (mib - 2) + b'"'
    assert ask(server.url, "/x", max_bytes=mib)[0] == status
    server.answer += b" "
    with pytest.raises(AdminPortError, match=rf"^the answer from {server.url} is larger than 1 MiB$"):
        ask(server.url, "/x", max_bytes=mib)


@pytest.mark.parametrize(("text", "url"), [
    (None, DEFAULT_URL), ("gw:9644", "http://gw:9644"), ("http://[::1]:1/", "http://[::1]:1"),
    ("https://gw:1", "https://gw:1"), ("ftp://gw:1", None), ("http://gw:1/metrics", None), ("http://gw:port", None),
    ("http://", None),
])  # fmt: skip
def test_address_is_a_host_and_a_port(text: str | None, url: str | None) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_argument(parser)
    argv = [] if text is None else ["--admin", text]
    if url is None:
        with pytest.raises(argparse.ArgumentError, match=r"is not http://HOST:PORT or https://HOST:PORT$"):
            parser.parse_args(argv)
    else:
        assert parser.parse_args(argv).admin == url


def test_a_command_ends_with_its_own_code_or_with_1_and_a_line_that_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(error: Exception) -> int:
        raise error

    url = "http://a:1"
    assert exit_code(url, lambda: 7) == 7
    assert exit_code(url, lambda: fail(AdminPortError("nobody there"))) == 1
    assert exit_code(url, lambda: fail(KeyError("mode")), what=" that shows quotas") == 1
    assert capsys.readouterr().err.splitlines() == [
        "sluice: nobody there",
        "sluice: the server at http://a:1 is not a Sluice admin port that shows quotas",
    ]


Asked = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Asked]:
    """Makes the admin port answer so, or raise so; gives what it is asked."""

    def answering(answer: Any) -> Asked:
        asked: Asked = []

        def ask(*arguments: Any, **options: Any) -> Any:
            asked.append((arguments, options))
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(admin_port, "ask", ask)
        return asked

    return answering


OFF = {"method": "PUT", "body": {"mode": "off"}}
NO_PORT = "sluice: the server at http://gw:1 is not a Sluice admin port\n"


@pytest.mark.parametrize(("argv", "options", "answer", "code", "out", "err"), [
    ([], {}, (200, {"mode": "observe", "configured": "observe"}), 0, "observe\n", ""),
    ([], {}, (200, {"mode": "observe", "configured": "enforce"}), 0,
     "observe (the configuration file says enforce)\n", ""),
    (["off"], OFF, (200, {"mode": "off", "before": "enforce"}), 0, "off (was enforce)\n", ""),
    (["off"], OFF, (200, {"mode": "off", "before": "off"}), 0, "off\n", ""),
    (["off"], OFF, (403, {"error": "only from here"}), 1, "", "sluice: refused: only from here\n"),
    (["off"], OFF, AdminPortError("no gateway answers"), 1, "", "sluice: no gateway answers\n"),
    (["off"], OFF, (200, {"unexpected": 1}), 1, "", NO_PORT),
    (["off"], OFF, (200, []), 1, "", NO_PORT),
])  # fmt: skip
def test_enforcement_is_shown_or_changed(
    answering: Any, argv: list[str], options: Any, answer: Any, code: int, out: str, err: str, run: Run
) -> None:
    asked = answering(answer)
    assert run("enforcement", *argv, "--admin", "gw:1") == (code, out, err)
    assert asked == [(("http://gw:1", "/enforcement"), options)]


def test_without_address_default_port_is_asked_and_unknown_mode_not_at_all(answering: Any, run: Run) -> None:
    asked = answering((200, {"mode": "off", "configured": "off"}))
    run("enforcement")
    assert asked == [((DEFAULT_URL, "/enforcement"), {})]
    code, _, err = run("enforcement", "on")
    assert (code, len(asked)) == (2, 1)
    assert "invalid choice: 'on'" in err


def test_the_environment_names_the_gateway_unless_the_option_does(
    answering: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering((200, {"mode": "off", "configured": "off"}))
    monkeypatch.setenv("SLUICE_ADMIN", "gateway-1:9644")
    assert run("enforcement")[0] == run("enforcement", "--admin", "gw:1")[0] == 0
    assert [each[0][0] for each in asked] == ["http://gateway-1:9644", "http://gw:1"]
    monkeypatch.setenv("SLUICE_ADMIN", "gateway-1:port")
    code, _, err = run("enforcement")
    assert (code, len(asked)) == (2, 2)
    assert '"gateway-1:port" is not http://HOST:PORT or https://HOST:PORT (from SLUICE_ADMIN)' in err
    monkeypatch.setenv("SLUICE_ADMIN", "")
    run("enforcement")
    assert asked[-1][0][0] == DEFAULT_URL


@pytest.mark.parametrize("argv", [
    ["enforcement"], ["reload"], ["top"], ["why", "--client-id", "a"], ["quotas"], ["quotas", "history"],
    ["quotas", "export"], ["quotas", "set", "client-id=a", "producer_byte_rate=1"], ["quotas", "import", "FILE"],
    ["upgrade"],
], ids=" ".join)  # fmt: skip
def test_every_command_with_an_admin_port_takes_it_from_the_environment(
    run: Run, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text("quotas: []\n")
    monkeypatch.setenv("SLUICE_ADMIN", "http://127.0.0.1:1")
    _, _, err = run(*(str(file) if each == "FILE" else each for each in argv))
    assert "http://127.0.0.1:1" in err


@pytest.mark.parametrize(("answer", "code", "out", "err"), [
    ((200, {"faults": [], "applied": [], "needs_restart": []}), 0, "changed: nothing\n", ""),
    ((200, {"faults": [], "applied": ["quotas", "log.level"], "needs_restart": ["admin.bind"]}), 0,
     "changed: quotas, log.level\nneeds a restart: admin.bind\n", ""),
    ((422, {"faults": ["f: a", "f: b"], "applied": [], "needs_restart": []}), 1,
     "", "sluice: not reloaded: f: a\nsluice: not reloaded: f: b\n"),
    ((403, {"error": "no"}), 1, "", "sluice: not reloaded: no\n"),
    (AdminPortError("no gateway answers"), 1, "", "sluice: no gateway answers\n"),
    ((200, []), 1, "", NO_PORT),
])  # fmt: skip
def test_j07_outcome_of_a_reload_is_told_and_decides_the_exit_code(
    answering: Any, answer: Any, code: int, out: str, err: str, run: Run
) -> None:
    asked = answering(answer)
    assert run("reload", "--admin", "gw:1") == (code, out, err)
    assert asked == [(("http://gw:1", "/reload"), {"method": "POST", "body": {}})]
