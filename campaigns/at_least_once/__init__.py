"""Producers without idempotence through faults of brokers and gateways, beside the same producers without Sluice."""
