"""The same hostile clients against several proxies: the clients (`clients.py`) and the page (`page.py`).

`benchmarks.peers` starts the proxies and measures.
"""
