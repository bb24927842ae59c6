"""Usage shared between the members of a fleet: gateways through a topic, workers through their supervisor.

`shares.py` is the message, `exchange.py` what is told and what is made of it, `peers.py` which messages count: these
three and `counters.py` are pure. See docs/decisions/0022-one-quota-over-a-fleet.md.
"""
