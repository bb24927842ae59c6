"""Quotas that outlive the gateway: the interface of the store, what keeps it, and its place in a running gateway."""
