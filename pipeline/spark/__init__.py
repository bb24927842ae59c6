"""Spark as all jobs use it: the session's settings, and the Kafka connector that Spark does not bring."""
