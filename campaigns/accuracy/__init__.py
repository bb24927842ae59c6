"""How exactly byte-rate quotas hold: real clients, real brokers, the gateway's quota beside Kafka's own."""
