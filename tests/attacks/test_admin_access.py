"""Attacks on the keys of the admin port (hazards K24 and K25): stolen, guessed, hidden, forged ones, and floods."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.observability import logging_setup
from gateway.observability.events import AdminRefusal, TlsFailure
from gateway.server.admin_access import MAX_FAILURES_PER_ADDRESS, ROLES
from gateway.server.admin_connections import MAX_CONNECTIONS
from gateway.tls.transport import _State
from quotas.limits import Enforcement
from testkit.certificates import CLIENT, Authority
from testkit.gateway import RunningGateway, gateway_config, gateway_process, running_gateway
from testkit.raw_client import HOST, RawClient, until
from testkit.secrets import CANARY, secrets_in
from testkit.tls import Pki

pytestmark = pytest.mark.asyncio

TOKENS = {role: f"{CANARY}{role}-0123456789abcdef0123" for role in ("read", "operate", "quotas")}
LINES = "application/x-ndjson"
LINES_PER_S = 20
QUOTA = b'{"entity": [{"type": "user", "name": "alice"}], "quota": "producer_byte_rate", "limit": 5}\n'
BODIES = {
    "/enforcement": (b'{"mode": "off"}', "application/json"),
    "/reload": (b"{}", "application/json"),
    "/shed": (b'{"tier": 3}', "application/json"),
    "/groups": (b'{"group": "a", "delete": true}', "application/json"),
    "/quotas/import": (QUOTA, LINES),
}


def keys() -> list[dict[str, Any]]:
    return [{"name": f"{role}er", "roles": [role], "token": token} for role, token in TOKENS.items()]


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What is written at DEBUG, as a running gateway writes it."""
    stream = io.StringIO()
    # All of it is one second for what limits the lines.
    logging_setup.setup("debug", stream=stream, monotonic_ms=lambda: 0, max_lines_per_s=LINES_PER_S)
    yield stream
    logging_setup.setup()


@asynccontextmanager
async def gateway(**admin: Any) -> AsyncIterator[RunningGateway]:
    async with running_gateway(9, admin={"keys": keys(), **admin}) as running:
        yield running
        assert running.gateway.limits.mode is Enforcement.ENFORCE
        assert running.gateway.live_quotas.store.version == 0


def refused(running: RunningGateway, reason: AdminRefusal) -> int:
    return running.gateway._admin_access.refusals[reason]


async def raw(running: RunningGateway, text: str) -> bytes:
    """The answers to bytes that no library would send, up to the end of the connection."""
    async with await RawClient.connect(running.gateway.admin.port) as client:
        await client.send(text.replace("\n", "\r\n").encode())
        return await client.receive_rest()


def statuses(answers: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.[01] (\d{3}) ", answers)


async def ask(
    running: RunningGateway, path: str, *, method: str = "GET", context: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, str]:
    body, kind = BODIES[path] if method != "GET" else (b"", "")
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if kind:
        headers["Content-Type"] = kind
    scheme = "http" if context is None else "https"
    url = f"{scheme}://{HOST}:{running.gateway.admin.port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=body or None, headers=headers, ssl=context or True) as answer,
    ):
        text = "" if path == "/events" and answer.status == 200 else await answer.text()
        return answer.status, text


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# -- roles ---------------------------------------------------------------------------------------------------


