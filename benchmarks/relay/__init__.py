"""The cost of the relay, compared with HAProxy in TCP mode and a bare epoll relay in one run.

The load (``native/load.c``) and the broker behind it (``native/null_broker.c``) share one core; the proxy under test
has the other. The paths take turns within each round, so that a slow minute of the machine affects all of them. The
main numbers are CPU seconds of the proxy's process, which hardly depend on other programs' load. Throughput is
recorded and not compared.
"""
