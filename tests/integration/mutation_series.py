"""A random series of topic mutations that Kafka's own quota and the gateway's can both be put through.

The bucket's arithmetic decides what comes out, so the moments count. The first request takes the bucket into debt;
all others come half a token's time away from the moments at which the bucket holds a whole number of tokens, so
neither side stands at the border between accepting and refusing, as long as nothing takes longer than that.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

RATE: Final = 2.0
BURST: Final = 22
GAP_S: Final = 1 / RATE
MARGIN_MS: Final = 0.5 / RATE * 1000

_OPENING_PARTITIONS: Final = BURST + 3
_CREATE_VERSIONS: Final = (7, 7, 6, 7, 6, 5, 4, 3, 2)
_PARTITIONS_VERSIONS: Final = (3, 3, 2, 1, 0)
_DELETE_VERSIONS: Final = (6, 5, 6, 5, 4, 1)


@dataclass(frozen=True, slots=True)
class Step:
    """One request.

    Attributes:
        name: of the API.
        version: of the request.
        fields: of its body, given the prefix of this side's topic names.
    """

    name: str
    version: int
    fields: Callable[[str], dict[str, Any]]

    def __str__(self) -> str:
        return f"{self.name} v{self.version} {self.fields('')}"


@dataclass(slots=True)
class Series:
    """Makes the steps; knows which topics there are after those it made, as far as they were accepted.

    Attributes:
        topics: name without prefix -> partitions.
    """

    dice: random.Random
    topics: dict[str, int] = field(default_factory=dict)
    _made: int = 0

    def opening(self) -> Step:
        """The request that takes the full bucket into debt."""
        return self._create(7, [self._new(_OPENING_PARTITIONS)], validate_only=False)

    def next(self) -> Step:
        """A request; some of its topics are wrong in ways that cost nothing."""
        kind = self.dice.choices(("create", "grow", "delete"), (6, 2, 2))[0]
        if kind == "create":
            return self._some_creates()
        return self._some_partitions() if kind == "grow" else self._some_delete()

    def note(self, step: Step, results: list[tuple[str, int]]) -> None:
        """Keep up with which topics there are, by the answer to a step: (topic, error code)."""
        fields = step.fields("")
        if fields.get("validate_only"):
            return
        accepted = {name for name, code in results if code == 0}
        if step.name == "DeleteTopics":
            for name in accepted:
                del self.topics[name]
            return
        for topic in fields["topics"]:
            if topic["name"] in accepted:
                wanted = topic["count"] if step.name == "CreatePartitions" else topic["num_partitions"]
                self.topics[topic["name"]] = wanted if wanted > 0 else len(topic.get("assignments", "1"))

    def _some_creates(self) -> Step:
        version = self.dice.choice(_CREATE_VERSIONS)
        most = 5 if version >= 6 else 2
        topics = [self._some_topic(most) for _ in range(self.dice.randint(1, 4 if version >= 6 else 2))]
        if self.dice.random() < 0.2:
            topics.insert(self.dice.randrange(len(topics) + 1), dict(self.dice.choice(topics)))
        return self._create(version, topics, validate_only=self.dice.random() < 0.2)

    def _some_topic(self, most: int) -> dict[str, Any]:
        topic = self._new(self.dice.randint(1, most))
        odd = self.dice.random()
        if odd < 0.12 and self.topics:
            topic["name"] = self.dice.choice(sorted(self.topics))
        elif odd < 0.20:
            topic["name"] += self.dice.choice(("/", "@", "ä", "x" * 260))
        elif odd < 0.26:
            topic["num_partitions"] = self.dice.choice((0, -2))
        elif odd < 0.30:
            topic["replication_factor"] = self.dice.choice((0, -2))
        elif odd < 0.36:
            topic["num_partitions"] = -1
        elif odd < 0.42:
            ones = [{"partition_index": index, "broker_ids": [1]} for index in range(topic["num_partitions"])]
            topic |= {"num_partitions": -1, "replication_factor": -1, "assignments": ones}
        return topic

    def _new(self, partitions: int) -> dict[str, Any]:
        self._made += 1
        return {"name": f"{self._made:04}", "num_partitions": partitions, "replication_factor": 1}

    @staticmethod
    def _create(version: int, topics: list[dict[str, Any]], *, validate_only: bool) -> Step:
        def fields(prefix: str) -> dict[str, Any]:
            named = [{**topic, "name": prefix + topic["name"]} for topic in topics]
            return {"topics": named, "timeout_ms": 30_000, "validate_only": validate_only}

        return Step("CreateTopics", version, fields)

    def _some_partitions(self) -> Step:
        # One topic at a time: with several Kafka's order is that of a hash map.
        name = self.dice.choice(sorted(self.topics)) if self.dice.random() < 0.85 else "absent"
        count = self.topics.get(name, 1) + self.dice.choice((1, 2, 3, 0, -1))
        validate_only = self.dice.random() < 0.2

        def fields(prefix: str) -> dict[str, Any]:
            topic = {"name": prefix + name, "count": count, "assignments": None}
            return {"topics": [topic], "timeout_ms": 30_000, "validate_only": validate_only}

        return Step("CreatePartitions", self.dice.choice(_PARTITIONS_VERSIONS), fields)

    def _some_delete(self) -> Step:
        version = self.dice.choice(_DELETE_VERSIONS)
        small = sorted(name for name, count in self.topics.items() if count <= 6)
        name = self.dice.choice(small) if small and self.dice.random() < 0.85 else "absent"

        def fields(prefix: str) -> dict[str, Any]:
            if version >= 6:
                return {"topics": [{"name": prefix + name}], "timeout_ms": 30_000}
            return {"topic_names": [prefix + name], "timeout_ms": 30_000}

        return Step("DeleteTopics", version, fields)
