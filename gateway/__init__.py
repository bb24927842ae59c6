"""The gateway server.

Nouns:
    listener   accepts clients on one port and decides who may come in.
    channel    the I/O of one client connection: two transports, one timer, no decisions.
    session    everything that is known and decided about one client connection. Pure: bytes and `now_ms` in,
               chunks, mute reasons and a next deadline out.
    handler    what is done with the requests of one API family.
    upstream   a broker of the cluster behind the gateway, and the connection to it.
    exchange   one request that is answered or changed here, from its accepted to its reply.

asyncio lives in app, listener, channel, upstream, discovery and admin only.
"""
