"""TLS between a socket and its protocol; knows no channel."""
