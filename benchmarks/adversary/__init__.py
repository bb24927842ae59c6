"""Random clients against the gateway and a real broker for half an hour; all attacks at once with little memory."""
