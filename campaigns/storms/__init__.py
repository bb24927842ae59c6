"""Storms of Metadata requests and of commits, limited per API, with a real Kafka."""
