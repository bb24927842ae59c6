"""Real faults that make the shipped alerts fire: with a real Prometheus, real gateways and a real Kafka."""
