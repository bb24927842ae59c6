"""How much each client may use, and how long it waits: numbers and ``now_ms`` in, a throttle time out.

The terms:

* **quota entity** (`entities`): the subject of a quota: a user, a client id, both, an address, a topic or a group.
  All but groups are given by name or as ``DEFAULT``.
* **limits** (`limits`): every configured quota and the version number of that set.
* **match** (`resolution`): the level of KIP-55 that applies to one client, and the **tracker key**. A client's use is
  counted by its tracker key and not by the configured entity.
* **meters** (`rate`, `token_bucket`): how much was used, over which time.
* **families** (`rate_quotas`, `mutations`, `connections`): byte rates and request time, controller mutations, and
  connections. They join the above.

Rule: nothing here knows asyncio, sockets, a clock or a log. Time is the argument ``now_ms``, integer
milliseconds of any clock that does not go back. Being throttled is a value, never an exception.
"""
