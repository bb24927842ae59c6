"""Random clients that attack a real gateway with a real broker, and the rules that must hold afterwards.

A *script* is the behaviour of one client, made from a seed: connections, requests, disconnects, pauses. It is
*played* under a quota entity that no other script has. Then the broker itself reports what the client got, and a
*verdict* compares this with the quota's formula. A script that got more is *shrunk*: steps are removed while it still
gets more.

`benchmarks/adversary` plays it for thirty minutes.
"""
