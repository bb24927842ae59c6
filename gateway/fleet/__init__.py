"""Usage shared between the members of a fleet: gateways through a topic, workers through their supervisor.

`shares.py` is the message, `exchange.py` what is sent and how it is used, `peers.py` which messages count: these
three and `counters.py` are pure. See docs/decisions/0022-one-quota-over-a-fleet.md.
"""
