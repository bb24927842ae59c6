"""Tokens of the gateway's own login: when the next is asked for, and what an endpoint may do (hazard H15)."""

import asyncio
import base64
import itertools
import math
import os
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream import token_source
from gateway.upstream.login import BrokerLogin, LoginFailed
from gateway.upstream.secret_file import SecretFile
from gateway.upstream.token_source import TokenEndpoint as Client
from gateway.upstream.token_source import TokenSource
from gateway.upstream.tokens import Token, refresh_after_s, token_of, token_of_response
from testkit.certificates import Authority
from testkit.secure_kafka import unsecured_token
from testkit.token_endpoint import SECRET, TokenEndpoint, answer

TOKEN: Final = "canary-of-a-token-5e0b"
GOOD: Final = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 600}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def endpoint(authority: Authority) -> Iterator[TokenEndpoint]:
    pair = authority.issue("endpoint", "endpoint", hosts=("127.0.0.1",))
    with TokenEndpoint(pair, lambda: [answer(GOOD)]) as running:
        yield running


def client(folder: Path, endpoint: TokenEndpoint, *, scope: str | None = None, ca: str = "ca.pem") -> Client:
    file = folder / "client-secret"
    file.write_text(SECRET + "\n")
    secret = SecretFile("upstream.sasl.client_secret_file", str(file))
    return Client(endpoint.url, ca=str(folder / ca), client_id="the gateway", secret=secret, scope=scope)


# -- when --------------------------------------------------------------------------------------------------------


@given(st.floats(0, 1e9), st.floats(0, 1))
def test_next_token_is_asked_for_as_kafkas_clients_do_and_always_before_the_end(left_s: float, chance: float) -> None:
    after_s = refresh_after_s(left_s, chance)
    assert 0 <= after_s <= left_s
    if left_s >= 360:
        assert 60 <= after_s <= left_s - 300
    if left_s >= 2000:
        assert 0.8 * left_s <= after_s <= max(0.85 * left_s, left_s - 300)


class Time:
    """Passes when it is slept.

    Attributes:
        now_s: seconds since 1970.
        slept: for how long each time.
    """

    def __init__(self, turns: int) -> None:
        self.now_s = 1_000_000.0
        self.slept: list[float] = []
        self._turns = turns
        self.over = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        if len(self.slept) >= self._turns:
            self.over.set()
            await asyncio.Event().wait()


async def run_source(fetch: Callable[[Time], Token], turns: int) -> tuple[TokenSource, Time]:
    time = Time(turns)

    async def fetched() -> Token:
        return fetch(time)

    source = TokenSource(fetched, upstream="u", wall_s=lambda: time.now_s, sleep=time.sleep, chance=lambda: 0.5)
    await source.start()
    await asyncio.wait_for(time.over.wait(), 60)
    await source.stop()
    return source, time


async def test_token_is_renewed_again_and_again_before_it_expires() -> None:
    fetched: list[float] = []

    def fetch(time: Time) -> Token:
        fetched.append(time.now_s)
        return Token(TOKEN, time.now_s + 1000)

    source, _ = await run_source(fetch, turns=100)
    assert source.reloads == len(fetched) >= 3
    assert all(later - earlier == pytest.approx(700) for earlier, later in itertools.pairwise(fetched))


async def test_failures_make_pauses_longer_up_to_half_a_minute_and_leave_the_token_in_force() -> None:
    tokens = iter([Token(TOKEN, 1_000_060.0)])

    def fetch(time: Time) -> Token:
        for token in tokens:
            return token
        raise ValueError("HTTP status 500")

    with structlog.testing.capture_logs() as logged:
        source, time = await run_source(fetch, turns=20)
    assert source.token == Token(TOKEN, 1_000_060.0)
    assert source.fault == "HTTP status 500"
    assert source.failures == len(time.slept) - 3  # the pauses of the token
    assert time.slept[3:12] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert [each["event"] for each in logged if each["log_level"] == "error"] == ["login_token_not_refreshed"]


async def test_bug_of_a_fetch_does_not_end_the_task_and_shows_its_class_alone() -> None:
    def fetch(time: Time) -> Token:
        raise KeyError(SECRET)

    source, _ = await run_source(fetch, turns=5)
    assert source.fault == "KeyError"
    assert source.failures == 5


async def test_token_of_no_time_does_not_make_a_loop_without_pause() -> None:
    _, time = await run_source(lambda time: Token(TOKEN, time.now_s + 1e-9), turns=5)
    assert min(time.slept) >= 0.5


