"""What TLS costs, beside HAProxy with the same key, certificate, library and cipher in the same run.

The load is that of `benchmarks.relay`. It speaks no TLS itself: a second HAProxy, on the load's core, makes TLS of it
for every path alike.
"""
