"""The shipped alerts, made to fire by real faults: a real Prometheus, real gateways, a real Kafka."""
