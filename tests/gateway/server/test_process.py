"""The process around a gateway; what it does once it serves is in test_app."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from testkit.gateway import free_ports
from testkit.raw_client import HOST, refused

pytestmark = pytest.mark.asyncio


async def test_gateway_that_waits_for_its_quotas_says_so_serves_nobody_and_can_be_stopped(
    tmp_path: Path,
) -> None:
    first = free_ports(4)
    file = tmp_path / "sluice.toml"
    file.write_text(
        f'[upstream]\nbootstrap = ["{HOST}:{first}"]\n[admin]\nbind = "{HOST}:{first + 1}"\n'
        f'[[listeners]]\nname = "a"\nbind = "{HOST}:{first + 2}"\nbroker_ports = 1\n'
        '[quota_store]\nkind = "topic"\n'
    )
    program = Path(sys.executable).with_name("sluice")
    process = await asyncio.create_subprocess_exec(
        program, "serve", "--config", file, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert await _readiness(first + 1) == (503, "quota store not read yet\n")
        assert await refused(first + 2)
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(process.communicate(), 15)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert (process.returncode, out) == (0, b"")
    assert b"Traceback" not in err


async def _readiness(port: int) -> tuple[int, str]:
    for _ in range(500):
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{HOST}:{port}/readyz") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.02)
    raise AssertionError("the admin port does not answer")
