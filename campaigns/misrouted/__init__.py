"""Java clients of Kafka 4.4 that end up at another broker: how soon they recover, and whose data they get."""
