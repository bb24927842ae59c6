"""Five faults that lead clients to a wrong broker, one after the other, with the same clients all the time."""

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
"""For how long after the recovery the tap watches the clients' records."""


class Outcome(NamedTuple):
    """The clients' results for one fault.

    Attributes:
        fault: description of the fault.
        clients: number of clients.
        sent_back: number of clients that got REBOOTSTRAP_REQUIRED.
        recovered: number of clients that worked in time after the end of the fault.
        slowest_ms: recovery time of the slowest client; None if one has not worked at all.
        records: number of marked records that clients got meanwhile.
        wrong: number of these that came on a connection to a node other than their own.
        unnamed: number of clients that meanwhile connected to a broker's port and named no node.
        unnamed_records: number of marked records that they got there.
        leaks: number of addresses of brokers or of the gateway that were sent to clients.
        slow: clients that did not recover in time.
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
        """Whether all clients recovered and got no wrong record or address."""
        return self.recovered == self.clients and self.records > 0 and self.wrong == self.leaks == 0


def play(folder: Path, count: int) -> Iterator[Outcome]:
    """Play all faults.

    Args:
        folder: an empty folder for logs.
        count: number of clients.
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
