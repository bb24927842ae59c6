"""Scripts: the steps of one client, made from a seed. As text they can be kept and played again."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from protocol.api_keys import ApiKey, newest_version
from testkit import wire

Step = dict[str, Any]
"""`do` is the kind: send, storm, end, pause, junk or deaf; see `Maker` for the other keys."""

CONNECTIONS: Final = 6
LISTENERS: Final = 2
SECONDS: Final = 3.5
"""Maximum time of a script."""

OLDEST: Final = {
    "Produce": 3,
    "Fetch": 4,
    "CreateTopics": 2,
    "DeleteTopics": 1,
    "DescribeConfigs": 1,
}
"""Lowest versions that Kafka 4 accepts; 0 for the other APIs."""

FIRST_STRICT: Final = {"CreateTopics": 6, "CreatePartitions": 3, "DeleteTopics": 5}
"""Versions from which on a client knows error 89 (KIP-599)."""

SPECIAL_NAMES: Final = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__sluice_quotas",
    "__sluice_usage",
    "..",
    "no name!",
    "",
)
METADATA_TOPIC: Final = "__cluster_metadata"
"""KRaft removes this topic from a request before it checks the request's total."""

_APIS: Final = {
    "produce": {"Produce": 20, "Metadata": 1, "Fetch": 1},
    "fetch": {"Fetch": 20, "Produce": 1, "Metadata": 1},
    "create": {"CreateTopics": 16, "DeleteTopics": 2, "CreatePartitions": 2, "Metadata": 1},
    "turns": {"Metadata": 8, "DeleteTopics": 8, "CreateTopics": 3, "CreatePartitions": 3},
    "look": {
        "DescribeConfigs": 4,
        "FindCoordinator": 4,
        "Metadata": 4,
        "AlterClientQuotas": 2,
        "DescribeClientQuotas": 2,
        "Fetch": 2,
    },
    "mixed": {
        "Produce": 5,
        "Fetch": 5,
        "CreateTopics": 4,
        "Metadata": 4,
        "DeleteTopics": 2,
        "CreatePartitions": 2,
        "AlterClientQuotas": 1,
        "FindCoordinator": 1,
        "DescribeConfigs": 1,
        "ApiVersions": 1,
    },
}
"""The APIs that a client mostly uses. A client that uses every API would reach the limit of none."""


@dataclass(frozen=True, slots=True)
class Script:
    """The script of one client.

    Attributes:
        seed: the seed that it was made from.
        identity: "client" does not authenticate and has one client id with a quota. "user" has its own user with a
            quota, and any client ids.
        listeners: for each connection which of its identity's listeners it uses.
        steps: the steps in order.
    """

    seed: int
    identity: str
    listeners: tuple[int, ...]
    steps: tuple[Step, ...]

    def with_steps(self, steps: Sequence[Step]) -> Script:
        """The same client with other steps."""
        return replace(self, steps=tuple(steps))

    @property
    def old(self) -> bool:
        """Whether a mutation has a version that is too old to be refused."""
        return any(step.get("version", 99) < FIRST_STRICT.get(step.get("api", ""), 0) for step in self.steps)

    def text(self) -> str:
        """The script as text: the head, then one step per line."""
        head = {"seed": self.seed, "identity": self.identity, "listeners": list(self.listeners)}
        return "".join(json.dumps(line) + "\n" for line in (head, *self.steps))

    @classmethod
    def parse(cls, text: str) -> Script:
        """The script of a text that `text` wrote."""
        head, *steps = [json.loads(line) for line in text.splitlines() if line.strip()]
        return cls(head["seed"], head["identity"], tuple(head["listeners"]), tuple(steps))


def make_script(seed: int) -> Script:
    """The script of this seed."""
    return Maker(seed).script()


