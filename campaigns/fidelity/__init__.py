"""Compares a replay of the quotas in force with the gateway's real behaviour."""
