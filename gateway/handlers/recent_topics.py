"""Recent changes of topics that Metadata may not show yet, and mutations that may still succeed after a timeout.

A broker answers CreateTopics when the controller has decided. Its own Metadata shows the topic some milliseconds
later, on a busy machine some hundred. Without these notes, a topic that is deleted or grown in between would be
charged by guess, and a request that timed out would be refunded although it was done.

A client decides when replies are read, and may close before. So a charged mutation is noted as under way as soon as
it is forwarded. Its result is only certain if no other mutation of that topic was under way until the reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, TypeVar

from protocol.api_keys import ApiKey
from protocol.error_codes import ErrorCode
from protocol.metadata import TopicFacts
from quotas.mutations import MutationDecision

NOTE_MS: Final = 2_000
"""How long a note is preferred to Metadata: longer than a broker's delay, too short for many other changes."""

MOST_NOTES: Final = 10_000

MOST_UNDER_WAY_MS: Final = 60_000
"""How long a request may still be carried out: a broker looks for a controller that long."""

CREATION_NOTE_MS: Final = 10_000
"""How long a request counts as creating a topic: longer than a controller takes, sooner than a person tries again."""

MOST_CREATION_NOTES: Final = 10_000

FOR_GROUP: Final = b"\0"
"""Prefix of the name of a topic that the coordinator of a streams group creates. Such a note does not keep other
clients from creating the topic, since the gateway cannot see whether the group's client may create it."""

_Noted = TypeVar("_Noted")


@dataclass(frozen=True, slots=True)
class OpenCharge:
    """A charge for a mutation that may have been done: its request timed out, or its error does not show the result.

    Attributes:
        user, client_id: the charged client.
        key: the API of the request.
        partitions: least number of the topic's partitions if the mutation was done; unused for deletions.
        decision: the charge.
        due_ms: when Metadata shows the result.
    """

    user: str
    client_id: str
    key: ApiKey
    partitions: int
    decision: MutationDecision
    due_ms: int


@dataclass(slots=True, eq=False)
class TopicChange:
    """A mutation that was charged and forwarded.

    Attributes:
        name: the topic's name, or its id if only that is known.
        partitions: how many partitions the topic has after the mutation; 0: it is deleted.
        begun_ms: when it was forwarded.
        until_ms: a question to the cluster from then on shows the result.
        answered: whether its reply was read.
        rivals: how many other mutations of the topic were under way, or noted, between its forwarding and its reply.
    """

    name: bytes
    partitions: int
    begun_ms: int
    until_ms: int
    answered: bool = False
    rivals: int = 0


class Creations:
    """Topics that brokers create automatically. Clients repeat requests until a topic exists; it is charged once."""

    def __init__(self) -> None:
        self.expires_ms: dict[bytes, int] = {}  # oldest first

    def claim(self, names: Iterable[bytes], *, now_ms: int) -> list[bytes]:
        """Note that a request creates topics. Returns them without those that another request has just created."""
        notes = self.expires_ms
        claimed = []
        for name in names:
            if notes.get(name, 0) > now_ms:
                continue
            notes.pop(name, None)
            if len(notes) >= MOST_CREATION_NOTES:
                expired = list(takewhile(lambda known: notes[known] <= now_ms, notes))
                for known in expired or [next(iter(notes))]:
                    del notes[known]
            notes[name] = now_ms + CREATION_NOTE_MS
            claimed.append(name)
        return claimed

    def end(self, name: bytes) -> None:
        """Remove the notes of a topic, for Metadata and groups: it was not created after all, or was deleted."""
        self.expires_ms.pop(name, None)
        self.expires_ms.pop(FOR_GROUP + name, None)


