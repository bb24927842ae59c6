"""How exactly byte-rate quotas hold: real clients and brokers, with the gateway's quota and with Kafka's own."""
