"""The same hostile clients at several proxies: what they send (`clients.py`), and the page (`page.py`).

`benchmarks.peers` starts the proxies and measures.
"""
