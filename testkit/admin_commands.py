"""Commands of ``sluice`` in this process, because a process of their own would import modules for a second of CPU."""

from __future__ import annotations

import asyncio
import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

from gateway.cli.main import main
from testkit.gateway import RunningGateway
from testkit.raw_client import HOST

_LOG_YEAR: Final = "20"


async def sluice(
    running: RunningGateway, capfd: object, *argv: str, scheme: str = "http"
) -> tuple[int, str, str]:
    """Exit code and output of a command for a gateway on the test's loop.

    The gateway's log, which has the same destination, is left out.

    Args:
        running: the gateway.
        capfd: pytest's capsys.
        argv: the command.
        scheme: of the admin port.
    """
    readouterr = capfd.readouterr  # type: ignore[attr-defined]
    readouterr()
    url = f"{scheme}://{HOST}:{running.gateway.admin.port}"
    code = await asyncio.to_thread(main, [*argv, "--admin", url])
    out, err = readouterr()
    told = [line for line in out.splitlines(keepends=True) if not line.startswith(_LOG_YEAR)]
    return code, "".join(told), err


async def command(*arguments: object) -> tuple[int, str]:
    """Exit code and text of a command; one at a time.

    Args:
        arguments: the arguments after the program's name.
    """
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            code: object = await asyncio.to_thread(main, [*map(str, arguments)])
        except SystemExit as exc:
            code = exc.code
    return int(str(code or 0)), text.getvalue()
