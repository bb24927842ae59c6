"""A real Apache Kafka as one small program: for tests, benchmarks and a first run.

* `kafka.KafkaCluster` starts and stops one or three brokers (KRaft, each node broker and controller).
* `tools.run_tool` runs one of Kafka's own command line tools.
* `jars` fetches the jars once and says how to start a JVM with them.
* `keeper` is the process between us and a broker, so that no broker outlives its parent.
* `probe` asks a broker whether a client could create a topic now.

Synchronous and standard library only: callers with an event loop start a cluster in a thread. Nothing
here is on a request's path, and the gateway runs without it when it is given an upstream.
"""
