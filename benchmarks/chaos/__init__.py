"""Faults at random against gateways with real brokers."""
