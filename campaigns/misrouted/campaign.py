"""Five ways to end up at another broker, one after the other, with the same clients all the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from campaigns.misrouted.stage import (
    LONGEST_S,
    NODES,
    Clients,
    Crossing,
    NodeTap,
    TappedGateway,
    fill,
    new_cluster,
    wait_for,
)

WITHIN_MS: Final = 5_000
_WATCHED_S: Final = 5.0
"""For how long after the recovery the tap watches what clients get."""


class Outcome(NamedTuple):
    """What became of the clients after one fault.

    Attributes:
        fault: what was done.
        clients: how many there are.
        sent_back: how many of them were answered REBOOTSTRAP_REQUIRED.
        recovered: how many have worked within the time, after all was right again.
        slowest_ms: of all of them; None: one has not worked at all.
        records: marked records that clients got meanwhile.
        wrong: records among them by a connection to another node than the one that has written them.
        unnamed: clients that came to a broker's port meanwhile and named no node.
        unnamed_records: marked records that they got there.
        leaks: addresses of brokers or of the gateway that clients were sent.
        slow: the clients that have not recovered within the time.
        slow_and_unnamed: those of them that named no node at a broker's port.
    """

    fault: str
    clients: int
    sent_back: int
    recovered: int
    slowest_ms: int | None
    records: int
    wrong: int
    unnamed: int
    unnamed_records: int
    leaks: int
    slow: list[str]
    slow_and_unnamed: list[str]

    @property
    def held(self) -> bool:
        """Whether all is as it should be."""
        return self.recovered == self.clients and self.records > 0 and self.wrong == self.leaks == 0


def play(folder: Path, count: int) -> Iterator[Outcome]:
    """Play all faults.

    Args:
        folder: empty; for logs.
        count: of clients.
    """
    with ExitStack() as stack:
        first, second = new_cluster(data_dir=folder / "kafka"), new_cluster()
        for cluster in (first, second):
            stack.callback(cluster.stop)
        first.start()
        brokers = Crossing(first)
        stack.callback(brokers.close)
        fill(first)
        tap = NodeTap()
        stack.callback(tap.close)
        gateway = TappedGateway(folder, first, tap)
        stack.callback(gateway.stop)
        gateway.start()
        clients = Clients(folder, gateway.bootstrap, count)
        stack.callback(clients.stop)
        wait_for(lambda: len(clients.worked_since(0)) == count, "each client has begun to work")

        def cross(routes: TappedGateway | Crossing) -> None:
            routes.route(dict(zip(NODES, reversed(NODES), strict=True)))
            wait_for(lambda: len(tap.seen.sent_back) == count, "each client was sent back")
            routes.route({node: node for node in NODES})

        def replace_brokers() -> None:
            first.stop()
            one, other = NODES
            first.brokers[one], first.brokers[other] = first.brokers[other], first.brokers[one]
            first.start()

        def lead_elsewhere() -> None:
            first.stop()
            second.brokers = first.brokers
            second.start()
            fill(second)

        yield _after("routes to the gateway crossed for a while", partial(cross, gateway), tap, clients)
        yield _after("routes to the brokers crossed for a while", partial(cross, brokers), tap, clients)
        yield _after("each port moved by one node", gateway.move_ports, tap, clients)
        yield _after("two brokers swapped addresses", replace_brokers, tap, clients)
        yield _after("another cluster at the same addresses", lead_elsewhere, tap, clients)


def _after(fault: str, do: Callable[[], None], tap: NodeTap, clients: Clients) -> Outcome:
    seen = tap.seen
    seen.sent_back.clear()
    seen.unnamed.clear()
    records, wrong, leaks = seen.records, len(seen.wrong), len(tap.hits)
    unnamed_records = seen.unnamed_records
    do()
    right_again_ms = int(time.time() * 1000)
    end_s = time.monotonic() + LONGEST_S
    worked: dict[str, int] = {}
    while len(worked) < clients.count and time.monotonic() < end_s:
        time.sleep(0.1)
        worked = clients.worked_since(right_again_ms)
    time.sleep(_WATCHED_S)
    took_ms = {client_id: at - right_again_ms for client_id, at in worked.items()}
    in_time = [client_id for client_id, took in took_ms.items() if took < WITHIN_MS]
    return Outcome(
        fault=fault,
        clients=clients.count,
        sent_back=len(seen.sent_back),
        recovered=len(in_time),
        slowest_ms=max(took_ms.values()) if len(took_ms) == clients.count else None,
        records=seen.records - records,
        wrong=len(seen.wrong) - wrong,
        unnamed=len(seen.unnamed),
        unnamed_records=seen.unnamed_records - unnamed_records,
        leaks=len(tap.hits) - leaks,
        slow=sorted(clients.client_ids.difference(in_time)),
        slow_and_unnamed=sorted(seen.unnamed.difference(in_time)),
    )
