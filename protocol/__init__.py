"""Kafka's bytes and their meaning. Pure: no clock, no socket, no quota.

Terms:
    frame     a 4-byte big-endian size and that many bytes; a request or a response.
    head      the first bytes of a request frame: size, api key, api version, correlation id, client id.
    place     the position of a field in a response frame (`throttle.py`).
    slice     the unchanged bytes of one array element, kept so that it can be forwarded as it arrived.

Functions read at an offset, `(buffer, at) -> (value, next)`, and raise only `ProtocolError`. Responses with broker
addresses are rewritten, and all other bytes are copied unchanged. The gateway's own requests to the cluster are
encoded and decoded as a whole by `codec.py`.
"""
