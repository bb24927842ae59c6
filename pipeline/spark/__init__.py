"""Spark for all jobs: the session's settings, and the Kafka connector."""
