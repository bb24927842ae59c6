"""Brokers: connections to them, discovery, their ports on the gateway, the gateway's login, PROXY headers."""
