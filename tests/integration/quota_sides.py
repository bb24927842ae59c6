"""The quota API of a real broker and of the gateway in front of it, asked the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from testkit.wire_client import WireClient
from tests.integration.conftest import eventually

Entity: TypeAlias = Mapping[str, str | None]
Ops: TypeAlias = Mapping[str, float | None]


class QuotaSide:
    """One side, over one connection."""

    def __init__(self, client: WireClient, name: str) -> None:
        self._client = client
        self.name = name

    def alter(
        self, *entries: tuple[Entity, Ops], version: int = 1, validate_only: bool = False
    ) -> list[tuple[int, str | None, tuple[tuple[str, str | None], ...]]]:
        """Error code, message and entity for each entry; sorted, since Kafka's order is that of a hash."""
        rows = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                "ops": [
                    {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
                    for key, value in ops.items()
                ],
            }
            for entity, ops in entries
        ]
        body = self._client.ask("AlterClientQuotas", version, entries=rows, validate_only=validate_only).body
        assert body.throttle_time_ms == 0
        answers = [
            (
                entry.error_code,
                entry.error_message,
                tuple((part.entity_type, part.entity_name) for part in entry.entity),
            )
            for entry in body.entries
        ]
        return sorted(answers, key=repr)

    def describe(
        self, components: Sequence[tuple[str, int, str | None]], *, strict: bool, version: int = 1
    ) -> tuple[int, str | None, dict[tuple[tuple[str, str | None], ...], dict[str, float]] | None]:
        """Error code, message, and entity -> values; None for null."""
        rows = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
        body = self._client.ask("DescribeClientQuotas", version, components=rows, strict=strict).body
        if body.entries is None:
            return body.error_code, body.error_message, None
        found = {
            tuple((part.entity_type, part.entity_name) for part in entry.entity): {
                value.key: value.value for value in entry.values
            }
            for entry in body.entries
        }
        assert len(found) == len(body.entries)
        return body.error_code, body.error_message, found

    def everything(self) -> dict[Any, dict[str, float]]:
        """All that is set."""
        _, _, found = self.describe([], strict=False)
        assert found is not None
        return found

    def clear(self) -> None:
        """Nothing is set afterwards.

        A broker shows a change a moment after its answer, in the order of its log: once it shows the last one, what
        it shows is all there is.
        """
        last = {"user": "the last one"}
        assert [code for code, _, _ in self.alter((last, {"producer_byte_rate": 1.0}))] == [0]
        eventually(lambda: tuple(last.items()) in self.everything())
        entries = [(dict(entity), dict.fromkeys(values)) for entity, values in self.everything().items()]
        assert {code for code, _, _ in self.alter(*entries)} == {0}
        eventually(lambda: not self.everything(), told=lambda: repr(self.everything()))
