"""Producers without idempotence during faults of brokers and gateways, with Sluice and without it."""
