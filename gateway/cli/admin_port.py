"""HTTP requests to the admin port of a running gateway, for the commands.

A token is never an argument, because other users of the machine can read the arguments of a process. It comes from
the environment or from a file, is sent to the given address only, and is never shown.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from config.clusters import NAME

DEFAULT_URL: Final = "http://127.0.0.1:9644"
VARIABLE: Final = "SLUICE_ADMIN"
"""The environment variable with the URL that is used without ``--admin``."""

TOKEN_VARIABLE: Final = "SLUICE_ADMIN_TOKEN"
_FILES: Final = {
    "token_file": ("file whose first line is a token for the admin port", TOKEN_VARIABLE, "none"),
    "ca": (
        "authorities, in PEM, of which one has signed the admin port's certificate",
        "",
        "those of the system",
    ),
    "certificate": ("own certificate for the admin port, in PEM", "", "none"),
    "key": ("key of the own certificate", "", "in the same file"),
}
"""Options with a file, without prefix: the meaning, a variable that precedes that of the file, the default."""

_NO_TLS: Final = {
    "WRONG_VERSION_NUMBER": "it does not speak",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection and does not seem to speak",
}
"""OpenSSL's reasons of a port without TLS: HTTP answers, and Kafka closes."""

_TIMEOUT_S: Final = 30.0
_MIB: Final = 1024 * 1024
_MAX_ANSWER_BYTES: Final = 64 * _MIB

CLUSTERS: Final = "/clusters/"
"""The path prefix before the name of a cluster and its paths."""

T = TypeVar("T")


class AdminPortError(Exception):
    """The gateway was not reached, or the response is not that of an admin port. The text is a line for people."""


class AdminUrl(str):
    """The URL of an admin port, and the key for it.

    Attributes:
        files: files by the names of `_FILES`; None: not given. They are read with each request.
        token: a token instead of a token file.
    """

    def __new__(cls, url: str, files: Mapping[str, str | None], token: str | None) -> AdminUrl:
        """Create the URL with its key."""
        made = super().__new__(cls, url)
        made.files, made.token = files, token
        return made

    files: Mapping[str, str | None]
    token: str | None

    def headers(self) -> dict[str, str]:
        """The headers of a request.

        Raises:
            AdminPortError: the token file can't be used.
        """
        token, file = self.token, self.files["token_file"]
        if file is not None:
            try:
                lines = Path(file).read_text(encoding="ascii").split()
            except (OSError, UnicodeDecodeError) as exc:
                why = exc.strerror if isinstance(exc, OSError) else "is not a token"
                raise AdminPortError(f"--admin-token-file: {file}: {why}") from None
            token = lines[0] if lines else ""
        if token is None:
            return {}
        if not token or not token.isascii() or not token.isprintable():
            raise AdminPortError(
                f"the token in {file or TOKEN_VARIABLE} is empty or has characters that no token has"
            )
        return {"Authorization": f"Bearer {token}"}

    def tls(self) -> ssl.SSLContext:
        """The TLS settings of a connection.

        Raises:
            AdminPortError: a file can't be used.
        """
        try:
            context = ssl.create_default_context(cafile=self.files["ca"])
            if (certificate := self.files["certificate"]) is not None:
                context.load_cert_chain(certificate, self.files["key"])
        except OSError as exc:  # includes OpenSSL's errors
            raise AdminPortError(f"--admin-ca, --admin-certificate or --admin-key: {exc}") from None
        return context


def add_argument(parser: argparse.ArgumentParser, *, below: bool = False) -> None:
    """Adds ``--admin``, and the files with keys for it.

    Args:
        parser: the command's parser.
        below: the command is below one that has the option already. The option counts in either place; a default here
            would replace the value that was given there.
    """
    parser.add_argument(
        "--admin",
        metavar="URL",
        default=argparse.SUPPRESS if below else os.environ.get(VARIABLE) or DEFAULT_URL,
        type=_url,
        help=f"the gateway's admin port; default: the environment variable {VARIABLE}, otherwise {DEFAULT_URL}",
    )
    add_cluster_argument(parser, below=below)
    for name, (meaning, first, otherwise) in _FILES.items():
        variable = f"{VARIABLE}_{name.upper()}"
        variables = f"variables {first} (the token itself), {variable}" if first else f"variable {variable}"
        parser.add_argument(
            f"--admin-{name.replace('_', '-')}",
            metavar="FILE",
            default=argparse.SUPPRESS if below else os.environ.get(variable) or None,
            help=f"{meaning}; default: the environment {variables}, otherwise {otherwise}",
        )


def add_cluster_argument(parser: argparse.ArgumentParser, *, below: bool = False) -> None:
    """Adds ``--cluster``.

    Args:
        parser: the command's parser.
        below: see `add_argument`.
    """
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        default=argparse.SUPPRESS if below else None,
        type=_cluster,
        help="the cluster, if the gateway has several ([[clusters]])",
    )


def complete(arguments: argparse.Namespace) -> None:
    """Combine the options of `add_argument` in ``arguments.admin``, if the command has them.

    With ``--cluster`` the URL is that of the cluster's paths.
    """
    if hasattr(arguments, "admin"):
        files = {name: getattr(arguments, f"admin_{name}") for name in _FILES}
        token = os.environ.get(TOKEN_VARIABLE)
        if token is not None and files["token_file"] == os.environ.get(f"{VARIABLE}_TOKEN_FILE"):
            files["token_file"] = None
        below = "" if arguments.cluster is None else f"{CLUSTERS}{arguments.cluster}"
        arguments.admin = AdminUrl(f"{arguments.admin}{below}", files, token)