class Maker:
    """Makes one script."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice = random.Random(seed)
        self._apis = self._dice.choices(list(_APIS.values()), weights=[2, 2, 3, 1, 1, 1])[0]
        # Habits of this client.
        self._connections = self._dice.randint(1, CONNECTIONS)
        self._reconnects = self._dice.random() < 0.35
        self._pads = self._dice.random() < 0.5
        # All requests have one size: the formula allows for the largest one, which would hide excess of the others.
        self._topics = self._dice.choice([1, 1, 1, 4])
        self._partitions = self._dice.choice([-1, 2, 8, 12] if self._topics == 1 else [-1, 1, 2])
        self._padding = self._dice.choice([1, 9_995, 10_001, 10_001])
        self._waits = self._dice.choice([0.2, 0.7, 0.95])
        self._version = self._dice.choices(["newest", "oldest", "any"], weights=[4, 2, 4])[0]
        self._records_bytes = self._dice.choice([100, 5_000, 20_000, 60_000])
        self._max_bytes = self._dice.choice([1, 20_000, 1_000_000, 50_000_000])

    def script(self) -> Script:
        """See `make_script`."""
        dice = self._dice
        steps: list[Step] = []
        for _ in range(dice.randint(8, 40)):
            steps.append(step := self._step())
            if self._reconnects and step["do"] == "send":
                steps.append({"do": "end", "connection": step["connection"], "how": "close"})
        listeners = tuple(dice.randrange(LISTENERS) for _ in range(CONNECTIONS))
        return Script(self._seed, dice.choice(["client", "user"]), listeners, tuple(steps))

    def _step(self) -> Step:
        dice = self._dice
        connection = dice.randrange(self._connections)
        what = dice.choices(
            ["send", "storm", "end", "pause", "junk", "deaf"], weights=[80, 4, 6, 6, 2, 1 + self._reconnects]
        )[0]
        match what:
            case "pause":
                return {"do": what, "ms": dice.choice([5, 50, 200, 500])}
            case "end":
                return {"do": what, "connection": connection, "how": dice.choice(["close", "half", "reset"])}
            case "junk":
                return {
                    "do": what,
                    "connection": connection,
                    "hex": dice.randbytes(dice.randint(1, 40)).hex(),
                }
            case "deaf":
                return {"do": what, "connection": connection}
            case "storm":
                # If the gateway has a hole, the requests must not be more than the broker can carry out in the time.
                request = self._request()
                most = dice.choice([5, 10] if request["api"] == "CreateTopics" else [5, 10, 30])
                return {**request, "do": what, "connections": most}
        step = {**self._request(), "do": what, "connection": connection}
        if dice.random() < 0.15:
            step["copies"] = dice.choice([2, 5, 12])
        if dice.random() < 0.2:
            step["cuts"] = sorted(round(dice.random(), 3) for _ in range(dice.randint(1, 3)))
        elif dice.random() < 0.05:
            step["stops_at"] = round(dice.random(), 3)
        if dice.random() < self._waits:
            step["waits"] = True
        return step

    def _request(self) -> Step:
        dice = self._dice
        api = dice.choices(list(self._apis), weights=list(self._apis.values()))[0]
        oldest, newest = OLDEST.get(api, 0), newest_version(ApiKey(wire.api_key_of(api)))
        chosen = {"newest": newest, "oldest": oldest, "any": dice.randint(oldest, newest)}[self._version]
        make = {
            "Produce": self._produce,
            "Fetch": self._fetch,
            "CreateTopics": self._create_topics,
            "CreatePartitions": self._create_partitions,
            "DeleteTopics": self._delete_topics,
            "Metadata": self._metadata,
            "DescribeConfigs": self._describe_configs,
            "FindCoordinator": self._find_coordinator,
        }.get(api)
        step: Step = {"api": api, "version": chosen, "client": dice.randrange(4)}
        return step if make is None else {**step, **make()}

    def _produce(self) -> Step:
        return {"acks": self._dice.choice([-1, 0, 1, 1]), "bytes": self._records_bytes}

    def _fetch(self) -> Step:
        dice = self._dice
        return {
            "max_bytes": dice.choice([self._max_bytes, 1_000_000]),
            "session": dice.choice(["none", "full", "next", "next"]),
            "min_bytes": dice.choice([0, 1, 1, 1_000_000]),
            "wait_ms": dice.choice([0, 50, 300]),
            "big": dice.random() < 0.2,
        }

    def _create_topics(self) -> Step:
        dice = self._dice
        topics: list[list[int | str]] = [[self._name(), self._partitions] for _ in range(self._topics)]
        if dice.random() < 0.1:
            topics.append(topics[0])
        if self._pads and dice.random() < 0.9:
            topics.append([METADATA_TOPIC, self._padding])
        if dice.random() < 0.1:
            topics.append([dice.choice(SPECIAL_NAMES), 1])
        return {"topics": topics, "validates": dice.random() < 0.05}

    def _name(self) -> int:
        return self._dice.choice([self._dice.randrange(4), *(self._dice.randrange(1000) for _ in range(3))])

    def _create_partitions(self) -> Step:
        return {"topics": [[self._dice.randrange(4), self._dice.choice([2, 4, 9, 14])]]}

    def _delete_topics(self) -> Step:
        dice = self._dice
        return {
            "topics": [dice.randrange(4) for _ in range(dice.choice([1, 2, 3]))],
            "by_id": dice.random() < 0.3,
        }

    def _metadata(self) -> Step:
        dice = self._dice
        if dice.random() < 0.1:
            return {"topics": None, "creates": True}
        topics: list[int | str] = [self._name() for _ in range(self._topics)]
        if dice.random() < 0.1:
            topics.append(dice.choice([*SPECIAL_NAMES, METADATA_TOPIC]))
        return {"topics": topics, "creates": dice.random() < 0.9}

    def _describe_configs(self) -> Step:
        return {"count": self._dice.choice([1, 50, 1_000]), "broker": self._dice.random() < 0.3}

    def _find_coordinator(self) -> Step:
        return {"count": self._dice.choice([1, 200, 10_001])}
