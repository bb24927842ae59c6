"""Recent changes of topics, shared by all workers (see `gateway.handlers.recent_topics`). [io]

Each worker has all notes. It sends its own notes to the supervisor, which keeps their order. Before a decision it
fetches the notes of the other workers. It uses the same blocking socket on which the mutations are then charged. So a
client that was answered by one worker and continues at another finds the first worker's notes. If several Metadata
requests name a topic at the same time, the supervisor decides which of them creates it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

from gateway.handlers.recent_topics import MOST_NOTES, Creations, OpenCharge, RecentTopics, TopicChange
from gateway.server.link import BlockingLink, LinkLost

Event: TypeAlias = tuple[Any, ...]
"""The name of an event, and its arguments."""

_MOST_EVENTS: Final = 20_000


class TopicEvents:
    """The supervisor's part: the notes of workers, in the order in which they were sent.

    Attributes:
        creations: topics that clients of all workers are creating, by Metadata and for streams groups.
    """

    def __init__(self) -> None:
        """No event yet."""
        self.creations = Creations()
        self._events: deque[tuple[int, Event]] = deque(maxlen=_MOST_EVENTS)
        self._count = 0
        self._seen: dict[int, int] = {}

    def joined(self, worker: int) -> None:
        """Skip earlier events for a new worker, which has no client yet."""
        self._seen[worker] = self._count

    def told(self, worker: int, event: Event) -> None:
        """Add an event of a worker, given by its process id."""
        self._events.append((worker, event))
        self._count += 1

    def fetched(self, worker: int) -> list[tuple[int, Event]]:
        """The events of the other workers since this worker's last fetch."""
        new = self._count - self._seen.get(worker, 0)
        self._seen[worker] = self._count
        return [each for each in self._last(new) if each[0] != worker]

    def forget(self, worker: int) -> None:
        """The worker is gone."""
        self._seen.pop(worker, None)

    def _last(self, count: int) -> Iterator[tuple[int, Event]]:
        for at in range(max(0, len(self._events) - count), len(self._events)):
            yield self._events[at]


class SharedRecentTopics(RecentTopics):
    """A worker's notes, and those of the other workers."""

    def __init__(self, asking: BlockingLink, needed: Callable[[], bool]) -> None:
        """No notes yet.

        Args:
            asking: the link to the supervisor.
            needed: whether any decision depends on the notes; if not, nothing is sent.
        """
        super().__init__()
        self._asking = asking
        self._needed = needed
        self._last_id = 0
        self._ids: dict[TopicChange, int] = {}
        self._of_others: dict[tuple[int, int], TopicChange] = {}

    def catch_up(self) -> None:
        """Take over the notes of the other workers."""
        if not self._needed():
            return
        try:
            events = self._asking.ask("topic_events")
        except LinkLost:
            return
        for worker, (what, *values) in events:
            self._apply(worker, what, values)

    def claim_creations(self, names: Sequence[bytes], *, now_ms: int) -> list[bytes]:
        """See `RecentTopics`; asks the supervisor once for all names."""
        if names and self._needed():
            try:
                return cast("list[bytes]", self._asking.ask("claim_creations", names, now_ms))
            except LinkLost:
                pass  # decides alone
        return super().claim_creations(names, now_ms=now_ms)

    def end_creation(self, name: bytes) -> None:
        """See `RecentTopics`."""
        super().end_creation(name)
        self._send("end_creation", name)

    def stir(self) -> None:
        """See `RecentTopics`."""
        self._tell("stir")
        super().stir()

    def note(self, identity: bytes, partition_count: int, *, now_ms: int) -> None:
        """See `RecentTopics`."""
        self._tell("note", identity, partition_count, now_ms)
        super().note(identity, partition_count, now_ms=now_ms)

    def begin(self, name: bytes, partitions: int, timeout_ms: int, *, now_ms: int) -> TopicChange:
        """See `RecentTopics`."""
        change = super().begin(name, partitions, timeout_ms, now_ms=now_ms)
        self._last_id += 1
        _keep(self._ids, change, self._last_id)
        self._tell("begin", self._last_id, name, partitions, timeout_ms, now_ms)
        return change

    def end_refused(self, change: TopicChange) -> None:
        """See `RecentTopics`."""
        self._tell("end_refused", self._ids.pop(change, 0))
        super().end_refused(change)

    def end_done(self, change: TopicChange, partitions: int, *, now_ms: int) -> bool:
        """See `RecentTopics`."""
        self._tell("end_done", self._ids.pop(change, 0), partitions, now_ms)
        return super().end_done(change, partitions, now_ms=now_ms)

    def leave_open(self, name: bytes, charge: OpenCharge) -> None:
        """See `RecentTopics`."""
        self._tell("leave_open", name, charge)
        super().leave_open(name, charge)

    def take_due(self, user: str, client_id: str, *, now_ms: int) -> dict[bytes, OpenCharge]:
        """See `RecentTopics`."""
        due = super().take_due(user, client_id, now_ms=now_ms)
        if due:
            self._tell("take_due", user, client_id, now_ms)
        return due

    def take_due_of(self, names: Iterable[bytes], *, now_ms: int) -> dict[bytes, OpenCharge]:
        """See `RecentTopics`."""
        due = super().take_due_of(names, now_ms=now_ms)
        if due:
            self._tell("take_due_of", list(due), now_ms)
        return due

    def _tell(self, *event: Any) -> None:
        self._send("topic_event", event)

    def _send(self, what: str, value: Any) -> None:
        if self._needed():
            try:
                self._asking.tell(what, value)
            except LinkLost:
                return  # the next question logs the loss

    def _apply(self, worker: int, what: str, values: list[Any]) -> None:
        if what == "stir":
            super().stir()
        elif what == "note":
            super().note(values[0], values[1], now_ms=values[2])
        elif what == "begin":
            change = super().begin(*values[1:4], now_ms=values[4])
            _keep(self._of_others, (worker, values[0]), change)
        elif what == "leave_open":
            super().leave_open(*values)
        elif what == "take_due":
            super().take_due(*values[:2], now_ms=values[2])
        elif what == "take_due_of":
            super().take_due_of(values[0], now_ms=values[1])
        elif (worker, values[0]) in self._of_others:
            ended = self._of_others.pop((worker, values[0]))
            if what == "end_refused":
                super().end_refused(ended)
            else:
                super().end_done(ended, values[1], now_ms=values[2])


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if len(kept) >= MOST_NOTES:
        del kept[next(iter(kept))]
    kept[key] = value
