"""The whole gateway in one seeded process, and laws that hold in every run (docs/testing.md).

A *world* has a clock, a queue of events and dice. Each *process* of the world has its own event loop. Its clock is
the world's clock plus the CPU time that it has used. The *network* consists of simulated sockets. The gateway's own
code runs on them. Only code that reads a clock, starts a thread or forks is replaced. Brokers and clients are
models.

A *plan* holds all that a seed decides. It is data, so a plan that fails can be made smaller and pasted into a test.
"""
