"""HTTP requests to the admin port of a running gateway, for the commands."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

DEFAULT_URL: Final = "http://127.0.0.1:9644"
VARIABLE: Final = "SLUICE_ADMIN"
"""Of the environment: the URL that is used without ``--admin``."""

_TIMEOUT_S: Final = 30.0
_MAX_ANSWER_BYTES: Final = 1024 * 1024

T = TypeVar("T")


class AdminPortError(Exception):
    """The gateway was not reached, or answered with something else than our admin port would; a line for people."""


def add_argument(parser: argparse.ArgumentParser, *, below: bool = False) -> None:
    """Adds ``--admin``.

    Args:
        parser: of the command.
        below: the command stands below one that has it already. Whichever of the two was given counts; a default here
            would replace what was given there.
    """
    parser.add_argument(
        "--admin",
        metavar="URL",
        default=argparse.SUPPRESS if below else os.environ.get(VARIABLE) or DEFAULT_URL,
        type=_url,
        help=f"the gateway's admin port; default: the environment variable {VARIABLE}, otherwise {DEFAULT_URL}",
    )


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
        method: of the request.
        body: sent as JSON; None for no body.
        lines: each sent as a line of JSON, in place of a body.
        max_bytes: of the answer that are read.
        timeout_s: for each step of it.

    Returns:
        The HTTP status and the answer's JSON.

    Raises:
        AdminPortError: no answer, or none in JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    if lines is not None:
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        headers = {"Content-Type": "application/x-ndjson"}
    request = urllib.request.Request(url + path, data, headers, method=method)
    # The machine's proxy is for other places, and a redirect would lead to one.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            status, text = answer.status, answer.read(max_bytes)
    except urllib.error.HTTPError as exc:
        with exc:
            status, text = exc.code, exc.read(max_bytes)
    except HTTPException as exc:
        raise AdminPortError(
            f"the server at {url} is not a Sluice admin port: it does not speak HTTP"
        ) from exc
    except OSError as exc:
        reason = getattr(exc, "reason", exc)
        raise AdminPortError(f"no answer from {url}: {reason}") from exc
    try:
        return status, json.loads(text)
    except ValueError as exc:
        raise AdminPortError(
            f"the server at {url} is not a Sluice admin port (HTTP status {status})"
        ) from exc


def read(
    url: str,
    path: str,
    parse: Callable[[Any], T],
    *,
    what: str,
    max_bytes: int = _MAX_ANSWER_BYTES,
    timeout_s: float = _TIMEOUT_S,
) -> T:
    """An answer of the admin port, parsed.

    Args:
        url: see `add_argument`.
        path: begins with a slash.
        parse: of the answer's JSON; what it raises says that this is no such answer.
        what: the answer shows, for the error message.
        max_bytes, timeout_s: see `ask`.

    Raises:
        AdminPortError: no answer, or another one.
    """
    status, answer = ask(url, path, max_bytes=max_bytes, timeout_s=timeout_s)
    try:
        if status != HTTPStatus.OK:
            raise ValueError(status)
        return parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
        raise AdminPortError(f"the server at {url} is not a Sluice admin port that shows {what}") from exc


def exit_code(url: str, exchange: Callable[[], int], *, what: str = "") -> int:
    """The exit code of a command that asks the admin port; 1 when it can't be asked, with a line that says why.

    Args:
        url: see `add_argument`.
        exchange: asks, prints and returns an exit code; whatever it misses in an answer is no answer of ours.
        what: an admin port would do, such as " that shows quotas".
    """
    try:
        return exchange()
    except AdminPortError as exc:
        print(f"sluice: {exc}", file=sys.stderr)
    except (KeyError, TypeError, ValueError, AttributeError):
        print(f"sluice: the server at {url} is not a Sluice admin port{what}", file=sys.stderr)
    return 1


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any) -> None:
        return None


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    try:
        complete = parts.scheme == "http" and parts.hostname and (parts.port or True)
    except ValueError:
        complete = False
    if not complete or parts.path not in ("", "/") or parts.query or parts.fragment:
        source = f" (from {VARIABLE})" if text == os.environ.get(VARIABLE) else ""
        raise argparse.ArgumentTypeError(f"{json.dumps(text)} is not http://HOST:PORT{source}")
    return url.rstrip("/")
