"""What is done with every version of every API: docs/apis.md is made from Kafka's message definitions and our routes.

`python -m testkit.apis` writes the page; an integration test fails when it is out of date, since the definitions are
in the jars of the broker. What is relayed unseen must have no field in its responses that may be a broker's address.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from embedded_kafka import jars
from gateway.handlers.context import MAX_REQUEST_BYTES
from gateway.handlers.own_topics import GUARDED
from gateway.session.routes import MAX_SASL_BYTES
from protocol.api_keys import BROKER_ONLY, CLUSTER_ADMIN, ApiKey, newest_version, offered
from protocol.client_quota_messages import MAX_ENTRIES
from protocol.metadata import MOST_NAMES
from protocol.named_topics import MOST_PARTITIONS
from protocol.node_endpoints import MAX_TAIL_BYTES
from protocol.primitives import MAX_ELEMENTS
from testkit.core import GatewayCore

PAGE: Final = Path(__file__).parents[1] / "docs" / "apis.md"

_COMMENT: Final = re.compile(r"(?m)^\s*//.*$|(?<=[,\]}{])\s*//.*$")
_ADDRESS: Final = re.compile(r"host|port|endpoint|listener|address", re.IGNORECASE)

NOT_A_BROKERS: Final = {
    "DescribeAcls.Resources.Acls.Host": "a rule's",
    "DeleteAcls.FilterResults.MatchingAcls.Host": "a rule's",
    "DescribeGroups.Groups.Members.ClientHost": "a client's",
    "ConsumerGroupDescribe.Groups.Members.ClientHost": "a client's",
    "ShareGroupDescribe.Groups.Members.ClientHost": "a client's",
    "StreamsGroupDescribe.Groups.Members.ClientHost": "a client's",
    "StreamsGroupDescribe.Groups.Members.UserEndpoint": "an application's",
    "StreamsGroupHeartbeat.PartitionsByUserEndpoint": "an application's",
    "StreamsGroupHeartbeat.EndpointInformationEpoch": "a number",
}
"""Fields of relayed responses that are called so, and whose addresses they hold."""

_RELAYED_RESPONSES: Final = {ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""Of requests that are looked at."""

_DONE: Final = {
    ApiKey.PRODUCE: "relayed and counted; from v10 on answers are rewritten (KIP-951)",
    ApiKey.FETCH: "relayed and counted, max_bytes lowered; from v16 on answers are rewritten (KIP-951)",
    ApiKey.SHARE_FETCH: "relayed and counted, max_bytes lowered; answers are rewritten (KIP-932)",
    ApiKey.SHARE_ACKNOWLEDGE: "relayed; answers are rewritten (KIP-932)",
    ApiKey.METADATA: "answers are rewritten; topics that it creates are counted (KIP-599)",
    ApiKey.FIND_COORDINATOR: "answers are rewritten",
    ApiKey.DESCRIBE_CLUSTER: "answers are rewritten, controllers taken out",
    ApiKey.DESCRIBE_QUORUM: "relayed; v2 without the controllers' listeners",
    ApiKey.DESCRIBE_CONFIGS: "addresses in brokers' settings taken out",
    ApiKey.API_VERSIONS: "answers are cut to this table; unknown versions answered here (KIP-511)",
    ApiKey.CREATE_TOPICS: "counted, refused in part (KIP-599)",
    ApiKey.CREATE_PARTITIONS: "counted, refused in part (KIP-599)",
    ApiKey.DELETE_TOPICS: "counted, refused in part (KIP-599)",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "answered here",
    ApiKey.ALTER_CLIENT_QUOTAS: "answered here",
    ApiKey.JOIN_GROUP: "relayed; a drain does not wait for the answer",
    ApiKey.SYNC_GROUP: "relayed; a drain does not wait for the answer",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "relayed; refused to clients with a mutation quota (KIP-1071, KIP-599)",
}

_INTRODUCTION: Final = f"""# What is done with every API

Made by `testkit/apis.py` from the message definitions of Kafka {jars.KAFKA_VERSION} and the gateway's routes.
*Relayed* is what passes as it comes; none of its responses has a field for a broker's address. Versions that this
table does not have are not offered, and a request in one ends the connection: in a newer one, addresses may stand
where nothing looks for them.

On SASL listeners SaslHandshake and SaslAuthenticate are read too, IncrementalAlterConfigs where limits of brokers are
the gateway's, and, for a gateway with topics of its own, *guarded* ones for those topics.

| key | API | Kafka's versions | here | |
|---:|---|---|---|---|
"""

