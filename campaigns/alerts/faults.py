"""The faults, one for each alert: how each begins and ends."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from confluent_kafka.admin import AdminClient

from campaigns.alerts.gateways import FEW, NEAR, NEAR_BYTES_PER_S, FaultyGateway, wait_for
from embedded_kafka.kafka import KafkaCluster
from testkit.frames import produce
from testkit.raw_client import HOST

QUOTA_TOPIC: Final = "__sluice_quotas"
_STOP_S: Final = 0.15
_CLIENTS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        alerts: alerts that must fire while it lasts, and stop after it.
        what: its description on the page of results.
        begin: begins the fault.
        end: ends the fault.
    """

    alerts: tuple[str, ...]
    what: str
    begin: Callable[[], None]
    end: Callable[[], None]


class Repeated:
    """Repeats a step in a thread, from `begin` to `end`."""

    def __init__(
        self, step: Callable[[], None], every_s: float = 0.0, *, close: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare the thread without starting it.

        Args:
            step: one step; socket errors are expected and ignored.
            every_s: the pause between two steps.
            close: called at the end.
        """
        self._step = step
        self._close = close
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join(30)
        self._close()

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                self._step()
            self._over.wait(self._every_s)


class _Kept:
    """One connection that a fault keeps; it is opened at its first use."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._make = partial(_Connection, port, context)
        self._made: _Connection | None = None

    def ask(self, frame: bytes) -> None:
        """See `_Connection`."""
        if self._made is None:
            self._made = self._make()
        self._made.ask(frame)

    def close(self) -> None:
        """Close the connection."""
        if self._made is not None:
            self._made.socket.close()


class _Connection:
    """A socket that sends frames and reads the answers."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection((HOST, port), timeout=20)
        self.socket = plain if context is None else context.wrap_socket(plain, server_hostname=HOST)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        self.socket.close()

    def ask(self, frames: bytes, answers: int = 1) -> None:
        """Send the frames, and wait for `answers` answers."""
        self.socket.sendall(frames)
        for _ in range(answers):
            size = int.from_bytes(self._read(4))
            self._read(size)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data


def throttled_client(gateway: FaultyGateway) -> Fault:
    """The important client exceeds its quota, over TLS with its certificate."""
    context = ssl.create_default_context(cafile=str(gateway.authority.certificate))
    context.load_cert_chain(gateway.billing.certificate, gateway.billing.key)
    client = _Kept(gateway.secure_port, context)
    frame = produce(1, acks=1, size=400, client_id="invoices")
    busy = Repeated(lambda: client.ask(frame), close=client.close)
    what = "a client produces more than its quota"
    return Fault(("SluiceImportantClientThrottled",), what, busy.begin, busy.end)


def limit_nearly_reached(gateway: FaultyGateway) -> Fault:
    """A client produces 95 percent of its quota, evenly."""
    frame = produce(1, acks=1, size=300, client_id=NEAR)
    every_s = len(frame) / (0.95 * NEAR_BYTES_PER_S)
    client = _Kept(gateway.port)
    due_s = 0.0

    def step() -> None:
        nonlocal due_s
        due_s = (due_s or time.monotonic()) + every_s
        client.ask(frame)
        time.sleep(max(0.0, due_s - time.monotonic()))

    busy = Repeated(step, close=client.close)
    return Fault(("SluiceLimitNearlyReached",), "a client produces 95 % of its quota", busy.begin, busy.end)


def connections_used_up(gateway: FaultyGateway) -> Fault:
    """Clients use all but one connection of a listener."""
    taken: list[socket.socket] = []

    def begin() -> None:
        taken.extend(socket.create_connection((HOST, gateway.few_port), timeout=5) for _ in range(FEW - 1))

    def end() -> None:
        for each in taken:
            each.close()

    return Fault(("SluiceConnectionsNearlyUsedUp",), f"{FEW - 1} of {FEW} connections are open", begin, end)


def certificate_ends(gateway: FaultyGateway) -> Fault:
    """The certificate is replaced with one that expires soon, and at the end with a new one."""
    return Fault(
        ("SluiceCertificateEnds",),
        "a certificate that ends in 13 days is put in place",
        lambda: gateway.issue(days=13),
        lambda: gateway.issue(days=90),
    )


def reload_fails(gateway: FaultyGateway) -> Fault:
    """The configuration file gets an error and is reloaded."""
    return Fault(
        ("SluiceReloadFailed",),
        "a configuration with a fault, SIGHUP",
        lambda: gateway.configure(gateway.text + "\n[limits]\nno_such_key = 1\n"),
        lambda: gateway.configure(gateway.text),
    )


def quotas_not_enforced(gateway: FaultyGateway) -> Fault:
    """The kill switch."""

    def set_mode(mode: str) -> None:
        assert gateway.status("/enforcement", method="PUT", body=f'{{"mode": "{mode}"}}') == 200

    return Fault(
        ("SluiceQuotasNotEnforced",),
        "the kill switch: observe",
        lambda: set_mode("observe"),
        lambda: set_mode("enforce"),
    )


def own_topics_touched(gateway: FaultyGateway) -> Fault:
    """A client writes to the gateway's own topic."""
    frame = produce(1, acks=1, size=10, client_id="thief").replace(b"\x02t\x02", _own(QUOTA_TOPIC))
    frame = (len(frame) - 4).to_bytes(4) + frame[4:]

    def step() -> None:
        with _Connection(gateway.port) as client:
            client.ask(frame)

    busy = Repeated(step, 1.0)
    return Fault(("SluiceOwnTopicsTouched",), f"a client writes to {QUOTA_TOPIC}", busy.begin, busy.end)


def _own(topic: str) -> bytes:
    return bytes([len(topic) + 1]) + topic.encode() + b"\x02"


def usage_dropped(gateway: FaultyGateway) -> Fault:
    """The disk of usage records is full, and there are more records than the memory limit allows."""
    frames = b"".join(
        produce(at, acks=1, size=1, client_id=f"{at:04d}".ljust(200, "x")) for at in range(1, _CLIENTS + 1)
    )

    def step() -> None:
        with _Connection(gateway.port) as client:
            client.ask(frames, _CLIENTS)

    busy = Repeated(step, 0.5)

    def begin() -> None:
        gateway.usage_disk.fill()
        busy.begin()

    def end() -> None:
        busy.end()
        gateway.usage_disk.free()

    return Fault(("SluiceUsageRecordsDropped",), f"the disk is full, {_CLIENTS} clients a second", begin, end)


def loop_stalls(gateway: FaultyGateway) -> Fault:
    """The process is stopped repeatedly."""

    def step() -> None:
        gateway.signal(signal.SIGSTOP)
        time.sleep(_STOP_S)
        gateway.signal(signal.SIGCONT)

    busy = Repeated(step, _STOP_S)
    return Fault(("SluiceLoopStalled",), "SIGSTOP for 0.15 s, three times a second", busy.begin, busy.end)


def store_writes_fail(gateway: FaultyGateway) -> Fault:
    """The disk of the quota store is full while quotas are changed."""
    limits = iter(range(1, 10**9))
    busy = Repeated(
        lambda: all(gateway.alter(f"user-{next(limits)}" * 50, 1.0) for _ in range(20)) and None, 0.2
    )

    def begin() -> None:
        gateway.store_disk.fill()
        busy.begin()

    def end() -> None:
        busy.end()
        gateway.store_disk.free()
        wait_for(lambda: gateway.alter("last", 1.0), gateway.log_tail)

    return Fault(("SluiceStoreWritesFail",), "quotas are changed on a full disk", begin, end)


def store_not_writable(gateway: FaultyGateway) -> Fault:
    """The gateway is restarted on a full disk. When the disk has room, it writes again by itself."""

    def begin() -> None:
        gateway.stop()  # not killed: a killed process leaves files of its store with space on the disk
        gateway.store_disk.fill()
        gateway.start()

    return Fault(
        ("SluiceStoreNotWritable",),
        "a start on a full disk; then there is room",
        begin,
        gateway.store_disk.free,
    )


def store_not_followed(gateway: FaultyGateway, kafka: KafkaCluster) -> Fault:
    """The topic of quotas is deleted; then the gateway is restarted, as the runbook says."""

    def begin() -> None:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        (deleted,) = admin.delete_topics([QUOTA_TOPIC]).values()
        deleted.result(20)

    def end() -> None:
        gateway.kill()
        gateway.start()

    return Fault(("SluiceStoreNotFollowed",), "the topic of quotas is deleted; then a new start", begin, end)


def gateway_down(gateway: FaultyGateway) -> Fault:
    """The gateway is killed with SIGKILL, and started again."""
    return Fault(("SluiceDown",), "SIGKILL, then a new start", gateway.kill, gateway.start)


def brokers_away(gateway: FaultyGateway, kafka: KafkaCluster) -> Fault:
    """The broker is killed while one gateway has clients and another one is a member of a fleet."""

    def step() -> None:
        with _Connection(gateway.port) as client:
            client.ask(produce(1, acks=1, size=1, client_id="any"))

    busy = Repeated(step, 0.3)

    def begin() -> None:
        kafka.kill_broker(1)
        busy.begin()

    def end() -> None:
        kafka.start_broker(1)
        busy.end()

    what = "the broker is killed under clients and a member of a fleet; then it comes back"
    return Fault(("SluiceBrokersAway", "SluiceMemberIsolated"), what, begin, end)


def not_ready(gateway: FaultyGateway, kafka: KafkaCluster) -> Fault:
    """A gateway is started while the broker is down."""

    def begin() -> None:
        kafka.kill_broker(1)
        gateway.kill()
        gateway.start(ready=False)

    return Fault(
        ("SluiceNotReady",),
        "a start while the broker is away; then it comes back",
        begin,
        lambda: kafka.start_broker(1),
    )


def rounds(one: FaultyGateway, two: FaultyGateway, kafka: KafkaCluster) -> Sequence[Sequence[Fault]]:
    """All faults in rounds. The faults of a round are independent, so they last at the same time.

    Args:
        one: a gateway that keeps its quotas in a file.
        two: a gateway that keeps them in a topic, as a member of a fleet.
        kafka: a cluster of one broker.
    """
    return (
        (
            throttled_client(one),
            limit_nearly_reached(one),
            connections_used_up(one),
            certificate_ends(one),
            reload_fails(one),
            own_topics_touched(two),
        ),
        (store_writes_fail(one), store_not_followed(two, kafka)),
        (usage_dropped(one),),
        (loop_stalls(one),),
        (gateway_down(one),),
        (store_not_writable(one), quotas_not_enforced(two)),
        (brokers_away(one, kafka),),
        (not_ready(one, kafka),),
    )
