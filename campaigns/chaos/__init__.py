"""Random faults against gateways with real brokers; the rules are checked after each round.

`schedule` is pure: the same seed gives the same faults. `gateways` runs the processes, `clients` are the load,
`campaign` plays the rounds and checks them.
"""
