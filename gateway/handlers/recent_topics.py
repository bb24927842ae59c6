"""Recent changes of topics that Metadata may not show yet, and mutations that may still succeed after a timeout.

A broker answers CreateTopics when the controller has decided; its own Metadata follows some milliseconds later, on a
busy machine some hundred. A topic that is deleted or grown in between would be charged by guess, and a request that
timed out would be given back although it was done.

A client chooses when replies are read, and may leave before. So what it pays for is known from when it is forwarded
on, as under way; its outcome is only known when nothing else was under way for that topic until the reply.
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
"""How long a note is trusted more than Metadata: longer than a broker lags, too short for much else to happen."""

MOST_NOTES: Final = 10_000

MOST_UNDER_WAY_MS: Final = 60_000
"""How long a request may still be carried out: for so long a broker looks for a controller to send it to."""

CREATION_NOTE_MS: Final = 10_000
"""How long a request counts as creating a topic: longer than a controller needs, shorter than a person retries."""

MOST_CREATION_NOTES: Final = 10_000

FOR_GROUP: Final = b"\0"
"""Before the name of a topic that the coordinator of a streams group creates. Such a note keeps no other client
from creating the topic, since nothing shows whether its own client may create it."""

_Noted = TypeVar("_Noted")


@dataclass(frozen=True, slots=True)
class OpenCharge:
    """A charge for what may have been done: its request timed out, or failed in a way that shows nothing.

    Attributes:
        user, client_id: who asked; asked for the same by no one else.
        key: what was asked for.
        partitions: how many the topic has at least if it was done; for deletions of no meaning.
        decision: what was charged.
        due_ms: from when on Metadata shows the truth of it.
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
        name: of the topic; its id where only that is known.
        partitions: how many it has once this is done; 0: it is deleted.
        begun_ms: when it was forwarded.
        until_ms: from when on a question to the cluster shows the result.
        answered: whether its reply was read.
        rivals: how many others were under way between its being forwarded and its reply, or were noted.
    """

    name: bytes
    partitions: int
    begun_ms: int
    until_ms: int
    answered: bool = False
    rivals: int = 0


class Creations:
    """Topics that brokers create by themselves: clients ask until one is there, and it is charged once."""

    def __init__(self) -> None:
        self.expires_ms: dict[bytes, int] = {}  # oldest first

    def claim(self, names: Iterable[bytes], *, now_ms: int) -> list[bytes]:
        """Note that a request is about to create topics; returned without those that another one has just created."""
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
        """It was not created after all, or is gone; by Metadata or for a group."""
        self.expires_ms.pop(name, None)
        self.expires_ms.pop(FOR_GROUP + name, None)


class RecentTopics:
    """Partition counts by topic name, and by topic id where an answer had it; open charges by name; bounded.

    Attributes:
        creations: by Metadata and for streams groups.
        changes: how many changes of topics and of topologies are known; what was found out before the last one
            may be wrong by now.
    """

    def __init__(self) -> None:
        self.creations = Creations()
        self.changes = 0
        self._notes: dict[bytes, tuple[int, int]] = {}  # -> partitions, when the note expires
        self._open: dict[bytes, OpenCharge] = {}
        self._changes: dict[TopicChange, None] = {}  # oldest first
        self._changes_of: dict[bytes, list[TopicChange]] = {}

    def catch_up(self) -> None:
        """Know what other workers have noted, and have them know what was noted here.

        To be called before each step that decides by what is noted, and before a mutation that has begun continues:
        another worker that reads its own reply later then finds this one.
        """

    def claim_creations(self, names: Sequence[bytes], *, now_ms: int) -> list[bytes]:
        """See `Creations.claim`."""
        return self.creations.claim(names, now_ms=now_ms)

    def end_creation(self, name: bytes) -> None:
        """See `Creations.end`."""
        self.creations.end(name)

    def stir(self) -> None:
        """A streams group may have another topology from now on."""
        self.changes += 1

    def note(self, identity: bytes, partition_count: int, *, now_ms: int) -> None:
        """A topic has this many partitions as of now; 0: it has been deleted."""
        self.changes += 1
        _put(self._notes, identity, (partition_count, now_ms + NOTE_MS))
        # What the topic is like from now on says nothing any more about a request before.
        self._open.pop(identity, None)
        for change in self._changes_of.get(identity, ()):
            change.rivals += 1

    def partitions(self, identity: bytes, *, now_ms: int) -> int | None:
        """The noted count, 0 for a deleted topic, None when nothing is noted that Metadata of then may not show."""
        noted = self._notes.get(identity)
        return None if noted is None or noted[1] <= now_ms else noted[0]

    def last_partitions(self, identity: bytes) -> int:
        """The last count that was noted, however long ago; 0 when there is none."""
        return self._notes.get(identity, (0, 0))[0]

    def begin(self, name: bytes, partitions: int, timeout_ms: int, *, now_ms: int) -> TopicChange:
        """A mutation that was paid for is forwarded; only such are noted, so that nothing free displaces them."""
        self.changes += 1
        change = TopicChange(
            name, partitions, now_ms, now_ms + min(max(timeout_ms, 0), MOST_UNDER_WAY_MS) + NOTE_MS
        )
        others = self._changes_of.setdefault(name, [])
        for other in list(others):
            if other.until_ms + NOTE_MS <= now_ms:  # no question that may still be decided by is as old
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
        """Its reply says that nothing was done."""
        if change in self._changes:  # else others do not count it any more
            self._drop(change)
            for other in self._changes_of.get(change.name, ()):
                other.rivals -= 1

    def end_done(self, change: TopicChange, partitions: int, *, now_ms: int) -> bool:
        """Its reply says that it was done.

        Returns:
            Whether the topic now is as the reply says. If not, others were under way, and replies do not show in
            which order they were carried out; then it counts as under way until the cluster shows it.
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
        """Whether Metadata of then may show a topic that is gone, or is another one by now."""
        return any(not each.partitions and each.until_ms > now_ms for each in self._changes_of.get(name, ()))

    def most_partitions(self, name: bytes, *, now_ms: int) -> int:
        """How many it may have that Metadata of then does not show; 0 if nothing of the kind is under way."""
        changes = self._changes_of.get(name, ())
        return max((each.partitions for each in changes if each.until_ms > now_ms), default=0)

    def deleted_or_noted_since(self, since_ms: int) -> set[bytes]:
        """Topics that since then were to be deleted, or of which something was noted."""
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
        change.rivals += 1  # those that begin from now on do not see it
        left = self._changes_of[change.name]
        left.remove(change)
        if not left:
            del self._changes_of[change.name]

    def leave_open(self, name: bytes, charge: OpenCharge) -> None:
        """Keep a charge until it is known what was done; of two for the same topic the first is kept for good."""
        _put(self._open, name, charge)

    def take_due(self, user: str, client_id: str, *, now_ms: int) -> dict[bytes, OpenCharge]:
        """The charges of this client that Metadata can decide by now; they are not open any more."""
        due = {
            name: charge
            for name, charge in self._open.items()
            if (charge.user, charge.client_id) == (user, client_id) and charge.due_ms <= now_ms
        }
        for name in due:
            del self._open[name]
        return due

    def take_due_of(self, names: Iterable[bytes], *, now_ms: int) -> dict[bytes, OpenCharge]:
        """The same for these topics, for all clients."""
        due = {
            name: charge
            for name in names
            if (charge := self._open.get(name)) is not None and charge.due_ms <= now_ms
        }
        for name in due:
            del self._open[name]
        return due


def undone_permits(facts: TopicFacts | None, charge: OpenCharge) -> int | None:
    """How many permits of an open charge the cluster shows to be undone; None: it shows nothing."""
    if facts is None or facts.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return None
    # A topic that is not there has no partitions; one that was made in part is paid for in part.
    if charge.key is ApiKey.DELETE_TOPICS:
        return facts.partition_count
    return charge.partitions - facts.partition_count


def _put(notes: dict[bytes, _Noted], name: bytes, noted: _Noted) -> None:
    """The newest comes last; the oldest goes when there are too many."""
    notes.pop(name, None)
    if len(notes) >= MOST_NOTES:
        del notes[next(iter(notes))]
    notes[name] = noted