class RecentTopics:
    """Partition counts by topic name, and by topic id if an answer had it; open charges by name; bounded.

    Attributes:
        creations: topics that brokers create for Metadata and for streams groups.
        changes: number of known changes of topics and topologies. Facts from before the last one may be wrong.
    """

    def __init__(self) -> None:
        self.creations = Creations()
        self.changes = 0
        self._notes: dict[bytes, tuple[int, int]] = {}  # -> partitions, when the note expires
        self._open: dict[bytes, OpenCharge] = {}
        self._changes: dict[TopicChange, None] = {}  # oldest first
        self._changes_of: dict[bytes, list[TopicChange]] = {}

    def catch_up(self) -> None:
        """Exchange notes with the other workers.

        Call it before each step that decides by notes, and before the gateway forwards a mutation that `begin` has
        noted: another worker that reads its own reply later then finds this mutation.
        """

    def claim_creations(self, names: Sequence[bytes], *, now_ms: int) -> list[bytes]:
        """See `Creations.claim`."""
        return self.creations.claim(names, now_ms=now_ms)

    def end_creation(self, name: bytes) -> None:
        """See `Creations.end`."""
        self.creations.end(name)

    def stir(self) -> None:
        """Note that a streams group may have another topology from now on."""
        self.changes += 1

    def note(self, identity: bytes, partition_count: int, *, now_ms: int) -> None:
        """Note that a topic has this many partitions now; 0: it has been deleted."""
        self.changes += 1
        _put(self._notes, identity, (partition_count, now_ms + NOTE_MS))
        # From now on the topic's state no longer shows the result of an earlier request.
        self._open.pop(identity, None)
        for change in self._changes_of.get(identity, ()):
            change.rivals += 1

    def partitions(self, identity: bytes, *, now_ms: int) -> int | None:
        """The noted count, 0 for a deleted topic; None without a note that Metadata asked at `now_ms` may lack."""
        noted = self._notes.get(identity)
        return None if noted is None or noted[1] <= now_ms else noted[0]

    def last_partitions(self, identity: bytes) -> int:
        """The last noted count, however long ago; 0 without a note."""
        return self._notes.get(identity, (0, 0))[0]

    def begin(self, name: bytes, partitions: int, timeout_ms: int, *, now_ms: int) -> TopicChange:
        """Note a charged mutation that is forwarded. Free ones are not noted, so that they cannot displace these."""
        self.changes += 1
        change = TopicChange(
            name, partitions, now_ms, now_ms + min(max(timeout_ms, 0), MOST_UNDER_WAY_MS) + NOTE_MS
        )
        others = self._changes_of.setdefault(name, [])
        for other in list(others):
            if other.until_ms + NOTE_MS <= now_ms:  # older than all answers still in use
                self._drop(other)
            elif not other.answered:
                other.rivals += 1
                change.rivals += 1
        if len(self._changes) >= MOST_NOTES:
            self._drop(next(iter(self._changes)))
        self._changes[change] = None
        self._changes_of.setdefault(name, []).append(change)
        return change

    def end_refused(self, change: TopicChange) -> None:
        """Note that a mutation was not done, after its reply."""
        if change in self._changes:  # otherwise others no longer count it
            self._drop(change)
            for other in self._changes_of.get(change.name, ()):
                other.rivals -= 1

    def end_done(self, change: TopicChange, partitions: int, *, now_ms: int) -> bool:
        """Note that a mutation was done, after its reply.

        Returns:
            Whether the topic is now as the reply says. If not, other mutations were under way, and replies do not
            show their order. Then this one counts as under way until the cluster shows the result.
        """
        if change.rivals <= 0:
            self._drop(change)
            return True
        self._open.pop(change.name, None)
        change.answered = True
        change.partitions = partitions
        change.until_ms = now_ms + NOTE_MS
        return False

    def may_be_deleted(self, name: bytes, *, now_ms: int) -> bool:
        """Whether Metadata asked at `now_ms` may show a topic that was deleted, or replaced by another, meanwhile."""
        return any(not each.partitions and each.until_ms > now_ms for each in self._changes_of.get(name, ()))

    def most_partitions(self, name: bytes, *, now_ms: int) -> int:
        """The most partitions from mutations that Metadata asked at `now_ms` may not show yet; 0 without any."""
        changes = self._changes_of.get(name, ())
        return max((each.partitions for each in changes if each.until_ms > now_ms), default=0)

    def deleted_or_noted_since(self, since_ms: int) -> set[bytes]:
        """The topics with a forwarded deletion, or with a note, since then."""
        found = set()
        for change in reversed(self._changes):
            if change.begun_ms < since_ms:
                break
            if not change.partitions:
                found.add(change.name)
        for name in reversed(self._notes):
            if self._notes[name][1] - NOTE_MS < since_ms:
                break
            found.add(name)
        return found

    def _drop(self, change: TopicChange) -> None:
        if change not in self._changes:
            return
        del self._changes[change]
        change.rivals += 1  # mutations that begin later do not count it
        left = self._changes_of[change.name]
        left.remove(change)
        if not left:
            del self._changes_of[change.name]

    def leave_open(self, name: bytes, charge: OpenCharge) -> None:
        """Keep a charge open until its result is known. A later one for the same topic makes an earlier one final."""
        _put(self._open, name, charge)

    def take_due(self, user: str, client_id: str, *, now_ms: int) -> dict[bytes, OpenCharge]:
        """Take the client's open charges whose result Metadata can show now."""
        due = {
            name: charge
            for name, charge in self._open.items()
            if (charge.user, charge.client_id) == (user, client_id) and charge.due_ms <= now_ms
        }
        for name in due:
            del self._open[name]
        return due

    def take_due_of(self, names: Iterable[bytes], *, now_ms: int) -> dict[bytes, OpenCharge]:
        """Take the open charges for these topics, of all clients, whose result Metadata can show now."""
        due = {
            name: charge
            for name in names
            if (charge := self._open.get(name)) is not None and charge.due_ms <= now_ms
        }
        for name in due:
            del self._open[name]
        return due


def undone_permits(facts: TopicFacts | None, charge: OpenCharge) -> int | None:
    """How many permits of an open charge to refund, as the cluster shows; None: it does not show the result."""
    if facts is None or facts.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return None
    # A topic that does not exist has no partitions; for a partly done mutation a part is refunded.
    if charge.key is ApiKey.DELETE_TOPICS:
        return facts.partition_count
    return charge.partitions - facts.partition_count


def _put(notes: dict[bytes, _Noted], name: bytes, noted: _Noted) -> None:
    """Add a note as the newest, and drop the oldest one if there are too many."""
    notes.pop(name, None)
    if len(notes) >= MOST_NOTES:
        del notes[next(iter(notes))]
    notes[name] = noted
