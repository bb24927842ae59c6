"""Reading and altering client quotas by Kafka's own APIs (KIP-546): of a gateway, or of a cluster without one.

kafka-python brings the connections, TLS, SASL and the messages; its admin client has no calls for these two APIs yet,
so they are added here in the way its other calls are made. Pinned by the lock file: the base is not public.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, KafkaTimeoutError, for_code
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from quotas.entities import DEFAULT, Default, Name, QuotaEntity, QuotaKey, entity_of_names
from quotas.usage_record import SCOPE_SETTING

_ENTITIES_PER_REQUEST: Final = 500
_ADDRESSES: Final = "advertised.listeners"
_WINDOWS: Final = ("quota.window.num", "quota.window.size.seconds")

PROPERTIES: Final = frozenset(KafkaAdminClient.DEFAULT_CONFIG) - {"bootstrap_servers"}
"""Names of a connection's settings."""

Quotas = Mapping[tuple[QuotaEntity, QuotaKey], float]
"""What is set: (entity, key) -> value in the key's unit."""


class QuotaClientError(Exception):
    """The cluster could not be asked, or said no as a whole; the text names it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One quota to be set, or removed when `value` is None."""

    entity: QuotaEntity
    key: QuotaKey
    value: float | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an answer said about one entity whose quotas were not altered.

    Attributes:
        entity: the one.
        code: Kafka's error code.
        text: Kafka's or the gateway's words, maybe empty.
    """

    entity: QuotaEntity
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Counting:
    """How quotas are counted at the other end, as far as it says.

    Attributes:
        brokers: how many there are.
        cluster: whether these are Kafka's own brokers, each with counters of its own; False for a gateway, None
            where the brokers' settings may not be read.
        windows: number and length in ms of a broker's samples; None where they are not known, or a gateway's are not.
        scope: what one counter of a gateway covers: fleet, gateway or broker; None where an older one does not say.
    """

    brokers: int
    cluster: bool | None
    windows: tuple[int, int] | None = None
    scope: str | None = None


class _Admin(KafkaAdminClient):  # type: ignore[misc]  # the base is not typed
    """KafkaAdminClient with the two calls that it lacks."""

    def describe_all_quotas(self) -> Any:
        return self._manager.run(self._send, DescribeClientQuotasRequest(components=[], strict=False))

    def alter_quotas(self, entries: list[Any], *, validate_only: bool) -> Any:
        return self._manager.run(
            self._send, AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
        )

    async def _send(self, request: Any) -> Any:
        return await self._manager.send(request)


class QuotaClient:
    """A connection to one cluster or gateway; use it as a context manager. Not thread-safe."""

    def __init__(self, bootstrap: str, properties: Mapping[str, Any] | None = None) -> None:
        """Connect.

        Args:
            bootstrap: ``host:port,host:port``.
            properties: KafkaAdminClient's other arguments: security_protocol, sasl_mechanism, ssl_cafile and so on.

        Raises:
            QuotaClientError: no answer, or a property that does not exist.
        """
        self._bootstrap = bootstrap
        options = {"client_id": "sluice-pipeline", **(properties or {})}
        try:
            self._admin = _Admin(bootstrap_servers=bootstrap.split(","), **options)
        except (KafkaError, OSError, ValueError, AssertionError) as exc:
            raise QuotaClientError(f"{bootstrap}: {_reason(exc)}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        self._admin.close()

    def _failed(self, exc: Exception) -> QuotaClientError:
        brokers = self._admin._manager.cluster.brokers() if isinstance(exc, KafkaTimeoutError) else ()
        addresses = ", ".join(f"{broker.host}:{broker.port}" for broker in brokers)
        advertised = (
            f"; it sends clients to {addresses}, which this machine must reach too" if addresses else ""
        )
        return QuotaClientError(f"{self._bootstrap}: {_reason(exc)}{advertised}")

    def describe(self) -> dict[tuple[QuotaEntity, QuotaKey], float]:
        """Every quota that is set; keys that this version does not know are left out.

        Raises:
            QuotaClientError: not allowed, or not reached.
        """
        try:
            answer = self._admin.describe_all_quotas()
        except (KafkaError, OSError) as exc:
            raise self._failed(exc) from exc
        if answer.error_code:
            raise QuotaClientError(f"{self._bootstrap}: {_words(answer.error_code, answer.error_message)}")
        known = {key.value for key in QuotaKey}
        return {
            (_entity(entry.entity), QuotaKey(pair.key)): pair.value
            for entry in answer.entries or ()
            for pair in entry.values
            if pair.key in known
        }

    def counting(self) -> Counting:
        """How quotas are counted there. A gateway answers the brokers' addresses as null, Kafka never does.

        Raises:
            QuotaClientError: not reached.
        """
        try:
            brokers = self._admin.describe_cluster()["brokers"]
            name = str(brokers[0]["broker_id"])
            asked = ConfigResource(ConfigResourceType.BROKER, name, [_ADDRESSES, *_WINDOWS, SCOPE_SETTING])
            told = self._admin.describe_configs([asked], config_filter="all")
        except (KafkaError, OSError) as exc:
            raise self._failed(exc) from exc
        values = {name: entry["value"] for name, entry in told["broker"][name].items()}
        if not values.keys() >= {_ADDRESSES, *_WINDOWS}:
            return Counting(len(brokers), None)
        if values[_ADDRESSES] is None:
            return Counting(len(brokers), False, scope=values.get(SCOPE_SETTING))
        num, seconds = (int(values[name]) for name in _WINDOWS)
        return Counting(len(brokers), True, (num, seconds * 1000))

    def alter(
        self, settings: Sequence[Setting], *, validate_only: bool, at_once: bool = False
    ) -> list[Refusal]:
        """Set and remove quotas; all keys of one entity together or none of them.

        Args:
            settings: at most one per entity and key.
            validate_only: only ask whether it would be done.
            at_once: in one request, which the controller carries out as a whole; otherwise in several if there are
                many entities.

        Returns:
            Entities that were refused; empty when everything was done. Entities are independent of each other.

        Raises:
            QuotaClientError: not reached; what was sent in earlier requests stays.
        """
        by_entity: dict[QuotaEntity, list[Setting]] = {}
        for setting in settings:
            by_entity.setdefault(setting.entity, []).append(setting)
        refusals: list[Refusal] = []
        for some in _batches(by_entity.items(), max(1, len(by_entity)) if at_once else _ENTITIES_PER_REQUEST):
            entries = [_entry(entity, changes) for entity, changes in some]
            try:
                answer = self._admin.alter_quotas(entries, validate_only=validate_only)
            except (KafkaError, OSError) as exc:
                raise self._failed(exc) from exc
            refusals.extend(
                Refusal(_entity(entry.entity), entry.error_code, entry.error_message or "")
                for entry in answer.entries
                if entry.error_code
            )
        return refusals


def _reason(exc: Exception) -> str:
    if isinstance(exc, KafkaTimeoutError):
        return "no answer in time; check the address, and that security_protocol fits"
    return str(exc)


def _words(code: int, message: str | None) -> str:
    error = for_code(code)
    name = getattr(error, "message", None) or error.__name__
    return f"{name} (error {code}): {message or error.description}"


def _batches(
    items: Iterable[tuple[QuotaEntity, list[Setting]]], most: int
) -> Iterator[list[tuple[QuotaEntity, list[Setting]]]]:
    rest = iter(items)
    while some := list(islice(rest, most)):
        yield some


def _entry(entity: QuotaEntity, settings: Iterable[Setting]) -> Any:
    data = AlterClientQuotasRequest.EntryData
    return data(
        entity=[
            data.EntityData(
                entity_type=entity_type.value, entity_name=None if isinstance(name, Default) else name
            )
            for entity_type, name in entity.components()
        ],
        ops=[
            data.OpData(key=each.key.value, value=each.value or 0.0, remove=each.value is None)
            for each in settings
        ],
    )


def _entity(components: Iterable[Any]) -> QuotaEntity:
    names: dict[str, Name] = {
        each.entity_type: DEFAULT if each.entity_name is None else each.entity_name for each in components
    }
    return entity_of_names(names)
