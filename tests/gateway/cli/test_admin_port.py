"""The client of the admin port, with a server that answers what a test wants."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gateway.cli.admin_port import DEFAULT_URL, AdminPortError, add_argument, ask, exit_code
from testkit.gateway import free_ports


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
    server.status = 422
    assert ask(server.url, "/x", method="PUT", body={"a": 1}) == (422, {"mode": "off"})
    assert server.asked == [("PUT", "/x", "application/json", json.dumps({"a": 1}).encode())]


def test_question_without_a_body_has_none(server: Server) -> None:
    assert ask(server.url, "/x") == (200, {"mode": "off"})
    assert server.asked == [("GET", "/x", None, b"")]


def test_environments_proxy_is_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)}")
    monkeypatch.setenv("no_proxy", "")
    assert ask(server.url, "/x")[0] == 200


def test_redirects_are_not_followed(server: Server) -> None:
    server.status, server.headers = 302, {"Location": f"{server.url}/elsewhere"}
    assert ask(server.url, "/x")[0] == 302
    assert len(server.asked) == 1


def test_nobody_there_is_a_line_with_the_address() -> None:
    url = f"http://127.0.0.1:{free_ports(1)}"
    with pytest.raises(AdminPortError, match=rf"^no gateway answers at {url}: .*refused"):
        ask(url, "/x")


def test_another_program_there_is_a_line_too(server: Server) -> None:
    server.status, server.answer = 404, b"<html>"
    with pytest.raises(AdminPortError, match=r"is no admin port \(HTTP status 404\)$"):
        ask(server.url, "/x")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (None, DEFAULT_URL),
        ("gw:9644", "http://gw:9644"),
        ("http://[::1]:1/", "http://[::1]:1"),
        ("https://gw:1", None),
        ("http://gw:1/metrics", None),
        ("http://gw:port", None),
        ("http://", None),
    ],
)
def test_address_is_a_host_and_a_port(text: str | None, url: str | None) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_argument(parser)
    argv = [] if text is None else ["--admin", text]
    if url is None:
        with pytest.raises(argparse.ArgumentError, match=r"is not http://HOST:PORT$"):
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
    assert exit_code(url, lambda: fail(KeyError("mode")), what=" that tells quotas") == 1
    assert capsys.readouterr().err.splitlines() == [
        "sluice: nobody there",
        "sluice: what answers at http://a:1 is no admin port that tells quotas",
    ]
