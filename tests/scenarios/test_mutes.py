"""Rows of kinds mute and delay: Kafka's channel states, as far as a client can distinguish them from outside.

Kafka mutes a channel from each request until its reply is sent. A gateway lets a client pipeline, so its channel is
mute only while an exchange of its own or a throttle is under way; what a row says of reading is compared for a
request that is answered by an exchange.
"""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.observability.events import CloseCause
from gateway.session.mute import MuteReason
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import session_settings
from testkit.frames import creatable, create_topics, heartbeat
from testkit.scenarios import scenarios


class Row:
    """One connection that goes through the events of a row, from a client that is in debt or not."""

    def __init__(self, *, throttled: bool) -> None:
        self.c = Conversation(controller_mutation_rate=2)
        self._partitions = 60 if throttled else 1
        self._throttle_ms = 20_000
        self._request = b""

    def mute(self) -> None:
        """Kafka mutes when it has read a request: the exchange holds what comes behind it."""
        self.c.client_sends(create_topics(1, ("a", self._partitions), version=5), heartbeat(2))
        self.c.still_muted()

    def request_received(self) -> None:
        """The request is being worked on."""
        self.c.upstream_answers(self.c.cluster.answer(self.c.take_upstream())).still_muted()
        (self._request,) = frames_of(self.c.take_upstream())

    def throttle_started(self) -> None:
        """Its cost is known; the throttle begins."""
        assert self.c.core.tokens < 0

    def throttle_ended(self) -> None:
        """Its time is over."""
        self.c.after(self._throttle_ms)

    def response_sent(self) -> None:
        """The reply has left."""
        self.c.upstream_answers(self.c.cluster.answer(self._request))
        assert wire.correlation_id_of(self.c.take_client()) == 1

    def unmute(self) -> None:
        """Something tries to unmute; nothing has to, and it must not end what others began."""
        self.c.unmute(MuteReason.UPSTREAM_FULL).unmute(MuteReason.CLIENT_FULL)


@pytest.mark.parametrize("row", scenarios("mute"))
def test_scenario_mute(row: dict[str, Any]) -> None:
    events = row["events"]
    run = Row(throttled="THROTTLE_STARTED" in events)
    for event in events:
        step: Callable[[], None] = getattr(run, event.lower())
        step()
    assert run.c.session.reading_client is row["readable"]
    # The request behind it is forwarded exactly when the channel is read again.
    run.c.upstream_sees(*([heartbeat(2)] if row["readable"] else []))


DELAYS = {param.id: param.values[0] for param in scenarios("delay")}


def test_scenario_mu_08_throttled_channels_end_their_throttles_in_order_of_their_ends() -> None:
    row = DELAYS["MU-08"]
    connections = [Conversation().throttle(delay_ms) for delay_ms in row["delays_ms"]]
    assert sum(not c.session.reading_client for c in connections) == row["start_callbacks"]
    ended: list[int] = []
    for now_ms in range(max(row["delays_ms"]) + 1):
        for c, delay_ms in zip(connections, row["delays_ms"], strict=True):
            muted = not c.session.reading_client
            c.at(now_ms)
            if muted and c.session.reading_client:
                ended.append(delay_ms)
        assert len(ended) == row["end_callbacks_at"].get(str(now_ms), len(ended))
    assert ended == row["order"]


def test_scenario_mu_09_a_muted_channel_is_closed_when_it_is_idle_for_too_long() -> None:
    row = DELAYS["MU-09"]
    settings = session_settings(idle_timeout_ms=row["idle_ms"], max_mute_ms=row["muted_for_ms"])
    c = Conversation(settings=settings, controller_mutation_rate=1)
    c.exchange("CreateTopics", 5, topics=creatable(("a", 10 + row["muted_for_ms"] // 1_000 + 1)), timeout_ms=1)
    c.still_muted().at(row["idle_ms"] - 1).alive().at(row["muted_for_ms"])
    c.closed(CloseCause.IDLE_TIMEOUT)
    assert row["closed"]