# -- what an endpoint may answer -----------------------------------------------------------------------------------


async def test_endpoint_is_asked_as_rfc_6749_says(tmp_path: Path, endpoint: TokenEndpoint) -> None:
    assert (await client(tmp_path, endpoint, scope="kafka write").fetch()).text == TOKEN
    ((head, form),) = endpoint.asked
    assert head.startswith("POST /token HTTP/1.1\r\n")
    pair = base64.b64encode(f"the+gateway:{SECRET}".encode()).decode()
    assert f"Authorization: Basic {pair}" in head
    assert form == "grant_type=client_credentials&scope=kafka+write"


def of(response: dict[str, Any]) -> Token:
    return token_of_response(answer(response).partition(b"\r\n\r\n")[2], now_s=1000.0)


def test_lifetime_is_what_ends_first_of_the_answer_and_the_token() -> None:
    jwt = unsecured_token("gw")
    ends = token_of(jwt, now_s=0).expires_s
    assert ends is not None
    assert of({**GOOD, "access_token": jwt}).expires_s == 1600
    assert of({**GOOD, "access_token": jwt, "expires_in": 2**39}).expires_s == pytest.approx(ends)
    assert of({**GOOD, "expires_in": "600"}).expires_s == 1600
    for unknown in (None, True, "soon", -5, math.pi * 1e300, [], "1e400"):
        assert of({**GOOD, "expires_in": unknown}).expires_s == 1300
    assert token_of("opaque", now_s=0).expires_s is None
    for exp in ("NaN", "1e999", '"x"', "-1", "[]", "1" + "0" * 400):
        claims = base64.urlsafe_b64encode(f'{{"exp":{exp}}}'.encode()).rstrip(b"=").decode()
        assert token_of(f"e30.{claims}.", now_s=0).expires_s is None
    assert TOKEN not in repr(of(GOOD))


BIG: Final = b"x" * 1_000_000
FAULTS: Final[dict[str, tuple[Iterable[bytes], str]]] = {
    "500": ([answer(b"", "500 Oops")], "HTTP status 500"),
    "refused": ([answer({"error": "invalid_client", "error_description": SECRET}, "401 No")], "401 invalid_client"),
    "echo as code": ([answer({"error": SECRET}, "400 Bad")], "HTTP status 400"),
    "redirect": ([answer(GOOD, "302 Found", "Location: https://127.0.0.1:1/")], "HTTP status 302"),
    "no JSON": ([answer(SECRET.encode())], "not JSON"),
    "a list": ([answer(b"[1]")], "not JSON"),
    "deep": ([answer(b"[" * 50_000)], "not JSON"),
    "not UTF-8": ([answer(b'{"access_token":"\xff"}')], "not JSON"),
    "no text": ([answer({"access_token": 5})], "access_token"),
    "separators": ([answer({**GOOD, "access_token": f"a\x01auth=Bearer {SECRET}\x01"})], "holds no token"),
    "control characters": ([answer({**GOOD, "access_token": "a\r\n\x1b[2J"})], "holds no token"),
    "another type": ([answer({**GOOD, "token_type": "mac"})], "bearer"),
    "expired": ([answer({**GOOD, "access_token": unsecured_token("gw", lifetime_s=-60)})], "expired"),
    "no time": ([answer({**GOOD, "expires_in": 0})], "expired"),
    "100 MB": ([b"HTTP/1.1 200 OK\r\n\r\n", *itertools.repeat(BIG, 100)], "more than"),
    "compressed": ([answer(b"\x1f\x8b\x08" + b"\0" * 100, "200 OK", "Content-Encoding: gzip")], "not JSON"),
    "long head": ([b"HTTP/1.1 200 OK\r\nX: ", *itertools.repeat(BIG, 100)], "no proper HTTP"),
    "many heads": ([b"HTTP/1.1 200 OK\r\n", *itertools.repeat(b"X: y\r\n" * 10_000, 500)], "no proper HTTP"),
    "no HTTP": ([SECRET.encode() + b"\r\n\r\n"], "no proper HTTP"),
    "nothing": ([], "no proper HTTP"),
    "broken off": ([answer(GOOD)[:-5]], "no proper HTTP"),
}


