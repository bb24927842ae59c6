"""Short campaigns of one gateway process before scripted brokers: each prints what it counted; 1 for a miss.

They count and measure memory and CPU. None of them judges a latency, so they also run on a busy machine.
"""
