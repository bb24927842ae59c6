"""The HTTP session of OpenTelemetry's exporters: bounds the size and time of a collector's response."""

from __future__ import annotations

import time
from typing import Any, Final

import requests

_MOST_BYTES: Final = 16_384
_MOST_S: Final = 10.0


class BoundedSession(requests.Session):
    """Cuts response bodies that are too long or too slow. The library would read them to their end."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """See `requests.Session`."""
        response = super().send(request, **kwargs | {"stream": True})
        body = bytearray()
        ends_s = time.monotonic() + _MOST_S
        # Byte by byte: a larger read would wait until all of it has arrived.
        for byte in response.iter_content(1):
            body += byte
            if len(body) >= _MOST_BYTES or time.monotonic() >= ends_s:
                break
        response._content = bytes(body)
        response.close()
        return response
