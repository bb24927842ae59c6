"""The layout of a usage record: the gateway writes one per second, the pipeline reads them.

There is one JSON object per line and second. It has short rows instead of an object for each client; the enums below
are the positions in a row. Seconds without any events have a line too, so a gap in `seq` always means loss.

    {"v":1,"gw":"a","boot":1700000000000,"seq":7,"ts":1700000060,"dur_ms":1000,"algo":"token_bucket",
     "scope":"gateway","rows":[[...], ...],"events":[[...], ...],"dropped_rows":0,"dropped_events":0}

(gw, boot, seq) identifies a line: the gateway, its start time (ms since the epoch) and a number that grows by one
with each line since then. `ts` is the second that the line covers (s since the epoch, UTC), `dur_ms` the time that it
really covers. If the wall clock was set meanwhile, `jump_ms` is the change; otherwise the field is absent. Beyond a
cap of rows, all further clients of a second share the rows `~other`; `dropped_rows` is their number.
`dropped_events` is the number of events that did not fit into the line.

`scope` is the scope of one counter of byte rates, request time and mutations (`[client_quota] scope`): "gateway",
"broker", or "fleet:" and the fleet's name. Gateways with the same fleet name share their counters. Each gateway
always counts its own connections. The field is missing in lines of an older gateway, and in lines that a member of a
fleet wrote before it knew its cluster.

If topics are metered, there is one more field, "topics": rows as in `TopicRow`, for each topic of a client and API
(produce, fetch). Their bytes add up to those of the client's rows. The other fields do not depend on it, so readers
may ignore it. The row of a topic whose id has no name yet may be in a line up to five after its client's.

If the gateway queries the brokers' stored bytes, some lines have the field "stored": parts of samples as in
`StoredRow`. These are about topics and brokers, not about clients.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum, IntFlag, StrEnum
from typing import Final

from quotas.entities import cut_name

VERSION: Final = 1

OTHER: Final = "~other"
"""Client id of the row that sums up the clients beyond the cap of rows."""

FLEET: Final = "fleet:"
"""Begins the scope of a gateway that shares its counters; the rest names the fleet."""

SCOPE_SETTING: Final = "sluice.quota.scope"
"""The broker setting in which a gateway reports the scope of one counter: fleet, gateway or broker."""

OVERHEAD: Final = ""
"""Name of the topic row of all bytes around the records: headers, names of topics, sizes, empty responses."""


HASHED: Final = "#"
"""The beginning of each hashed name."""

_DIGEST_CHARS: Final = 16


def plain_name(name: str) -> str:
    """A user, client id or address as usage records have it, if names are not hashed."""
    # JSON readers need not accept half of a surrogate pair (hazard I14).
    return cut_name(name).encode("utf-8", "replace").decode()


def hashed_name(name: str, salt: bytes) -> str:
    """A name as usage records have it, if names are hashed with this salt."""
    digest = hmac.new(salt, name.encode("utf-8", "surrogatepass"), hashlib.sha256)
    return HASHED + digest.hexdigest()[:_DIGEST_CHARS]


class UsageApi(StrEnum):
    """The API or resource that a row counts."""

    PRODUCE = "produce"
    FETCH = "fetch"
    REQUEST = "request"  # request time; units are ms of a request handler thread
    MUTATION = "mutation"  # units are partitions
    CONNECT = "connect"  # units are connections; the address stands in place of the client id
    # Units are connections, over all addresses; there are rows while any user has a limit of them.
    USER_CONNECT = "user_connect"
    # Units are requests; there are rows while such a family of APIs has a limit, and older gateways have none.
    METADATA = "metadata"
    OFFSET_COMMIT = "offset_commit"
    GROUP_MEMBERSHIP = "group_membership"
    FIND_COORDINATOR = "find_coordinator"
    INIT_PRODUCER_ID = "init_producer_id"
    LIST_OFFSETS = "list_offsets"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"


class Row(IntEnum):
    """Positions in a row.

    A row's entity is the tracker key: the counter that was used, not the rule that applied. `offered` is the amount
    that clients requested, `admitted` the amount that passed. Units are bytes for produce and fetch; for the others
    see `UsageApi`.
    """

    LISTENER = 0
    USER = 1
    CLIENT_ID = 2
    API = 3
    NODE = 4  # upstream broker, -1 where it is not known or does not matter
    REQUESTS = 5
    BYTES_IN = 6
    BYTES_OUT = 7
    OFFERED = 8
    ADMITTED = 9
    MAX_UNITS = 10  # units of the largest request
    REJECTED = 11  # topics of mutations, or connections
    REJECTED_UNITS = 12
    DELAYED = 13  # requests that waited or got a throttle time, each once; connections that had to wait
    THROTTLE_MS = 14  # sum of the throttle times sent
    MUTED_MS = 15  # time of this second in which a throttle muted one of its connections
    QUOTA = 16  # the configured limit, also if only a part of it is in force; null: unlimited
    LEVEL_END = 17  # tokens, or roughly the rate (up to a window too high), at the end; null: not counted
    FLAGS = 18  # `RowFlags`
    # Lines of an older gateway end here.
    # For produce, fetch and request: connections that sent requests in this second; 0: not known. For user_connect:
    # the most connections that were open at once, as of each decision.
    CONNECTIONS = 19
    FIRST_MS = 20  # when the row's first request was counted, in ms since `ts`
    # Lines of some older gateways end here.
    BESIDE = 21  # the parts of `DELAYED` and `THROTTLE_MS` for other limits, rows as in `Beside`; null: none
    # Lines of some older gateways end here.
    IN_FORCE = 22  # the client's share of a capacity while that is below `QUOTA`; 0: `QUOTA` is in force


class Limit(StrEnum):
    """Limits other than the row's quota that make a client wait."""

    GROUP = "group"
    TOPIC = "topic"
    RECORDS = "records"
    CONNECTION_COUNT = "connection_count"  # the count of a user's connections; the row's quota is their rate
    CAPACITY = "capacity"  # the client's share of a capacity, below its quota, or that of all new clients
    BRAKE = "brake"  # the part of that share that a brake leaves
    OVERLOAD = "overload"  # the part of that share that slow brokers leave


