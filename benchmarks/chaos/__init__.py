"""Random faults against gateways with real brokers."""
