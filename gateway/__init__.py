"""The gateway server: everything between a client's socket and a broker.

Nouns:
    listener   accepts clients on its ports and admits or refuses them.
    channel    the I/O of one client connection: two transports, one timer, no decisions.
    session    everything that is known and decided about one client connection. Pure: bytes and `now_ms` in,
               chunks, mute reasons and a next deadline out.
    handler    what is done with the requests of one API family.
    upstream   a broker of the cluster behind the gateway, and the connection to it.
    exchange   one request that is answered or changed here, from its arrival to its reply.

A package imports only what is below it: app and cli; server; net, handlers; quota_admin, upstream; tls, session;
auth; usage, observability; runtime. Session, auth and handlers know no asyncio.
"""