class Beside(IntEnum):
    """Positions in a row of `Row.BESIDE`, which has at most `MOST_BESIDE` rows."""

    LIMIT = 0  # `Limit`
    NAME = 1  # name of the group or topic in its quota; the tier; "" for other limits, `OTHER` beyond a cap
    DELAYED = 2
    THROTTLE_MS = 3


MOST_NAMED_BESIDE: Final = 8
MOST_BESIDE: Final = MOST_NAMED_BESIDE + len(Limit)
"""The rows with a name, and one more for each kind of limit."""


class RowFlags(IntFlag):
    """Further facts about a row."""

    CENSORED = 1  # clients were muted: they may have wanted more than `offered`
    OBSERVED = 2  # the quota is only observed: no client waits for it


class Event(IntEnum):
    """Positions in an event: one controller mutation, that is one topic of one request (KIP-599)."""

    OFFSET_MS = 0  # since `ts`; below 0 or above 1000 if the line does not begin or end with its second
    LISTENER = 1
    USER = 2
    CLIENT_ID = 3
    API = 4  # create_topics, create_partitions, delete_topics
    UNITS = 5  # partitions
    STRICT = 6
    ADMITTED = 7
    THROTTLE_MS = 8
    CORRELATION_ID = 9
    ATTEMPT = 10  # 1; higher for one that seems to be a retry of a refused request


STORED: Final = "stored"
"""Stands for the API in the pipeline's tables: bytes of a topic on a broker. `UsageApi` is about clients' use."""


class StoredRow(IntEnum):
    """Positions in a part of a sample: the bytes that a broker stores, topic by topic.

    A sample may be in several lines, one after the other. All its parts have the same first three values.
    """

    CLUSTER = 0  # its id
    NODE = 1  # the broker
    AT = 2  # when the broker answered, s since the epoch; in the hour, and so the day, of the line's `ts`
    TOTAL = 3  # bytes of all topics of the sample, in its last part; null in others
    TOPICS = 4  # [name, bytes] each: all replicas on the broker's disks


class TopicRow(IntEnum):
    """Positions in a row of the field "topics"; the first five are those of `Row`."""

    LISTENER = 0
    USER = 1
    CLIENT_ID = 2
    API = 3
    NODE = 4
    TOPIC = 5  # its name, or its id if the name is not known; `OVERHEAD`, or `OTHER` beyond a cap
    REQUESTS = 6  # requests or responses that contain the topic
    BYTES = 7  # bytes of records as on the wire
    RECORDS = 8  # approximate for a fetch response with more than four batches in a partition
