"""Compares what the cluster carries with what clients need: shares, over-commitment, and when it is full."""
