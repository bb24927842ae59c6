"""Quotas of a cluster or a gateway by Kafka's own APIs, for `sluice quotas` and for the pipeline's plans."""
