"""Three teams that share a capacity (docs/how-to/share-a-cluster.md), with real clients and a real Kafka."""