async def test_each_route_has_one_role_and_there_is_no_other_route() -> None:
    async with gateway() as running:
        runner = running.gateway.admin._runner
        assert runner is not None
        routes = {
            (route.method, route.resource.canonical)
            for route in runner.app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
        assert routes == set(ROLES)


async def test_a_route_without_a_role_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(cast("dict[Any, Any]", ROLES), ("POST", "/quotas/import"))
    running = Gateway(gateway_config([9]))
    with pytest.raises(RuntimeError, match="POST /quotas/import has no role"):
        await running.start()
    await running.stop()


@pytest.mark.slow
@pytest.mark.parametrize("role", [*TOKENS, None])
async def test_k24_a_stolen_token_does_what_its_role_may_and_nothing_else(role: str | None) -> None:
    async with running_gateway(9, admin={"keys": keys()}) as running:
        for (method, path), needed in ROLES.items():
            status, _ = await ask(running, path, method=method, **(bearer(TOKENS[role]) if role else {}))
            if needed is None:
                assert status in (200, 503)
            elif role is None:
                assert status in (401, 429)
            elif role == needed:
                assert status not in (401, 403, 429), (method, path)
            else:
                assert status == 403, (method, path)
        assert running.gateway.limits.mode is (Enforcement.OFF if role == "operate" else Enforcement.ENFORCE)
        assert running.gateway.live_quotas.store.version == (role == "quotas")


async def test_k25_a_valid_key_without_the_role_is_no_failure_that_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as running:
        monkeypatch.setattr(running.gateway._admin_access, "_now_ms", lambda: 0)
        for _ in range(MAX_FAILURES_PER_ADDRESS + 1):
            assert (await ask(running, "/reload", method="POST", **bearer(TOKENS["read"])))[0] == 403
        assert (await ask(running, "/metrics"))[0] == 401


async def test_k24_the_audit_names_key_and_role_and_never_the_token(log: io.StringIO) -> None:
    async with running_gateway(9, admin={"keys": keys()}) as running:
        await ask(running, "/quotas/import", method="POST", **bearer(TOKENS["quotas"]))
        await ask(running, "/enforcement", method="PUT", **bearer(TOKENS["operate"]))
        await ask(running, "/reload", method="POST", **bearer(TOKENS["read"]))
        _, history = await ask(running, "/quotas/history", **bearer(TOKENS["read"]))
    lines = {line.split()[0]: line for line in log.getvalue().splitlines()}
    assert f'peer="admin port, {HOST}, key quotaser (quotas)"' in lines["event=quota_changed"]
    assert f'by="admin port, {HOST}, key operateer (operate)"' in lines["event=enforcement_set"]
    assert "reason=role peer=127.0.0.1 method=POST path=/reload key=reader" in lines["event=admin_refused"]
    assert json.loads(history)["history"][0]["via"] == f"admin port, {HOST}, key quotaser (quotas)"


# -- wrong keys ----------------------------------------------------------------------------------------------

READ = TOKENS["read"]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ("", "no_key"),
        ("Authorization: Bearer\n", "malformed"),
        ("Authorization: Bearer \n", "malformed"),
        ("Authorization:\n", "malformed"),
        (f"Authorization: {READ}\n", "malformed"),
        (f"Authorization: Digest {READ}\n", "malformed"),
        (f"Authorization: Bearer {READ[:-1]}\n", "token"),
        (f"Authorization: Bearer {READ[:-1]}0\n", "token"),
        (f"Authorization: Bearer {READ}0\n", "token"),
        (f"Authorization: Bearer {READ.upper()}\n", "token"),
        (f"Authorization: Bearer {READ}, Bearer {READ}\n", "token"),
        (f"Authorization: Bearer {READ}\nAuthorization: Bearer {READ}\n", "malformed"),
        (f"Authorization: Bearer x\nAuthorization: Bearer {READ}\n", "malformed"),
        (f"X-Authorization: Bearer {READ}\nCookie: token={READ}\n", "no_key"),
        (f"Authorization: Basic {READ}\n", "malformed"),
        (f"Authorization: Basic {base64.b64encode(READ.encode()).decode()}\n", "token"),
        ("Authorization: Bearer é\n", "token"),
    ],
)
async def test_k24_without_the_very_token_nothing_is_read(headers: str, reason: str, log: io.StringIO) -> None:
    async with gateway() as running:
        answer = await raw(running, f"GET /metrics HTTP/1.1\nHost: localhost\nConnection: close\n{headers}\n")
        assert statuses(answer) == [b"401"]
        assert refused(running, AdminRefusal(reason)) == 1
        assert b'WWW-Authenticate: Bearer realm="Sluice admin port"' in answer
    assert "event=admin_refused level=warning" in log.getvalue()
    assert secrets_in(log.getvalue().encode() + answer) == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_the_scheme_may_be_written_in_any_case_and_http_1_0_is_spoken(scheme: str, version: str) -> None:
    async with gateway() as running:
        head = f"GET /metrics HTTP/{version}\nHost: localhost\nConnection: close\n"
        answer = await raw(running, f"{head}Authorization: {scheme} {READ}\n\n")
        assert answer.split(b" ", 2)[1] == b"200"


