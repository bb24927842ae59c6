"""However both streams are cut into segments, each side sees the same bytes, and replies leave in request order."""

from collections.abc import Callable
from struct import unpack_from
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from testkit import wire
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation, frames_of
from testkit.core import GatewayCore
from testkit.examples import A_THIRD
from testkit.frames import create_topics, heartbeat, metadata, produce, unknown_api_versions

_LATEST_MS: Final = 600_000

MAKERS: Final[dict[str, Callable[[int], bytes]]] = {
    "relayed": heartbeat,
    "relayed body": lambda i: produce(i, size=700),
    "no reply": lambda i: produce(i, acks=0, size=40),
    "rewritten reply": lambda i: produce(i, version=12, size=40, transactional_id="t" * 200),
    "collected": lambda i: metadata(i, "a", "b"),
    "creating": lambda i: metadata(i, f"auto-{i}", version=i % 14, create=True),
    "answered here": unknown_api_versions,
    "strict": lambda i: create_topics(i, (f"s{i}", 9), ("twice", 1), ("twice", 1)),
    "permissive": lambda i: create_topics(i, (f"p{i}", 9), version=5),
    "fetched": lambda i: wire.request("Fetch", 12, correlation_id=i, max_bytes=99_999, topics=[]),
}


class Scene:
    """A client with a list of requests, a session, and a broker that answers each request once it is whole."""

    def __init__(self, requests: bytes, *, shortcut: bool = True) -> None:
        # What a *reply* costs is charged when it comes, and by then a client may have sent more or not: the quotas
        # that count replies are on, but out of reach.
        core = GatewayCore(controller_mutation_rate=1, producer_byte_rate=100, consumer_byte_rate=100_000)
        core.context.topology.cluster.auto_create_topics = False
        self.c = Conversation(core=core, cluster=ScriptedCluster({"a": 3}), shortcut=shortcut)
        self.unsent = requests
        self.upstream = b""
        self.client = b""
        self._inbox = b""
        self._outbox = b""

    def client_step(self, count: int) -> None:
        """The client's next bytes arrive."""
        piece, self.unsent = self.unsent[:count], self.unsent[count:]
        if piece:
            self.c.client_sends(piece)
        self._exchange()

    def broker_step(self, count: int) -> None:
        """The broker's next bytes arrive."""
        piece, self._outbox = self._outbox[:count], self._outbox[count:]
        if piece:
            self.c.upstream_answers(piece)
        self._exchange()

    def finish(self) -> None:
        """Everything else arrives, then time passes until no one is muted."""
        while self.unsent or self._outbox:
            self.client_step(len(self.unsent))
            self.broker_step(len(self._outbox))
        while not self.c.session.reading_client and self.c.clock.now_ms < self.c.core.started_ms + _LATEST_MS:
            self.c.after(1_000)
            self._exchange()
            while self._outbox:
                self.broker_step(len(self._outbox))

    def _exchange(self) -> None:
        self.client += self.c.take_client()
        passed = self.c.take_upstream()
        self.upstream += passed
        self._inbox += passed
        while len(self._inbox) >= 4:
            end = 4 + unpack_from(">i", self._inbox, 0)[0]
            if len(self._inbox) < end:
                return
            frame, self._inbox = self._inbox[:end], self._inbox[end:]
            answer = self.c.cluster.answer(frame)
            name, _, body = self.c.cluster.received[-1]
            if name != "Produce" or body.acks != 0:
                self._outbox += answer


STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=150)


@A_THIRD
@given(kinds=st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=8), steps=STEPS)
def test_any_cutting_of_both_streams_gives_the_same_bytes(kinds: list[str], steps: list[tuple[bool, int]]) -> None:
    requests = b"".join(MAKERS[kind](number) for number, kind in enumerate(kinds))
    whole, cut = Scene(requests), Scene(requests)
    whole.finish()
    for from_client, count in steps:
        if from_client:
            cut.client_step(count)
        else:
            cut.broker_step(count)
    cut.finish()
    assert cut.upstream == whole.upstream
    assert cut.client == whole.client
    owed = [number for number, kind in enumerate(kinds) if kind != "no reply"]
    assert [wire.correlation_id_of(frame) for frame in frames_of(cut.client)] == owed
    cut.c.alive().reading()


def test_byte_by_byte_is_the_same_as_all_at_once() -> None:
    requests = b"".join(make(number) for number, make in enumerate(MAKERS.values()))
    whole, cut = Scene(requests), Scene(requests)
    whole.finish()
    while cut.unsent or cut._outbox:
        cut.client_step(1)
        cut.broker_step(1)
    cut.finish()
    assert (cut.upstream, cut.client) == (whole.upstream, whole.client)


@A_THIRD
@given(
    kinds=st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=12),
    waits_ms=st.lists(st.sampled_from([0, 0, 1, 400, 2_000]), min_size=12, max_size=12),
    answers_late=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_the_usual_case_taken_on_its_own_changes_nothing(
    kinds: list[str], waits_ms: list[int], answers_late: list[bool]
) -> None:
    """Frame by frame, as small requests come: with the shortcut and without it everything is the same."""
    quick, full = Scene(b""), Scene(b"", shortcut=False)
    for number, kind in enumerate(kinds):
        frame = MAKERS[kind](number)
        for scene in (quick, full):
            scene.unsent = frame
            scene.client_step(len(frame))
            if not answers_late[number]:
                scene.broker_step(len(scene._outbox))
            scene.c.after(waits_ms[number])
        assert (quick.upstream, quick.client) == (full.upstream, full.client)
        for fact in ("muted", "wake_at_ms", "bytes_from_client", "bytes_from_upstream", "idle_since_ms"):
            assert getattr(quick.c.session, fact) == getattr(full.c.session, fact), fact
    quick.finish()
    full.finish()
    assert (quick.upstream, quick.client) == (full.upstream, full.client)
