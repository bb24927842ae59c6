"""The compiled core beside the sources: both get the same bytes, and must do the same with them.

`one_core` takes numbers, the seeds, and says for each what happened: bytes to each side, mutes, times, causes,
counters and usage records of conversations, values and errors of parsers, what TLS made of records. `__main__` runs
it twice, once for each core, and compares. Nothing in it looks at a clock, or at an order that a process chooses.
"""
