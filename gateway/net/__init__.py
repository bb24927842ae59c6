"""Clients' sockets and timers: accepting, listeners, channels, slow and gone peers, PROXY headers."""
