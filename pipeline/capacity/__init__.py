"""What the cluster carries against what clients need: shares, over-commitment, and when it is full."""
