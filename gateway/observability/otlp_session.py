"""The HTTP session of OpenTelemetry's exporters: reads no more of an answer than a collector has to say."""

from __future__ import annotations

import time
from typing import Any, Final

import requests

_MOST_BYTES: Final = 16_384
_MOST_S: Final = 10.0


class BoundedSession(requests.Session):
    """Cuts bodies that are longer, or take longer. The library would read them to their end, which may never come."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """See `requests.Session`."""
        response = super().send(request, **kwargs | {"stream": True})
        body = bytearray()
        ends_s = time.monotonic() + _MOST_S
        # One by one: a read of more would wait for all of it.
        for byte in response.iter_content(1):
            body += byte
            if len(body) >= _MOST_BYTES or time.monotonic() >= ends_s:
                break
        response._content = bytes(body)
        response.close()
        return response