@pytest.mark.parametrize("kind", FAULTS)
async def test_answer_without_a_usable_token_is_a_fault_that_shows_nothing_of_it(
    kind: str, tmp_path: Path, endpoint: TokenEndpoint
) -> None:
    pieces, reason = FAULTS[kind]
    endpoint.answers = lambda: pieces
    with pytest.raises(ValueError, match=reason) as caught:
        await client(tmp_path, endpoint).fetch()
    text = str(caught.value)
    assert text.isprintable()
    assert SECRET not in text
    assert TOKEN not in text
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def test_endpoint_that_never_answers_is_given_up(
    tmp_path: Path, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.answers = endpoint.hang
    monkeypatch.setattr(token_source, "_TIMEOUT_S", 0.2)
    with pytest.raises(ValueError, match=r"no answer within 0\.2 s"):
        await client(tmp_path, endpoint).fetch()


async def test_endpoint_is_not_asked_unless_the_own_authority_has_signed_its_certificate(
    tmp_path: Path, endpoint: TokenEndpoint, authority: Authority
) -> None:
    Authority(tmp_path, "other")
    with pytest.raises(ValueError, match="certificate is not trusted"):
        await client(tmp_path, endpoint, ca="other.pem").fetch()
    os.mkfifo(tmp_path / "fifo.pem")
    (tmp_path / "text.pem").write_text("no certificate")
    for file, fault in (("nowhere", "No such file"), ("fifo", "no regular file"), ("text", "no PEM certificate")):
        with pytest.raises(ValueError, match=rf"{file}\.pem: .*{fault}"):
            await client(tmp_path, endpoint, ca=f"{file}.pem").fetch()
    with TokenEndpoint(authority.issue("wrong", "wrong", hosts=("elsewhere",)), list) as wrong:
        with pytest.raises(ValueError, match="certificate is not trusted"):
            await client(tmp_path, wrong).fetch()
        assert wrong.asked == []
    with pytest.raises(ValueError, match="refused"):
        await client(tmp_path, wrong).fetch()
    assert endpoint.asked == []


async def test_login_without_a_token_says_why_and_leaves_no_task_behind(
    tmp_path: Path, endpoint: TokenEndpoint
) -> None:
    from config.sections.upstream import UpstreamSasl

    (tmp_path / "client-secret").write_text(SECRET)
    section = UpstreamSasl(
        mechanism="OAUTHBEARER",
        token_endpoint=endpoint.url,
        token_endpoint_ca=str(tmp_path / "ca.pem"),
        client_id="gw",
        client_secret_file=str(tmp_path / "client-secret"),
    )
    endpoint.answers = lambda: [answer(b"", "503 Away")]
    login = BrokerLogin(section, upstream="u", path="upstream", client_id="tests")
    before, threads = asyncio.all_tasks(), threading.active_count()
    await login.start()
    with pytest.raises(LoginFailed, match="token endpoint: HTTP status 503"):
        login.token()
    assert login.last_refresh_failed
    assert login.failures >= 1
    await login.stop()
    assert asyncio.all_tasks() == before
    assert threading.active_count() <= threads + 4  # the loop's pool, and the endpoint's own


def test_authorities_may_have_comments_in_any_language(tmp_path: Path) -> None:
    file = tmp_path / "authorities.pem"
    file.write_text(f"# Autorit\N{LATIN SMALL LETTER E WITH ACUTE}\n{Authority(tmp_path).certificate.read_text()}")
    assert token_source.endpoint_context(str(file)).get_ca_certs()


async def test_a_disk_that_hangs_keeps_one_thread_however_often_it_is_tried(
    tmp_path: Path, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of brokers are looked up by the same few threads."""
    reads, goes_on = [], threading.Event()

    def hangs(ca: str | None) -> ssl.SSLContext:
        reads.append(ca)
        goes_on.wait(60)
        return ssl.create_default_context(cafile=ca)

    monkeypatch.setattr(token_source, "_TIMEOUT_S", 0.05)
    monkeypatch.setattr(token_source, "endpoint_context", hangs)
    asking = client(tmp_path, endpoint)
    for _ in range(3):
        with pytest.raises(ValueError, match="no answer within"):
            await asking.fetch()
    assert len(reads) == 1
    goes_on.set()


def test_a_token_that_expires_in_its_file_is_a_fault(tmp_path: Path) -> None:
    """Also where the file stays as it is."""
    file = tmp_path / "token"
    file.write_text("token")
    good = True

    def check(_text: str) -> None:
        if not good:
            raise ValueError("holds a token that has expired")

    secret = SecretFile("upstream.sasl.token_file", str(file), check)
    assert secret.reload(only_if_changed=True, by="tests")
    good = False
    assert not secret.reload(only_if_changed=True, by="tests")
    assert not secret.reload(only_if_changed=True, by="tests")
    assert (secret.fault, secret.failures) == (f"{file}: holds a token that has expired", 1)
