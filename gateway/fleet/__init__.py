"""Usage shared between the members of a fleet: gateways through a topic, workers through their supervisor.

`shares.py` is the message format, `exchange.py` decides what to send and how to use it, and `peers.py` decides which
messages count. These three and `counters.py` are pure. See docs/decisions/0022-one-quota-over-a-fleet.md.
"""
