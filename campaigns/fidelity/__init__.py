"""Compares what a replay says about quotas in force with what the gateway did."""
