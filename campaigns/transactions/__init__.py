"""Transactions during restarts of gateways and brokers, checked against the outcomes that their clients know."""
