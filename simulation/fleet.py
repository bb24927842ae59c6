"""The topic by which gateways share usage, without librdkafka: one log that all members read from its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.fleet.shares import Share, decode_share, encode_share
from simulation.process import HostedProcess
from simulation.world import NS_PER_MS, World

if TYPE_CHECKING:
    from gateway.fleet.topic import ShareTopicSettings


class TopicService:
    """All topics with shares.

    Attributes:
        away: whether no record can be written or read.
    """

    def __init__(self, world: World) -> None:
        """Creates an empty log."""
        self.world = world
        self.away = False
        self.dice = world.dice("fleet")
        self._readers: dict[SimShareTopic, None] = {}
        self._last_ns = 0

    def read(self, topic: SimShareTopic) -> None:
        """Adds a reader."""
        self._readers[topic] = None

    def leave(self, topic: SimShareTopic) -> None:
        """Removes a reader."""
        self._readers.pop(topic, None)

    def write(self, messages: Sequence[bytes], at_ns: int) -> bool:
        """Appends records, which reach all readers a little later. False: the records are lost."""
        if self.away:
            return False
        for message in messages:
            self.world.crossed(1, message)
        # As in one log, no record overtakes earlier ones.
        self._last_ns = max(self._last_ns, at_ns + self.dice.randrange(2, 30) * NS_PER_MS)
        self.world.at(self._last_ns, self._deliver, list(messages))
        return True

    def _deliver(self, messages: list[bytes]) -> None:
        if self.away:
            return
        for reader in list(self._readers):
            reader.process.post(reader.hand_over, messages)


class SimShareTopic:
    """See `gateway.fleet.topic.ShareTopic`."""

    service: TopicService

    def __init__(self, _settings: ShareTopicSettings, member: str) -> None:
        """Not connected yet."""
        self.refused = 0
        self.undelivered = 0
        self.relay: Callable[[Sequence[bytes]], None] | None = None
        self.trouble: str | None = "it has not been read since the start"
        self.member = member
        self.process: Any = asyncio.get_running_loop()
        assert isinstance(self.process, HostedProcess)
        self._receive: Callable[[Sequence[Share]], None] = lambda _shares: None

    def start(self, receive: Callable[[Sequence[Share]], None]) -> None:
        """See `ShareTopic`."""
        self._receive = receive
        self.process.call_later(0.05, self._begin)

    def _begin(self) -> None:
        self.trouble = None
        self.service.read(self)

    def send(self, shares: Sequence[Share]) -> None:
        """See `ShareTopic`."""
        self.send_encoded([encode_share(share) for share in shares])

    def send_encoded(self, messages: Sequence[bytes]) -> None:
        """See `ShareTopic`."""
        if messages and not self.service.write(messages, self.process.local_ns):
            self.undelivered += len(messages)

    def begin_again(self) -> None:
        """See `ShareTopic`."""

    async def stop(self) -> None:
        """See `ShareTopic`."""
        self.service.leave(self)

    def hand_over(self, messages: Sequence[bytes]) -> None:
        """Delivers messages that have arrived."""
        if self.relay is not None:
            self.relay(messages)
        self._receive([decode_share(message) for message in messages])