@pytest.mark.parametrize("name", ["token", "access_token", "Authorization", "key"])
async def test_k24_a_token_in_the_address_is_ignored_and_not_logged(name: str, log: io.StringIO) -> None:
    async with gateway() as running:
        assert (await ask(running, f"/metrics?{name}={READ}"))[0] == 401
    assert secrets_in(log.getvalue().encode()) == []


async def test_k24_a_password_serves_browsers_to_look_and_for_nothing_else() -> None:
    password = base64.b64encode(f"anybody:{READ}".encode()).decode()
    both = f"{CANARY}both-0123456789abcdef0123"
    everything = {"name": "all", "roles": ["read", "operate", "quotas"], "token": both}
    async with gateway(keys=[*keys(), everything]) as running:
        for path in ("/", "/status.json", "/metrics"):
            assert (await ask(running, path, Authorization=f"Basic {password}"))[0] == 200
        stronger = base64.b64encode(f"x:{both}".encode()).decode()
        assert (await ask(running, "/quotas", Authorization=f"basic {stronger}"))[0] == 200
        for (method, path), role in ROLES.items():
            if role is not None and role != "read":
                assert (await ask(running, path, method=method, Authorization=f"Basic {stronger}"))[0] == 403


@pytest.mark.parametrize("path", ["/%6detrics", "//metrics", "/healthz/../metrics", "/healthz%2f..%2fmetrics", "/x"])
async def test_k24_no_spelling_of_a_path_leads_past_the_keys(path: str) -> None:
    async with gateway() as running:
        answer = await raw(running, f"GET {path} HTTP/1.1\nHost: localhost\nConnection: close\n\n")
        assert statuses(answer) == [b"401"]


async def test_k24_two_lengths_of_a_body_hide_no_request(log: io.StringIO) -> None:
    hidden = "PUT /enforcement HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: 15\n"
    hidden += f'Authorization: Bearer {TOKENS["operate"]}\n\n{{"mode": "off"}}'
    head = "GET /healthz HTTP/1.1\nHost: localhost\n"
    async with gateway() as running:
        for lengths in (
            f"Content-Length: {len(hidden)}\nTransfer-Encoding: chunked\n\n0\n\n",
            "Transfer-Encoding: chunked\nContent-Length: 4\n\n0\n\n",
            "Content-Length: 0\nContent-Length: 4\n\n",
            "Transfer-Encoding: chunked, identity\n\n0\n\n",
            "Transfer-Encoding: xchunked\n\n0\n\n",
        ):
            answer = await raw(running, head + lengths + hidden)
            assert statuses(answer) == [b"400"], lengths
    assert secrets_in(log.getvalue().encode()) == []


async def test_k24_names_with_line_ends_stay_one_line_of_the_log(log: io.StringIO) -> None:
    forged = "%0d%0aevent=quota_changed%20level=info"
    async with running_gateway(9, admin={"keys": keys()}) as running:
        await ask(running, f"/x{forged}")
        body = {"data": QUOTA, "headers": {**bearer(TOKENS["quotas"]), "Content-Type": LINES}}
        url = f"http://{HOST}:{running.gateway.admin.port}/quotas/import?user=me{forged}"
        async with aiohttp.ClientSession() as session, session.post(url, **body) as answer:
            assert answer.status == 200
        answered = await raw(running, "GET /metrics HTTP/1.1\nHost: localhost\nAuthorization: Bearer x\n y\n\n")
        assert statuses(answered) == [b"400"]
    events = [line.split()[0] for line in log.getvalue().splitlines()]
    assert all(event.startswith("event=") for event in events)
    assert events.count("event=quota_changed") == 1


