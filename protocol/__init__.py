"""Kafka's bytes and their meaning. Pure: no clock, no socket, no quota.

Nouns:
    frame     a 4-byte big-endian size and that many bytes; a request or a response.
    head      the first bytes of a request frame: size, api key, api version, correlation id, client id.
    place     where inside a response frame a field lives (`throttle.py`).
    slice     the untouched bytes of one array element, kept so that it can be sent on as it came.

Functions read at an offset, `(buffer, at) -> (value, next)`, and raise only `ProtocolError`.
Responses that carry broker addresses are rewritten around the bytes that do not change; messages that are
taken apart whole (the gateway's own questions to the cluster) go through `codec.py`.
"""
