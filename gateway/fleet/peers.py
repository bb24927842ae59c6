"""The other members of the fleet: who is present, and which of their messages count. Pure.

A message counts once. Numbers that were passed over are noted for a while, so that one that comes late counts too.
Its sender is asked for it again meanwhile; one that does not come in that time is lost, and its sender is asked
where counters stand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.fleet.shares import Again, Member, Share

MOST_PEERS: Final = 4_096
"""Runs that are remembered, those that have ended included."""

_MOST_MISSING: Final = 256
_MOST_WANTED: Final = 2_000
"""Asked for in one message; Kafka's clients refuse one of 1 MB."""


@dataclass(slots=True)
class Peer:
    """One other member.

    Attributes:
        member: which.
        heard_ms: when its last message came.
        last_seq: the highest number of its messages.
        missing: the numbers below that did not come, and since when they are missed.
        wanted: those of them that count when they are sent again; the others are in levels.
        asked_ms: when messages were last asked for again.
        anew: its messages up to the next one are left to levels.
        `told`: what it has recorded, by its messages, for the share of each member.
        lost: messages that never came.
        repeated: messages that came again.
        left: it has said that it ends.
    """

    member: Member
    heard_ms: int
    last_seq: int
    missing: dict[int, int] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    asked_ms: int = 0
    anew: bool = False
    counters: int = 0
    lost: int = 0
    repeated: int = 0
    left: bool = False


class Peers:
    """All other members, the one that was silent for longest first."""

    def __init__(self, *, timeout_ms: int, patience_ms: int) -> None:
        """None is known yet.

        Args:
            timeout_ms: one that was not heard for so long is not there.
            patience_ms: how long a message may be late.
        """
        self._timeout_ms = timeout_ms
        self._patience_ms = patience_ms
        self._known: dict[Member, Peer] = {}

    def take(self, share: Share, *, now_ms: int) -> bool:
        """Notes a message, and says whether it counts: it was not there before."""
        peer = self._known.pop(share.member, None)
        if peer is None:
            if share.repeated:
                return False  # sent before this member listened: levels have it
            peer = Peer(share.member, now_ms, share.seq)
            while len(self._known) >= MOST_PEERS:
                del self._known[next(iter(self._known))]
            counts = True
        else:
            counts = share.seq in peer.wanted if share.repeated else True
            counts = counts and _advance(peer, share.seq, now_ms)
        self._known[share.member] = peer
        if not counts:
            peer.repeated += 1
            return False
        peer.heard_ms = now_ms
        peer.left = peer.left or share.bye
        return True

    def present(self, *, now_ms: int) -> list[Peer]:
        """Those that are there."""
        return [
            peer
            for peer in self._known.values()
            if not peer.left and now_ms - peer.heard_ms < self._timeout_ms
        ]

    def remembered(self, *, within_ms: int, now_ms: int) -> set[str]:
        """Names of those that were heard so lately and have not said that they end: some may only be cut off."""
        return {
            peer.member.id
            for peer in self._known.values()
            if not peer.left and now_ms - peer.heard_ms < within_ms
        }

    def lost(self, *, now_ms: int) -> list[Peer]:
        """Those of which a message has been lost since the last call."""
        found = []
        for peer in self._known.values():
            if peer.missing and now_ms - min(peer.missing.values()) >= self._patience_ms:
                peer.lost += len(peer.missing)
                peer.missing.clear()
                peer.wanted.clear()
                found.append(peer)
        return found

    def leave_to_levels(self, *, anew: bool = False) -> None:
        """What is missing does not count when it is sent again: the levels that are asked for, or came, may have it.

        Args:
            anew: this member was out of touch, so what it missed shows with the next messages only.
        """
        for peer in self._known.values():
            peer.wanted.clear()
            peer.anew = peer.anew or anew

    def wanted(self, *, after_ms: int, now_ms: int) -> list[Again]:
        """Messages that have been missed for so long, and were not asked for again as long."""
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
        """Messages that never came."""
        return sum(peer.lost for peer in self._known.values())

    def repeated_total(self) -> int:
        """Messages that came more than once."""
        return sum(peer.repeated for peer in self._known.values())


def _advance(peer: Peer, seq: int, now_ms: int) -> bool:
    if seq <= peer.last_seq:
        peer.wanted.discard(seq)
        return peer.missing.pop(seq, None) is not None
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
