"""Certificates of a running gateway are exchanged while clients are connected (hazard H21)."""

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from testkit.certificates import SERVER
from testkit.frames import heartbeat
from testkit.raw_client import HOST, Ended, until
from testkit.tls import Pki, TlsClient, tls_gateway


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def exchange(pki: Pki, name: str, *, key: bool = True) -> None:
    pair = pki.authority.issue(name, name, hosts=(HOST,), usage=SERVER)
    if key:
        shutil.copy(pair.key, pki.server.key)
    shutil.copy(pair.certificate, pki.server.certificate)


async def served_by(client: TlsClient) -> str:
    shown: Any = client.tls.getpeercert()
    client.send(heartbeat(1))
    await client.receive_frame()
    return str(dict(pair[0] for pair in shown["subject"])["commonName"])


async def test_h21_new_handshakes_get_the_new_certificate_and_old_connections_stay(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.tls_setup.LOOK_S", 0.05)
    async with tls_gateway(pki.keys()) as (_, running):
        identity = running.gateway.tls.identities[0]
        async with await TlsClient.connect(running.port, pki.trusting()) as old:
            assert await served_by(old) == "server"
            exchange(pki, "half", key=False)
            await until(lambda: identity.failed_reloads == 1)
            async with await TlsClient.connect(running.port, pki.trusting()) as meanwhile:
                assert await served_by(meanwhile) == "server"
            exchange(pki, "newer")
            await until(lambda: not identity.last_reload_failed)
            async with await TlsClient.connect(running.port, pki.trusting()) as new:
                assert await served_by(new) == "newer"
            assert await served_by(old) == "server"


async def test_h21_a_reload_reads_files_that_look_unchanged_too(pki: Pki) -> None:
    async with tls_gateway(pki.keys()) as (_, running):
        identity = running.gateway.tls.identities[0]
        await running.gateway.operations.reload(by="test")
        await until(lambda: identity.reloads == 1)


async def test_h21_an_unexpected_error_ends_neither_the_watch_over_the_files_nor_the_shutdown(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.tls_setup.LOOK_S", 0.02)
    asked: list[bool] = []

    def look(identities: object, *, only_if_changed: bool, by: str) -> bool:
        asked.append(only_if_changed)
        raise LookupError(by)

    monkeypatch.setattr("gateway.server.tls_setup.reload_all", look)
    async with tls_gateway(pki.keys()) as (_, running):
        await until(lambda: len(asked) > 2)
        await running.gateway.tls.stop()


async def test_h21_an_authority_that_is_taken_away_counts_from_the_next_handshake_on(pki: Pki) -> None:
    own = pki.authority.issue("alice", "alice")
    keys = pki.mutual()
    trusted = Path(keys["tls"]["client_ca"]).parent / "trusted.pem"
    shutil.copy(pki.authority.certificate, trusted)
    keys["tls"]["client_ca"] = str(trusted)
    async with tls_gateway(keys) as (_, running):
        async with await TlsClient.connect(running.port, pki.trusting(own)) as before:
            before.send(heartbeat(1))
            await before.receive_frame()
            other = Pki(_made(trusted.parent / "other"))
            shutil.copy(other.authority.certificate, trusted)
            assert running.gateway.tls.identities[0].reload(only_if_changed=True, by="test")
            before.send(heartbeat(2))
            await before.receive_frame()
        with pytest.raises((ssl.SSLError, Ended)):
            await served(running.port, pki.trusting(own))


async def served(port: int, context: ssl.SSLContext) -> None:
    async with await TlsClient.connect(port, context) as client:
        client.send(heartbeat(1))
        await client.receive_frame()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("turns", range(6))
async def test_a_reload_a_moment_before_the_end_does_not_hold_it_up(pki: Pki, turns: int) -> None:
    """The loop had both to do in one turn: what was asked for came, and its end was not noticed."""
    async with tls_gateway(pki.keys()) as (_, running):
        running.gateway.tls.look_now()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await running.gateway.tls.stop()
