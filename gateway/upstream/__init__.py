"""Brokers: connections to them, discovery, the ports they get here, the gateway's login, PROXY headers out."""
