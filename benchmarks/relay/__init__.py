"""What the relay costs, beside HAProxy in TCP mode and a bare epoll relay, measured in one run.

The load (``native/load.c``) and the broker behind it (``native/null_broker.c``) share one core; the proxy under test
has the other. The paths take turns within each round, so that a slow minute of the machine hits all of them. The
headline numbers are CPU seconds of the proxy's process, which hardly depend on who else starves whom for a
core; throughput is recorded and not compared.
"""
