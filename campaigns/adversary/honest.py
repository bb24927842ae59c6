"""Honest clients beside the adversary: one without authentication and one user, far below their quotas.

Each client is a separate process, so that its measurements do not depend on the load of the adversary's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from campaigns.adversary import honest_client
from campaigns.adversary.honest_client import EVERY_S, PATIENCE_S
from campaigns.adversary.stage import Stage
from testkit.wire_client import now_ms


class HonestClient:
    """A client in a separate process.

    Attributes:
        took_ms: answer time of each answered request.
        long_waits: begin and end of each wait longer than a third of its patience, answered or not.
        faults: requests that were not answered: milliseconds of the machine's monotonic clock, and a text.
    """

    def __init__(self, stage: Stage, *, user: bool, every_s: float = EVERY_S, past: bool = False) -> None:
        """Prepare the client without connecting.

        Args:
            stage: the stage with the gateway.
            user: whether it authenticates.
            every_s: time between an answer and the next request.
            past: whether it bypasses the gateway and asks the broker itself.
        """
        host, port = stage.cluster.brokers[1] if past else (stage.sasl if user else stage.plain)[0]
        ca = "" if past else str(stage.ca or "")
        self._arguments = (host, str(port), stage.readable[0], "user" if user else "client", str(every_s), ca)
        self.took_ms: list[float] = []
        self.long_waits: list[tuple[float, float]] = []
        self.faults: list[tuple[float, str]] = []
        self._served = asyncio.Event()

    async def served(self) -> None:
        """Wait for its first answer; raises TimeoutError when there is none."""
        async with asyncio.timeout(4 * PATIENCE_S):
            await self._served.wait()

    async def run(self) -> None:
        """Run until cancelled."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", honest_client.__name__, *self._arguments, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                at_ms, took_ms, fault = json.loads(line)
                waited_ms = took_ms if fault is None else 1_000 * PATIENCE_S if "Timeout" in fault else 0.0
                if waited_ms > 1_000 * PATIENCE_S / 3:
                    self.long_waits.append((at_ms - waited_ms, at_ms))
                if fault is None:
                    self.took_ms.append(took_ms)
                    self._served.set()
                else:
                    self.faults.append((at_ms, fault))
            self.faults.append((now_ms(), "the honest client's process has ended"))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