async def test_k24_error_of_a_key_shows_no_token(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from gateway.cli.main import main

    file, token = tmp_path / "c.toml", tmp_path / "token"
    token.write_text(f"{CANARY} and more")
    token.chmod(0o600)
    head = '[upstream]\nbootstrap = ["k:9"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'
    file.write_text(f'{head}[[admin.keys]]\nname = "k"\nroles = ["read"]\ntoken_file = "{token}"\n')
    assert main(["check-config", str(file)]) == 2
    file.write_text(f'{head}[[admin.keys]]\nname = "k"\nroles = ["read"]\ntoken = 1234567890\n')
    assert main(["check-config", str(file)]) == 2
    out = capsys.readouterr()
    assert out.err.count("admin.keys.0.token") == 2
    assert secrets_in((out.out + out.err).encode()) == []
    assert "1234567890" not in out.err


# -- certificates --------------------------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def tls_of(pki: Pki, client_auth: str) -> dict[str, Any]:
    found: dict[str, Any] = pki.mutual(client_auth)["tls"]
    return found


def tls_failures(running: RunningGateway, failure: TlsFailure) -> int:
    labels = {"listener": "admin port", "reason": failure.value}
    return int(running.gateway.registry.get_sample_value("gateway_tls_handshake_failures_total", labels) or 0)


CERTIFIED = {"name": "operators", "roles": ["read"], "certificate": "CN=operators"}


async def test_k24_a_certificate_is_a_key_if_it_is_named_and_of_the_right_authority(
    pki: Pki, tmp_path: Path, log: io.StringIO
) -> None:
    other = Authority(tmp_path, "other")
    mine = pki.authority.issue("mine", "operators", usage=CLIENT)
    unnamed = pki.authority.issue("unnamed", "somebody", usage=CLIENT)
    forged = other.issue("forged", "operators", usage=CLIENT)
    async with gateway(tls=tls_of(pki, "requested"), keys=[*keys(), CERTIFIED]) as running:

        async def status(path: str, context: ssl.SSLContext, method: str = "GET", **headers: str) -> int:
            return (await ask(running, path, method=method, context=context, **headers))[0]

        assert await status("/metrics", pki.trusting(mine)) == 200
        assert await status("/enforcement", pki.trusting(mine), "PUT") == 403
        assert await status("/metrics", pki.trusting()) == 401
        assert await status("/healthz", pki.trusting()) == 200
        assert await status("/metrics", pki.trusting(), **bearer(READ)) == 200
        # A header that is wrong is not made good by the certificate.
        assert await status("/metrics", pki.trusting(mine), **bearer("x")) == 401
        assert await status("/metrics", pki.trusting(unnamed)) == 401
        assert refused(running, AdminRefusal.CERTIFICATE) == 1
        with pytest.raises(aiohttp.ClientError):
            await status("/healthz", pki.trusting(forged))
        await until(lambda: tls_failures(running, TlsFailure.CERTIFICATE_UNTRUSTED) >= 1)
        assert b"200" not in await raw(running, "GET /healthz HTTP/1.1\nHost: localhost\n\n")
        assert tls_failures(running, TlsFailure.NOT_TLS) == 1
    assert "event=tls_failed level=info" in log.getvalue()


async def test_k20_handshakes_that_do_not_come_take_few_descriptors(pki: Pki) -> None:
    async with gateway(tls=tls_of(pki, "requested")) as running:
        connections = running.gateway.admin.connections
        silent = []
        for _ in range(3 * MAX_CONNECTIONS):
            silent.append(await asyncio.open_connection(HOST, running.gateway.admin.port))
            assert connections.count <= MAX_CONNECTIONS
        assert (await ask(running, "/healthz", context=pki.trusting()))[0] == 200
        for _, writer in silent:
            writer.close()
        await until(lambda: not connections._tls or not connections._tls._handlers)


async def test_k20_a_reset_right_after_the_handshake_is_no_error(pki: Pki) -> None:
    async with gateway(tls=pki.keys()["tls"]) as running:
        tls = running.gateway.admin._tls
        assert tls is not None
        handler = running.gateway.admin._handler()
        before = asyncio.all_tasks()
        transport = tls.transport_for(handler, HOST)
        # Both in one turn of the loop, with nothing between them.
        transport._state = _State.SHAKING_HANDS
        transport._open()
        transport.connection_lost(ConnectionResetError())
        (serving,) = asyncio.all_tasks() - before
        await asyncio.wait([serving], timeout=60)
        assert serving.cancelled() or serving.exception() is None
        assert handler.transport is None


async def test_k24_a_new_certificate_of_the_port_is_taken_up_without_a_restart(pki: Pki) -> None:
    async with gateway(tls=pki.keys()["tls"]) as running:
        fresh = pki.authority.issue("fresh", "fresh", hosts=(HOST,))
        pki.server.certificate.write_bytes(fresh.certificate.read_bytes())
        pki.server.key.write_bytes(fresh.key.read_bytes())
        assert (await ask(running, "/healthz", context=pki.trusting()))[0] == 200
        (identity,) = running.gateway.tls.identities
        await running.gateway.operations.reload(by="test")
        await until(lambda: identity.reloads == 1)
        streams = await asyncio.open_connection(
            HOST, running.gateway.admin.port, ssl=pki.trusting(), server_hostname=HOST
        )
        assert "fresh" in str(streams[1].get_extra_info("ssl_object").getpeercert()["subject"])
        streams[1].close()


# -- floods --------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_k25_failures_are_answered_late_and_logged_boundedly_while_others_are_served(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Late is: not before the test says so.
    late = asyncio.Event()
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        await (late.wait() if seconds else real(0))

    monkeypatch.setattr("gateway.server.admin.asyncio.sleep", sleep)
    now_ms = 0
    async with gateway() as running:
        monkeypatch.setattr(running.gateway._admin_access, "_now_ms", lambda: now_ms)
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer x\r\n\r\n"
        clients = []
        for _ in range(1_000):
            client = await RawClient.connect(running.gateway.admin.port)
            await client.send(request)
            clients.append(client)
            assert running.gateway.admin.connections.count <= MAX_CONNECTIONS
        await until(lambda: refused(running, AdminRefusal.TOKEN) >= 900)
        assert len(running.gateway._admin_access._failures._by_network) == 1
        # They come from the same address, and hold up neither probes nor a valid key.
        assert (await ask(running, "/healthz"))[0] == 200
        assert (await ask(running, "/enforcement", **bearer(READ)))[0] == 200
        late.set()
        answers = b"".join([await client.receive_rest() for client in clients])
        for client in clients:
            client.close()
        assert statuses(answers).count(b"401") <= MAX_FAILURES_PER_ADDRESS
        # All others made way for newcomers, but for the last ones.
        assert 0 < statuses(answers).count(b"429") <= MAX_CONNECTIONS
        now_ms += 1_000
        assert (await ask(running, "/metrics"))[0] == 401
    lines = [line for line in log.getvalue().splitlines() if "event=admin_refused" in line]
    assert len(lines) == LINES_PER_S


async def test_k24_a_body_is_not_waited_for_without_a_key_and_a_long_head_ends() -> None:
    async with gateway() as running:
        async with await RawClient.connect(running.gateway.admin.port) as client:
            head = "POST /quotas/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            await client.send(f"{head}Content-Length: 60000000\r\n\r\n{{".encode())
            assert (await client._receive(12)).startswith(b"HTTP/1.1 401")
            assert not running.gateway.admin._quotas or not running.gateway.admin._quotas._importing
        answer = await raw(
            running, f"GET /metrics HTTP/1.1\nHost: localhost\nAuthorization: Bearer {'x' * 100_000}\n\n"
        )
        assert statuses(answer) == [b"400"]


# -- changes of keys -----------------------------------------------------------------------------------------


async def test_keys_apply_to_all_processes_and_change_with_a_reload(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKENS["read"])
    table = '\n[[admin.keys]]\nname = "k"\nroles = ["read", "operate"]\ntoken_file = "{}"\n'
    tables = table.format(token) + "[server]\nworkers = 2\n"
    async with gateway_process(tmp_path, 9, tables=tables) as process:
        (config,) = (each for each in files(tmp_path) if each.suffix == ".toml")
        url = f"http://{HOST}:{process.admin_port}"
        async with aiohttp.ClientSession() as session:

            async def get(path: str, token: str | None, method: str = "GET") -> tuple[int, str]:
                headers = {} if token is None else bearer(token)
                more = {"json": {}} if method == "POST" else {}
                async with session.request(method, f"{url}{path}", headers=headers, **more) as answer:
                    return answer.status, await answer.text()

            assert (await get("/metrics", None))[0] == 401
            assert (await get("/metrics", TOKENS["read"]))[0] == 200
            good = config.read_text()
            config.write_text(good.replace(str(token), str(token) + "-none"))
            status, text = await get("/reload", TOKENS["read"], "POST")
            assert (status, "admin.keys.0.token_file" in text) == (422, True)
            (other := tmp_path / "other").write_text(f"{TOKENS['quotas']}\n")
            config.write_text(good.replace(str(token), str(other)))
            status, text = await get("/reload", TOKENS["read"], "POST")
            assert (status, json.loads(text)["applied"]) == (200, ["admin.keys"])
            assert (await get("/metrics", TOKENS["read"]))[0] == 401
            status, text = await get("/metrics", TOKENS["quotas"])
            assert status == 200
            assert 'gateway_admin_refusals_total{reason="token"} 1.0' in text
            assert secrets_in(text.encode()) == []


@pytest.mark.slow
async def test_k24_a_stream_ends_with_the_key_that_it_was_asked_with(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKENS["read"])
    async with gateway(keys=[{"name": "k", "roles": ["read"], "token_file": str(token)}]) as running:
        url = f"http://{HOST}:{running.gateway.admin.port}/events"
        async with aiohttp.ClientSession() as session, session.get(url, headers=bearer(TOKENS["read"])) as stream:
            assert (await stream.content.readline()).startswith(b"data: ")
            token.write_text(TOKENS["quotas"])
            assert running.gateway._admin_keys.reload(only_if_changed=True, by="test")
            await asyncio.wait_for(stream.content.read(), 60)
            assert stream.status == 200


async def test_a_changed_token_file_is_taken_up_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.tls_setup.LOOK_S", 0.05)
    token = tmp_path / "token"
    token.write_text(TOKENS["read"])
    async with gateway(keys=[{"name": "k", "roles": ["read"], "token_file": str(token)}]) as running:
        token.write_text(TOKENS["quotas"])
        await until(lambda: running.gateway._admin_keys.of_token(TOKENS["quotas"].encode()) is not None)
        assert (await ask(running, "/metrics", **bearer(TOKENS["read"])))[0] == 401
        token.write_text("short")
        await until(lambda: running.gateway._admin_keys.last_reload_failed)
        assert (await ask(running, "/metrics", **bearer(TOKENS["quotas"])))[0] == 200
        token.unlink()
        await until(lambda: running.gateway._admin_keys.of_token(TOKENS["quotas"].encode()) is None)
        assert (await ask(running, "/metrics", **bearer(TOKENS["quotas"])))[0] == 401
