"""An adversary that searches: random clients against a real gateway and a real broker, and what must hold afterwards.

A *script* is one client's life: connections, requests, cuts, pauses, made from a seed. It is *played* under a quota
entity that no other script has. The broker itself then says what the client got, and a *verdict* compares it with
the quota's formula. A script that got more is *shrunk*: steps are left out while it still does.

`benchmarks/adversary` plays it for thirty minutes.
"""
