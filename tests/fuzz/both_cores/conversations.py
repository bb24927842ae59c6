"""Connections to one gateway, whose clients and brokers send what the dice say, whole, in pieces or cut off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from random import Random
from struct import pack, pack_into, unpack_from
from typing import Final
from zlib import crc32

from config.sections.quota_admin import Authorize
from gateway.observability.events import Side
from gateway.session.mute import MuteReason
from gateway.usage.names import Names
from gateway.usage.table import UsageTable
from gateway.usage.topic_ids import TopicIds
from gateway.usage.topics import TopicUse
from quotas.entities import QuotaKey, parse_entity
from testkit import wire
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation
from testkit.core import GatewayCore, session_settings
from testkit.frames import produce, unknown_api_versions
from testkit.golden import golden, goldens
from testkit.sasl import EXCHANGES, SaslCore
from tests.fuzz.both_cores.channels import ChannelConversation
from tests.fuzz.both_cores.messages import (
    CLIENT_IDS,
    LIES,
    damaged,
    request,
    response,
    usual_fetch,
    usual_fetched,
    usual_produce,
    version_of,
)

Say = Callable[[str], None]

FAILED: Final = "FAILED "
"""How a line begins that reports what no core may do."""

_THEMES: Final[tuple[tuple[str, ...], ...]] = (
    ("Produce",),
    ("Fetch",),
    ("Produce", "Fetch"),
    ("ShareFetch", "ShareAcknowledge", "Fetch"),
    ("Metadata", "CreateTopics", "CreatePartitions", "DeleteTopics"),
    ("AlterClientQuotas", "DescribeClientQuotas", "IncrementalAlterConfigs", "DescribeConfigs", "AlterConfigs"),
    ("ApiVersions", "FindCoordinator", "DescribeCluster", "AddPartitionsToTxn", "Heartbeat", "SaslHandshake"),
)
"""What clients of one gateway mostly ask for."""

_RATES: Final = (None, None, 1.0, 500.0, 20_000.0, 1e9)
_WAITS_MS: Final = (0, 1, 10, 10, 200, 200, 1_000, 1_000, 5_000, 31_000, 120_000)
_REASONS: Final = (MuteReason.CONNECTING, MuteReason.UPSTREAM_FULL, MuteReason.CLIENT_FULL)
_KEYS: Final = (
    QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE,
    QuotaKey.CONTROLLER_MUTATION_RATE,
)  # fmt: skip
_OF_TOPICS: Final = _KEYS[:2]
_ACTIONS: Final = {
    "request": 6, "send": 8, "answer": 6, "broker_sends": 8, "wait": 3, "mute": 1, "unmute": 2, "quota": 1,
    "transport": 1, "alteration": 1, "line": 1, "hold_steps": 1, "go_on": 1, "half_close": 1, "drain": 1, "end": 1,
}  # fmt: skip
"""What may happen next, and how often."""


@cache
def _name_of(key: int) -> str | None:
    return {wire.api_key_of(name): name for name in wire.api_names()}.get(key)


@cache
def _recorded() -> list[bytes]:
    return [golden(label, version, "request") for label, version in goldens(kind="request")]


def told(data: bytes) -> str:
    """Bytes in short."""
    return f"{len(data)}:{crc32(data):08x}"


class Peer:
    """One connection, with its client and its broker."""

    def __init__(
        self,
        dice: Random,
        say: Say,
        conversation: Conversation | ChannelConversation,
        *,
        sasl: bool,
        theme: tuple[str, ...],
    ) -> None:
        self.c = conversation
        self.over = False
        self._theme = theme
        self._dice = dice
        self._say = say
        self._sasl = sasl
        self._number = 0
        self._unsent = bytearray()
        self._last = b""
        self._seen = bytearray()  # by the broker, of a request whose head is not there
        self._left_bytes = 0  # of one whose head is
        self._asked: dict[int, bytes] = {}
        self._outbox = bytearray()

    def act(self, action: str) -> None:
        """Do one thing, and say what became of it."""
        getattr(self, f"do_{action}")()
        c, session = self.c, self.c.session
        up, down = c.take_upstream(), c.take_client()
        self._broker_sees(up)
        self._say(
            f"{action}: up {told(up)} down {told(down)} muted {int(session.muted)} wake {session.wake_at_ms}"
            f" in {session.bytes_from_client} {session.bytes_from_upstream} kept {session.accounted_bytes}"
            f" owed {len(session.responses)} {session.responses.held_bytes} steps {len(session.steps)}"
            f" user {session.user!r} refused {session.refusal!r} closed {c.closed_by}"
        )
        self.over = self.over or c.closed_by is not None

    def _try(self, step: Callable[[], object]) -> None:
        """Something happens; its time is measured as a channel does, by a clock that the dice move."""
        if self.over:
            return
        meter = self.c.session.meter
        began_ns = self.c.clock.now_ms * 1_000_000
        if meter is not None and meter.on:
            meter.event_ns = began_ns
        try:
            step()
            if meter is not None and meter.on:
                meter.spend(began_ns + self._dice.choice((0, 50_000, 3_000_000)))
        except Exception as exc:  # noqa: BLE001  (any other than a broken connection is what is looked for)
            self._say(f"{FAILED}{type(exc).__name__}: {exc}")
            self.over = True

    # -- the client ------------------------------------------------------------------------------------------

    def do_request(self) -> None:
        dice = self._dice
        self._number += 1
        if self._last and dice.random() < 0.35:
            again = bytearray(self._last)
            pack_into(">i", again, 8, self._number)
            frame = bytes(again)
        else:
            frame = self._new_request()
        if dice.random() < 0.1:
            frame = damaged(dice, frame)
        self._last = frame if len(frame) >= 14 else b""
        self._unsent += frame

    def _new_request(self) -> bytes:
        dice, number = self._dice, self._number
        if self._sasl and dice.random() < 0.6:
            return self._login()
        chance = dice.random()
        if chance < 0.15 and "Produce" in self._theme:
            version = dice.choice((7, 9, 9, 12, 13))
            return usual_produce(dice, version, correlation_id=number)
        if chance < 0.15 and "Fetch" in self._theme:
            return usual_fetch(dice, dice.choice((4, 11, 12, 13)), correlation_id=number)
        if chance < 0.2:
            recorded = bytearray(dice.choice(_recorded()))
            pack_into(">i", recorded, 8, number)
            return bytes(recorded)
        if chance < 0.23:
            size = dice.choice((66_000, 70_000, 150_000))
            return produce(number, size=size, version=dice.choice((3, 9, 12)), acks=dice.choice((1, 0)))
        if chance < 0.25:
            return unknown_api_versions(number, dice.choice((6, 99)))
        name = dice.choice(self._theme) if dice.random() < 0.85 else dice.choice(wire.api_names())
        version, lies = version_of(dice, name), dice.choice(LIES)
        client_id = dice.choice(CLIENT_IDS)
        return request(dice, name, version, correlation_id=number, client_id=client_id, lies=lies)

    def _login(self) -> bytes:
        dice = self._dice
        mechanism = dice.choice(list(EXCHANGES))
        if dice.random() < 0.5:
            name, fields = "SaslHandshake", {"mechanism": dice.choice((mechanism, mechanism, "NONE"))}
        else:
            name, fields = "SaslAuthenticate", {"auth_bytes": dice.choice(EXCHANGES[mechanism])[0]}
        return wire.request(name, dice.choice(wire.versions(name)), correlation_id=self._number, **fields)

    def _piece(self, of: bytearray) -> bytes:
        """The next of these bytes that arrive together; seldom what follows them is lost."""
        dice = self._dice
        count = dice.choice((len(of), len(of), 1, 4, 13, 14, 40, 65_536, dice.randrange(1, 400)))
        piece = bytes(of[:count])
        del of[:count]
        if dice.random() < 0.01:
            del of[: dice.randrange(1, 20)]
        return piece

    def do_send(self) -> None:
        if not self._unsent:
            self.do_request()
        self._try(partial(self.c.client_sends, self._piece(self._unsent)))

    def do_half_close(self) -> None:
        if self._dice.random() < 0.2:
            self._try(self.c.client_half_closes)

    # -- the broker ------------------------------------------------------------------------------------------

    def _broker_sees(self, data: bytes) -> None:
        skipped = min(self._left_bytes, len(data))
        self._left_bytes -= skipped
        self._seen += data[skipped:]
        while len(self._seen) >= 12:
            size, _, _, correlation_id = unpack_from(">ihhi", self._seen)
            frame = bytes(self._seen[: 4 + size])
            self._left_bytes = 4 + size - len(frame)
            self._asked[correlation_id] = frame
            del self._seen[: 4 + size]

    def do_answer(self) -> None:
        dice = self._dice
        owed = [each.correlation_id for each in self.c.session.responses.pending]
        known = [each for each in owed if each in self._asked]
        if not known:
            return
        number = known[0] if dice.random() < 0.97 else dice.choice(list(self._asked))
        answer = self._answer_to(self._asked[number], number)
        if dice.random() < 0.1:
            answer = damaged(dice, answer)
        self._outbox += answer
        for _ in range(len(owed) - 1):  # a broker that catches up
            if dice.random() < 0.5:
                break
            known = known[1:]
            if known:
                self._outbox += self._answer_to(self._asked[known[0]], known[0])

    def _answer_to(self, frame: bytes, number: int) -> bytes:
        dice = self._dice
        key, version = unpack_from(">hh", frame, 4)
        name = _name_of(key)
        if dice.random() < 0.5:
            with suppress(Exception):  # kafka-python's, of what a broker would refuse
                return self.c.cluster.answer(frame)
        if name == "Fetch" and version >= 4 and dice.random() < 0.5:
            return usual_fetched(dice, version, correlation_id=number)
        if name is None or version not in wire.versions(name):
            return wire.framed(pack(">i", number) + dice.randbytes(dice.randrange(40)))
        return response(dice, name, version, correlation_id=number, lies=dice.choice(LIES))

    def do_broker_sends(self) -> None:
        if not self._outbox:
            self.do_answer()
        if self._outbox:
            self._try(partial(self.c.upstream_answers, self._piece(self._outbox)))
        elif self._dice.random() < 0.01:
            self._try(partial(self.c.upstream_answers, self._dice.randbytes(20)))

    # -- the shell -------------------------------------------------------------------------------------------

    def do_wait(self) -> None:
        self._try(partial(self.c.after, self._dice.choice(_WAITS_MS)))

    def do_mute(self) -> None:
        if self._dice.random() < 0.4:
            self._try(partial(self.c.mute, self._dice.choice(_REASONS)))

    def do_unmute(self) -> None:
        for reason in _REASONS:
            self._try(partial(self.c.unmute, reason))

    def do_quota(self) -> None:
        key, rate = self._dice.choice(_KEYS), self._dice.choice(_RATES)
        if key is not QuotaKey.REQUEST_PERCENTAGE or not isinstance(self.c, ChannelConversation):
            self.c.core.set_quota(key, rate)

    def do_transport(self) -> None:
        side = self._dice.choice((Side.CLIENT, Side.UPSTREAM))
        self._try(partial(self.c.session.unsent, side, self._dice.choice((0, 0, 1_000, 100_000))))

    def do_alteration(self) -> None:
        desk = self.c.core.desk
        if desk.waiting:
            failure = self._dice.choice((None, None, "the disk is full"))
            self._try(lambda: desk.finish(now_ms=self.c.clock.now_ms, failure=failure))

    def do_line(self) -> None:
        self._say(f"records {_records(self.c.core)}")

    def do_hold_steps(self) -> None:
        self.c.hold_steps = self._dice.random() < 0.3

    def do_go_on(self) -> None:
        self.c.hold_steps = False
        self._try(partial(self.c.step, lambda _: None))

    def do_drain(self) -> None:
        if self._dice.random() < 0.1:
            self._try(self.c.session.drain)

    def do_end(self) -> None:
        self.over = self.over or self._dice.random() < 0.1

    def end(self) -> None:
        """Both legs are gone."""
        self.over = False
        self._try(lambda: self.c.session.ended(now_ms=self.c.clock.now_ms))


def _records(core: GatewayCore) -> list[object]:
    """What a line of usage records would have."""
    usage, now_ms = core.context.usage, core.clock.now_ms
    if usage is None:
        return []
    rows = usage.take_listed(now_ms=now_ms)
    told = [(usage.values(row, begin_ms=now_ms - 1_000, now_ms=now_ms), row.take_topics()) for row in rows]
    return [told, list(usage.take_events()), usage.take_dropped()]


def _gateway(dice: Random, *, sasl: bool, timed: bool) -> GatewayCore:
    ids = TopicIds()
    usage = None
    if dice.random() < 0.7:
        use = TopicUse(ids, Names(), max_of_client=dice.choice((2, 100)), max_topics=dice.choice((3, 1_000)))
        usage = UsageTable(topics=use if dice.random() < 0.8 else None, max_rows=dice.choice((2, 100)), max_events=5)
    settings = session_settings(
        max_in_flight_requests=dice.choice((2, 5, 1_000)),
        queued_max_request_bytes=dice.choice((2_000, 268_435_456)),
        announced_max_request_bytes=dice.choice((90_000, 134_217_728)),
        max_response_bytes=dice.choice((100_000, 2**31 - 1)),
        max_mute_ms=dice.choice((1_000, 110_000)),
    )
    rates = {key.value: dice.choice(_RATES) for key in _KEYS}
    if not timed:
        rates[QuotaKey.REQUEST_PERCENTAGE.value] = None
    core = (SaslCore if sasl else GatewayCore)(
        **rates,
        settings=settings,
        default_num_partitions=dice.choice((1, 3)),
        bind=lambda broker_id, _port: broker_id % 3 != 0,
        authorize=dice.choice(list(Authorize)),
        usage=usage,
        topic_ids=ids,
        own_topics=dice.choice(((), ("__own",))),
    )
    for key in _OF_TOPICS:
        if dice.random() < 0.4:
            core.limits.set(parse_entity(f"topic={dice.choice('aab')}"), key, dice.choice((10.0, 100.0, 20_000.0)))
    return core


def converse(dice: Random, say: Say) -> None:
    """One gateway, one to three connections; every step is said, and at the end all that was counted."""
    sasl = dice.random() < 0.15
    in_channels = dice.random() < 0.4  # whose time is that of the machine
    core = _gateway(dice, sasl=sasl, timed=not in_channels)
    cluster = ScriptedCluster({"a": 2, "b": 1, "__own": 1})
    shortcut = dice.random() < 0.7

    theme = dice.choice(_THEMES)
    hasty = dice.random() < 0.6

    def connect() -> Peer:
        if in_channels:
            return Peer(dice, say, ChannelConversation(core=core, cluster=cluster), sasl=sasl, theme=theme)
        c = Conversation(core=core, cluster=cluster, shortcut=shortcut)
        c.session.begins_now = lambda frame_bytes: hasty or frame_bytes % 3 == 0
        return Peer(dice, say, c, sasl=sasl, theme=theme)

    peers = [connect() for _ in range(dice.choice((1, 1, 2, 3)))]
    actions, weights = list(_ACTIONS), list(_ACTIONS.values())
    for _ in range(dice.choice((20, 40, 80))):
        at = dice.randrange(len(peers))
        say(f"connection {at}")
        peers[at].act(dice.choices(actions, weights)[0])
        if peers[at].over:
            peers[at].end()
            peers[at] = connect()
    for peer in peers:
        peer.act("unmute")
        peer.end()
    now_ms = core.clock.now_ms
    say(f"records {_records(core)}")
    quotas, observer = core.client_quotas, core.observer
    for counters in (quotas.produce, quotas.fetch, quotas.request_time, core.mutations):
        say(f"counters {counters.snapshot(now_ms=now_ms)}")
    say(f"told {observer.throttles} {observer.decisions} {observer.auto_created} {len(core.journal)}")
    say(f"held {core.memory.used_bytes} announced {core.announced.used_bytes}")
    say(f"requests {[(number, route.requests) for number, route in sorted(core.routes.items()) if route.requests]}")
