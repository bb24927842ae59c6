"""The layout of a usage record: the gateway writes one per second, the pipeline reads them.

One JSON object per line and second, with short rows instead of an object for each client: positions are the
fields below. A line is written for a second in which nothing happened too, so that a gap in `seq` means loss and
nothing else.

    {"v":1,"gw":"a","boot":1700000000000,"seq":7,"ts":1700000060,"dur_ms":1000,"algo":"token_bucket",
     "scope":"gateway","rows":[[...], ...],"events":[[...], ...],"dropped_rows":0,"dropped_events":0}

(gw, boot, seq) names a line: the gateway, when it was started (ms since the epoch) and a number that grows by one
with each line since then. `ts` is the second it covers (s since the epoch, UTC), `dur_ms` the time it really covers.
Where the wall clock was set meanwhile, `jump_ms` says by how much; otherwise there is no such field. Beyond a cap of
rows all further clients of a second share the rows `~other`; `dropped_rows` says how many. `dropped_events`
are missing: there were more than fit into the line.

`scope` says what one counter of byte rates, request time and mutations covers (`[client_quota] scope`): "gateway",
"broker", or "fleet:" and the fleet's name: gateways with the same name share their counters. Connections are always
counted by each gateway. Lines of an older gateway do not have the field, nor have those that a member of a fleet
wrote before it knew its cluster.

Where topics are metered there is one more field, "topics": rows as `TopicRow` says, for each topic of a client and
API (produce, fetch). Their bytes add up to those of the client's rows, which know nothing of them: readers that do
not know the field lose nothing else. A topic whose id has no name yet may come up to five lines after its client.

Where the gateway asks brokers what they store there is the field "stored" in some lines: parts of samples as
`StoredRow` says. They are about topics and brokers, and no rows of clients.
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
"""The broker setting by which a gateway says what one counter covers: fleet, gateway or broker."""

OVERHEAD: Final = ""
"""Name of the topic row of what stands around records: heads, names of topics, sizes, empty answers."""


HASHED: Final = "#"
"""What a hashed name begins with."""

_DIGEST_CHARS: Final = 16


def plain_name(name: str) -> str:
    """A user, client id or address as records have it where names are plain."""
    # Half of a surrogate pair is no text that JSON readers must take (hazard I14).
    return cut_name(name).encode("utf-8", "replace").decode()


def hashed_name(name: str, salt: bytes) -> str:
    """The same where names are hashed with this salt."""
    digest = hmac.new(salt, name.encode("utf-8", "surrogatepass"), hashlib.sha256)
    return HASHED + digest.hexdigest()[:_DIGEST_CHARS]


class UsageApi(StrEnum):
    """What a row counts."""

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

    The entity of a row is the tracker key: whose counter was used, not which rule applied. `offered` is what clients
    asked for, `admitted` what passed; units are bytes for produce and fetch, and see `UsageApi`.
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
    MAX_UNITS = 10  # of the largest request
    REJECTED = 11  # topics of mutations, or connections
    REJECTED_UNITS = 12
    DELAYED = 13  # requests that waited or got a throttle time, each once; connections that had to wait
    THROTTLE_MS = 14  # sum of what was issued
    MUTED_MS = 15  # time of this second in which a connection of its was muted by a throttle
    QUOTA = 16  # the configured limit, also where a part of it is in force; null: unlimited
    LEVEL_END = 17  # tokens, or roughly the rate (up to a window too high), at the end; null: not counted
    FLAGS = 18  # `RowFlags`
    # Lines of an older gateway end here.
    # Of produce, fetch and request: that made requests in this second; 0: not known. Of user_connect: the most that
    # were open at once, as of each decision.
    CONNECTIONS = 19
    FIRST_MS = 20  # when the first request of these was counted, since `ts`
    # Here, too.
    BESIDE = 21  # of `DELAYED` and `THROTTLE_MS`, what other limits asked for: rows as `Beside` says; null: nothing
    # Here, too.
    IN_FORCE = (
        22  # in place of `QUOTA`, while the client has a share of a capacity that is less; 0: `QUOTA` is
    )


class Limit(StrEnum):
    """What makes a client wait besides the quota of its row."""

    GROUP = "group"
    TOPIC = "topic"
    RECORDS = "records"
    CONNECTION_COUNT = "connection_count"  # of a user; what the row's quota limits is the rate
    CAPACITY = "capacity"  # its share of it, below its quota, or what new clients share
    BRAKE = "brake"  # what a brake leaves of that
    OVERLOAD = "overload"  # what slow brokers leave of that


class Beside(IntEnum):
    """Positions in a row of `Row.BESIDE`; of one row there are at most `MOST_BESIDE`."""

    LIMIT = 0  # `Limit`
    NAME = 1  # of the group or topic, as its quota has it; the tier; "" for others, `OTHER` beyond a cap
    DELAYED = 2
    THROTTLE_MS = 3


MOST_NAMED_BESIDE: Final = 8
MOST_BESIDE: Final = MOST_NAMED_BESIDE + len(Limit)
"""Those with a name, and one more of each kind of limit."""


class RowFlags(IntFlag):
    """What else is true of a row."""

    CENSORED = 1  # clients were muted: they may have wanted more than `offered`
    OBSERVED = 2  # the quota is only watched: no client waits for it


class Event(IntEnum):
    """Positions in an event: one controller mutation, that is one topic of one request (KIP-599)."""

    OFFSET_MS = (
        0  # since `ts`; below 0 or above 1000 where the line's time does not begin or end with its second
    )
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
"""In place of an API in the pipeline's tables: bytes of a topic on a broker. `UsageApi` is what clients use."""


class StoredRow(IntEnum):
    """Positions in a part of a sample: what a broker stores, topic by topic.

    A sample may be in several lines, one after the other. All its parts have the same first three values.
    """

    CLUSTER = 0  # its id
    NODE = 1  # the broker
    AT = 2  # when it answered, s since the epoch; in the hour, and so the day, of the line's `ts`
    TOTAL = 3  # bytes of all topics of the sample, in its last part; null in others
    TOPICS = 4  # [name, bytes] each: all replicas on the broker's disks


class TopicRow(IntEnum):
    """Positions in a row of the field "topics"; the first five are those of `Row`."""

    LISTENER = 0
    USER = 1
    CLIENT_ID = 2
    API = 3
    NODE = 4
    TOPIC = 5  # its name; its id where no name became known; `OVERHEAD`, or `OTHER` beyond a cap
    REQUESTS = 6  # or answers, that hold the topic
    BYTES = 7  # of records, as they are on the wire
    RECORDS = 8  # of a fetch about, where a partition has more than four batches in an answer
