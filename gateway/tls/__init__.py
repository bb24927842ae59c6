"""TLS between a socket and its protocol: contexts, handshakes, their rate."""
