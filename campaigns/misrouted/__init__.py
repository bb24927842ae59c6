"""Java clients of Kafka 4.4 that reach a wrong broker: how soon they recover, and which node's data they get."""