_BOUNDS: Final = f"""
## Bounds of our own

Kafka has none, or larger ones. A request beyond them ends its connection, unless it is said otherwise.

| what | at most |
|---|---|
| bytes of a request that is held whole | {MAX_REQUEST_BYTES:,} |
| bytes of a request before authentication | {MAX_SASL_BYTES:,} |
| elements of most arrays that are read, such as the topics of a CreateTopics | {MAX_ELEMENTS:,} |
| names in a Metadata request of a client whose creations are counted | {MOST_NAMES:,} |
| partitions in a request that is searched for the gateway's own topics | {MOST_PARTITIONS:,} |
| entries of an AlterClientQuotas, which is answered with an error | {MAX_ENTRIES:,} |
| bytes behind the records of an answer, where brokers are named | {MAX_TAIL_BYTES:,} |
"""


@cache
def definitions() -> dict[str, dict[str, Any]]:
    """Kafka's definitions of requests and responses by name, as "FetchResponse"."""
    (jar,) = jars.installed().libs.glob("kafka-clients-*.jar")
    found: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(jar) as archive:
        for path in archive.namelist():
            if path.startswith("common/message/") and path.endswith(("Request.json", "Response.json")):
                definition = json.loads(_COMMENT.sub("", archive.read(path).decode()))
                if "apiKey" in definition:
                    found[definition["name"]] = definition
    return found


def raw_definition(name: str) -> str:
    """One of them as it stands in the jar."""
    (jar,) = jars.installed().libs.glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as archive:
        return archive.read(f"common/message/{name}.json").decode()


def apis() -> list[tuple[ApiKey, str, str]]:
    """Key, name and versions of every API that Kafka has numbered; "none" where all versions are gone."""
    return sorted(
        (ApiKey(one["apiKey"]), one["name"].removesuffix("Request"), one["validVersions"])
        for one in definitions().values()
        if one["type"] == "request"
    )


def looked_at() -> set[ApiKey]:
    """APIs whose requests are not relayed unseen."""
    collecting, of_heads = GatewayCore().handlers()
    return set(collecting) | set(of_heads)


def address_fields(name: str, version: int) -> Iterator[str]:
    """Fields of a response, with their path, that may hold an address in this version."""
    definition = definitions()[f"{name}Response"]
    shared = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}

    def walk(path: str, fields: list[dict[str, Any]]) -> Iterator[str]:
        for field in fields:
            if version not in versions_of(field["versions"]):
                continue
            here = f"{path}.{field['name']}"
            if _ADDRESS.search(field["name"]):
                yield here
            else:
                yield from walk(here, field.get("fields") or shared.get(field["type"].removeprefix("[]"), []))

    return walk(name, definition["fields"])


def versions_of(text: str) -> range:
    """The range that a definition writes as "none", "3", "3+" or "3-7"."""
    if text == "none":
        return range(0)
    first, _, last = text.rstrip("+").partition("-")
    return range(int(first), (1_000 if text.endswith("+") else int(last or first)) + 1)


def field_names(name: str, version: int) -> list[str]:
    """Fields of a response in this version, but for tagged ones."""
    return [
        field["name"]
        for field in definitions()[f"{name}Response"]["fields"]
        if version in versions_of(field["versions"]) and "tag" not in field
    ]


def is_flexible(name: str, version: int) -> bool:
    """Whether a response has tagged fields in this version (KIP-482)."""
    return version in versions_of(definitions()[f"{name}Response"]["flexibleVersions"])


def relayed_unseen() -> list[tuple[str, int]]:
    """(API, version) of everything that passes without a look at its responses."""
    seen = looked_at()
    return [
        (name, version)
        for key, name, versions in apis()
        if offered(key) and (key not in seen or key in _RELAYED_RESPONSES)
        for version in versions_of(versions)
        if version <= newest_version(key)
    ]


def page() -> str:
    """docs/apis.md as it should be."""
    seen = looked_at()
    rows = []
    for key, name, versions in apis():
        ours, done = "", ""
        if versions == "none":
            done = "gone from Kafka"
        elif key in BROKER_ONLY:
            done = "refused: between brokers and controllers"
        elif key in CLUSTER_ADMIN:
            done = "refused: changes the set of nodes"
        else:
            valid = versions_of(versions)
            newest = min(valid[-1], newest_version(key))
            oldest = 0 if key is ApiKey.PRODUCE else valid[0]
            ours = f"{oldest}-{newest}" if newest > oldest else str(newest)
            done = _DONE[key] if key in seen else "relayed"
            if newest < valid[-1]:
                done += f"; v{newest + 1} on refused: between brokers"
            if key in GUARDED:
                done += "; guarded"
        rows.append(f"| {int(key)} | {name} | {versions} | {ours} | {done} |")
    return _INTRODUCTION + "\n".join(rows) + "\n" + _BOUNDS


if __name__ == "__main__":
    PAGE.write_text(page())
