"""Faults at random against gateways with real brokers; what must hold is checked after each round.

`schedule` is pure: a seed gives the faults, and gives them again. `gateways` runs the processes, `clients` are the
load, `campaign` plays the rounds and checks them.
"""