def ask(
    url: str,
    path: str,
    *,
    method: str = "GET",
    body: Any = None,
    lines: Iterable[Any] | None = None,
    max_bytes: int = _MAX_ANSWER_BYTES,
    timeout_s: float = _TIMEOUT_S,
) -> tuple[int, Any]:
    """One exchange with the admin port.

    Args:
        url: see `add_argument`.
        path: begins with a slash.
        method: the request's method.
        body: sent as JSON; None for no body.
        lines: values that are each sent as a line of JSON, instead of a body.
        max_bytes: the most bytes of the response, in whole MiB.
        timeout_s: the timeout of each step.

    Returns:
        The HTTP status and the response's JSON.

    Raises:
        AdminPortError: there is no response, or it is too large or not JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    if lines is not None:
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        headers = {"Content-Type": "application/x-ndjson"}
    # The token must reach the given address only. So neither the machine's proxy nor redirects are used.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirects()]
    if isinstance(url, AdminUrl):
        headers |= url.headers()
        if url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=url.tls()))
    request = urllib.request.Request(url + path, data, headers, method=method)
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            status, text = answer.status, answer.read(max_bytes + 1)
    except urllib.error.HTTPError as exc:
        with exc:
            status, text = exc.code, exc.read(max_bytes + 1)
    except HTTPException as exc:
        raise AdminPortError(
            f"the server at {url} is not a Sluice admin port: it does not speak HTTP; with TLS, its URL begins with "
            "https"
        ) from exc
    except OSError as exc:
        reason = getattr(exc, "reason", exc)
        raise AdminPortError(f"no answer from {url}: {_reason_text(reason)}") from exc
    if len(text) > max_bytes:
        raise AdminPortError(f"the answer from {url} is larger than {max_bytes // _MIB} MiB")
    try:
        found = json.loads(text)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS):
            raise AdminPortError(
                f"{url} refused: {found['error']}; give a token in {TOKEN_VARIABLE} or with --admin-token-file"
            )
    except (KeyError, TypeError, ValueError) as exc:
        gateway, _, cluster = url.partition(CLUSTERS)
        if cluster and status == HTTPStatus.NOT_FOUND:
            raise AdminPortError(f"the gateway at {gateway} has no clusters; leave --cluster out") from exc
        raise AdminPortError(
            f"the server at {url} is not a Sluice admin port (HTTP status {status})"
        ) from exc
    if isinstance(found, dict) and "clusters" in found:
        raise AdminPortError(_choice(url, found))
    return status, found


def _reason_text(reason: object) -> str:
    """Why there is no response, and what to do if that is known."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"{reason}; --admin-ca names its authority"
    if isinstance(reason, ssl.SSLError) and reason.reason in _NO_TLS:
        return f"{_NO_TLS[reason.reason]} TLS; without TLS, its URL begins with http"
    if type(reason) is ConnectionRefusedError and reason.strerror:
        return reason.strerror
    return str(reason)


def read(
    url: str,
    path: str,
    parse: Callable[[Any], T],
    *,
    what: str,
    max_bytes: int = _MAX_ANSWER_BYTES,
    timeout_s: float = _TIMEOUT_S,
) -> T:
    """A parsed response of the admin port.

    Args:
        url: see `add_argument`.
        path: begins with a slash.
        parse: parses the response's JSON; it raises if the response is of another kind.
        what: the content of the response, for the error message.
        max_bytes, timeout_s: see `ask`.

    Raises:
        AdminPortError: there is no response, or it is of another kind.
    """
    status, answer = ask(url, path, max_bytes=max_bytes, timeout_s=timeout_s)
    try:
        if status in (HTTPStatus.FORBIDDEN, HTTPStatus.MISDIRECTED_REQUEST):
            raise AdminPortError(f"{url} refused: {answer['error']}")
        if status != HTTPStatus.OK:
            raise ValueError(status)
        return parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
        raise AdminPortError(f"the server at {url} is not a Sluice admin port that shows {what}") from exc


def exit_code(url: str, exchange: Callable[[], int], *, what: str = "") -> int:
    """The exit code of a command that uses the admin port; 1 when that fails, with a line that gives the reason.

    Args:
        url: see `add_argument`.
        exchange: sends requests, prints and returns an exit code. If a value is missing in a response, the response
            is not that of an admin port.
        what: a purpose of the admin port for the error text, such as " that shows quotas".
    """
    try:
        return exchange()
    except AdminPortError as exc:
        print(f"sluice: {exc}", file=sys.stderr)
    except (KeyError, TypeError, ValueError, AttributeError):
        print(f"sluice: the server at {url} is not a Sluice admin port{what}", file=sys.stderr)
    return 1


def _choice(url: str, answer: Mapping[str, Any]) -> str:
    """The error text for a gateway with several clusters, which needs ``--cluster``."""
    if isinstance(answer.get("error"), str):
        return f"the gateway at {url.partition(CLUSTERS)[0]}: {answer['error']}"
    names = ", ".join(str(each["name"]) for each in answer["clusters"])
    return f"the gateway at {url} has several clusters: {names}; choose one with --cluster NAME"


def _cluster(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{json.dumps(text)} is no name of a cluster")
    return text


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any) -> None:
        return None


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    try:
        complete = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        complete = False
    if not complete or parts.path not in ("", "/") or parts.query or parts.fragment:
        source = f" (from {VARIABLE})" if text == os.environ.get(VARIABLE) else ""
        raise argparse.ArgumentTypeError(
            f"{json.dumps(text)} is not http://HOST:PORT or https://HOST:PORT{source}"
        )
    return url.rstrip("/")
