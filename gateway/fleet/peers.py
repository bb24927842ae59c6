"""The other members of the fleet: which are present, and which of their messages count. Pure.

A message counts once. Skipped numbers are noted for a while, so that a late message counts too. Meanwhile the message
is requested again from its sender. If it does not arrive in that time, it is lost, and its sender is asked for the
levels of its counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.fleet.shares import Again, Member, Share

MOST_PEERS: Final = 4_096
"""The most starts of members that are remembered, including those that have ended."""

_MOST_MISSING: Final = 256
_MOST_WANTED: Final = 2_000
"""The most messages requested in one message; Kafka's clients refuse messages of 1 MB."""


@dataclass(slots=True)
class Peer:
    """Another member.

    Attributes:
        member: its name and start.
        heard_ms: when its last message arrived.
        last_seq: the highest number of its messages.
        missing: lower numbers that did not arrive, and when each was noticed.
        wanted: those of them that count when they are sent again; levels include the others.
        asked_ms: when messages were last requested again.
        anew: levels include its messages up to the next one.
        lost: messages that never arrived.
        repeated: messages that arrived again.
        left: it has announced its end.
    """

    member: Member
    heard_ms: int
    last_seq: int
    missing: dict[int, int] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    asked_ms: int = 0
    anew: bool = False
    lost: int = 0
    repeated: int = 0
    left: bool = False


class Peers:
    """All other members, the longest silent one first."""

    def __init__(self, *, timeout_ms: int, patience_ms: int) -> None:
        """No member is known yet.

        Args:
            timeout_ms: a member that is silent for so long counts as absent.
            patience_ms: how long a message may be late.
        """
        self._timeout_ms = timeout_ms
        self._patience_ms = patience_ms
        self._known: dict[Member, Peer] = {}

    def take(self, share: Share, *, now_ms: int) -> bool:
        """Note a message, and return whether it counts: it did not arrive before."""
        peer = self._known.pop(share.member, None)
        if peer is None:
            if share.repeated:
                return False  # sent before this member listened: levels include it
            peer = Peer(share.member, now_ms, share.seq)
            while len(self._known) >= MOST_PEERS:
                del self._known[next(iter(self._known))]
            counts = True
        else:
            counts = not share.repeated or share.seq in peer.wanted
            counts = counts and _advance(peer, share.seq, now_ms)
        self._known[share.member] = peer
        if not counts:
            peer.repeated += 1
            return False
        peer.heard_ms = now_ms
        peer.left = peer.left or share.bye
        return True

    def present(self, *, now_ms: int) -> list[Peer]:
        """The members that are present."""
        return [
            peer
            for peer in self._known.values()
            if not peer.left and now_ms - peer.heard_ms < self._timeout_ms
        ]

    def remembered(self, *, within_ms: int, now_ms: int) -> set[str]:
        """Names of members that sent a message lately and have not announced their end; some may be isolated."""
        return {
            peer.member.id
            for peer in self._known.values()
            if not peer.left and now_ms - peer.heard_ms < within_ms
        }

    def lost(self, *, now_ms: int) -> list[Peer]:
        """Members that a message was lost of since the last call."""
        found = []
        for peer in self._known.values():
            if peer.missing and now_ms - min(peer.missing.values()) >= self._patience_ms:
                peer.lost += len(peer.missing)
                peer.missing.clear()
                peer.wanted.clear()
                found.append(peer)
        return found

    def leave_to_levels(self, *, anew: bool = False) -> None:
        """Do not count missing messages that still come: levels that are due, or arrived, may include them.

        Args:
            anew: this member was isolated, so only the next messages show which ones it missed.
        """
        for peer in self._known.values():
            peer.wanted.clear()
            peer.anew = peer.anew or anew

    def wanted(self, *, after_ms: int, now_ms: int) -> list[Again]:
        """Messages that have been missing for so long, and were not requested again for as long."""
        found = []
        count = 0
        for peer in self._known.values():
            if count >= _MOST_WANTED:
                break
            if peer.wanted and now_ms - peer.asked_ms >= after_ms:
                missing = peer.missing
                seqs = tuple(seq for seq in sorted(peer.wanted) if now_ms - missing[seq] >= after_ms)
                if seqs:
                    peer.asked_ms = now_ms
                    count += len(seqs)
                    found.append(Again(peer.member, seqs))
        return found

    def lost_total(self) -> int:
        """The number of messages that never arrived."""
        return sum(peer.lost for peer in self._known.values())

    def repeated_total(self) -> int:
        """The number of messages that arrived more than once."""
        return sum(peer.repeated for peer in self._known.values())


def _advance(peer: Peer, seq: int, now_ms: int) -> bool:
    if seq <= peer.last_seq:
        if seq not in peer.wanted:  # it came before, or levels may include it
            return False
        peer.wanted.discard(seq)
        del peer.missing[seq]
        return True
    first = max(peer.last_seq + 1, seq - _MOST_MISSING)
    peer.lost += first - peer.last_seq - 1
    for number in range(first, seq):
        peer.missing[number] = now_ms
        if not peer.anew:
            peer.wanted.add(number)
    peer.anew = False
    while len(peer.missing) > _MOST_MISSING:
        oldest = next(iter(peer.missing))
        del peer.missing[oldest]
        peer.wanted.discard(oldest)
        peer.lost += 1
    peer.last_seq = seq
    return True
