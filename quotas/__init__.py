"""How much each client may use, and how long it waits: numbers and ``now_ms`` in, a throttle time out.

The nouns:

* **quota entity** (`entities`): what a quota is set for - a user, a client id, both, or an address,
  each by name or as ``DEFAULT``.
* **limits** (`limits`): every configured quota and the version number of that set.
* **match** (`resolution`): which of the eight levels of KIP-55 applies to one client, and the
  **tracker key**, which is what its use is counted by (not the configured entity).
* **meters** (`rate`, `token_bucket`): how much was used, over which time.
* **families** (`mutations`, `bandwidth`, `request_time`, `connections`): one file each, joining the above.

Rule: nothing here knows asyncio, sockets, a clock or a log. Time is the argument ``now_ms``, integer
milliseconds of any clock that does not go back. Being throttled is a value, never an exception.
"""
