"""Moto's server. It lists its own folder at each request, which takes a third of its time: here it does so once."""

from __future__ import annotations

import sys
from typing import Any

from moto import backends, server

if __name__ == "__main__":
    _modules = tuple(backends.list_of_moto_modules())
    _backends: Any = backends
    _backends.list_of_moto_modules = lambda: _modules
    server.main(sys.argv[1:])
