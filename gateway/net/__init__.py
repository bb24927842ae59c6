"""Clients' sockets and timers: accepting, listeners, channels, detectors of slow and gone peers, PROXY headers in."""
