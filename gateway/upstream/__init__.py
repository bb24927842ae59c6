"""Brokers: connections to them, discovery, their ports here, the gateway's login, PROXY headers out."""
