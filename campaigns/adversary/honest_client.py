"""One honest client: `python -m campaigns.adversary.honest_client HOST PORT TOPIC client|user SECONDS CA`.

CA is the file of an authority, and empty without TLS. The client sends requests until it is ended. It writes a line
for each answer: when it came, how long it took, and any error. It imports little, so that it starts quickly.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
import sys
from collections.abc import Callable, Iterator
from struct import unpack
from typing import Any, Final

from campaigns.adversary.requests import batch
from testkit import wire
from testkit.wire_client import now_ms

PATIENCE_S: Final = 15.0
"""Half of the usual request timeout of clients."""

HONEST: Final = "honest"
"""The user and client id of honest clients."""

PASSWORD: Final = "canary-of-the-stage"

EVERY_S: Final = 0.1
"""Time between an answer and the next request."""

_BETWEEN_S: Final = 0.5


class Client:
    """Sends one request after the other, and reports how long each answer took."""

    def __init__(
        self,
        address: tuple[str, int],
        topic: str,
        *,
        user: bool,
        every_s: float,
        ca: str,
        tell: Callable[[float, str | None], None],
    ) -> None:
        """Not connected yet.

        Args:
            address: address of a listener.
            topic: the topic that it writes and reads.
            user: whether it authenticates.
            every_s: time between an answer and the next request.
            ca: file of an authority; empty without TLS.
            tell: called with the time of an answer in milliseconds, or the error.
        """
        self._address = address
        self._topic = topic
        self._user = user
        self._every_s = every_s
        self._context = ssl.create_default_context(cafile=ca) if ca else None
        self._tell = tell
        self._prefix = f"honest-{int(user)}-{address[1]}"

    async def run(self) -> None:
        """Send requests until cancelled."""
        turns = self._turns()
        while True:
            writer: asyncio.StreamWriter | None = None
            asked = "connect"
            try:
                async with asyncio.timeout(PATIENCE_S):
                    reader, writer = await asyncio.open_connection(*self._address, ssl=self._context)
                    if self._user:
                        await self._log_in(reader, writer)
                for _ in range(50):
                    asked, version, fields = next(turns)
                    began_ms = now_ms()
                    async with asyncio.timeout(PATIENCE_S):
                        body = await self._ask(reader, writer, asked, version, fields)
                    self._tell(now_ms() - began_ms, None)
                    self._check(asked, body)
                    await asyncio.sleep(self._every_s)
            except (OSError, asyncio.IncompleteReadError, AssertionError) as exc:
                self._tell(0.0, f"{asked}: {exc!r}")
                await asyncio.sleep(_BETWEEN_S)
            finally:
                if writer is not None:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()

    def _turns(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        records = {"index": 0, "records": batch(1_000)}
        wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
        for at in itertools.count():
            yield "Metadata", 12, {"topics": [{"name": self._topic}], "allow_auto_topic_creation": False}
            data = [{"name": self._topic, "partition_data": [records]}]
            yield "Produce", 9, {"acks": 1, "timeout_ms": 10_000, "topic_data": data}
            topics = [{"topic": self._topic, "partitions": [wanted]}]
            yield "Fetch", 12, {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1, "topics": topics}
            if at % 10 == 0:
                name = f"{self._prefix}-{at}"
                topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
                yield "CreateTopics", 7, {"topics": [topic], "timeout_ms": 10_000}
                yield "DeleteTopics", 5, {"topic_names": [name], "timeout_ms": 10_000}

    @staticmethod
    def _check(asked: str, body: Any) -> None:
        match asked:
            case "Produce":
                codes = [each.partition_responses[0].error_code for each in body.responses]
            case "Fetch":
                codes = [each.partitions[0].error_code for each in body.responses]
            case "DeleteTopics":
                codes = [each.error_code for each in body.responses]
            case _:
                codes = [each.error_code for each in body.topics]
        assert codes == [0], f"errors {codes}"

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._ask(reader, writer, "SaslHandshake", 1, {"mechanism": "PLAIN"})
        message = f"\0{HONEST}\0{PASSWORD}".encode()
        body = await self._ask(reader, writer, "SaslAuthenticate", 2, {"auth_bytes": message})
        assert body.error_code == 0, body.error_message

    @staticmethod
    async def _ask(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        api: str,
        version: int,
        fields: dict[str, Any],
    ) -> Any:
        writer.write(wire.request(api, version, client_id=HONEST, **fields))
        size = await reader.readexactly(4)
        frame = size + await reader.readexactly(unpack(">i", size)[0])
        return wire.decode_response(api, version, frame)


def _tell(took_ms: float, fault: str | None) -> None:
    print(json.dumps([now_ms(), took_ms, fault]), flush=True)


if __name__ == "__main__":
    _host, _port, _topic, _kind, _every, _ca = sys.argv[1:]
    _client = Client(
        (_host, int(_port)), _topic, user=_kind == "user", every_s=float(_every), ca=_ca, tell=_tell
    )
    asyncio.run(_client.run())
