"""Short campaigns of one gateway process with scripted brokers. Each prints its counts; exit code 1 for a miss.

They count and measure memory and CPU. None of them judges a latency, so they also run on a busy machine.
"""
