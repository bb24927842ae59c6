"""Transactions through restarts of gateways and brokers, checked against what their clients know of each."""
