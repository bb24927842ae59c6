"""Brokers: connections to them, which there are, the ports they get here, the own login, PROXY headers out."""
