"""The cost of TLS, compared with HAProxy with the same key, certificate, library and cipher in the same run.

The load is that of `benchmarks.relay`. It does not support TLS: for every path a second HAProxy, on the load's core,
adds TLS.
"""
