"""Storms of Metadata and of commits before a real Kafka, against limits per API."""
