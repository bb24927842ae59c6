"""Clients that must not notice an upgrade: new connections at a rate, each with one request."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from struct import unpack
from typing import Self

from testkit import wire

_REQUEST = wire.request("ApiVersions", 2, correlation_id=1, client_id="newcomer")
_WITHIN_S = 20.0


class Newcomers:
    """Connects at a rate, sends one request each, and closes; until `stop`, or the end of a `with`.

    Attributes:
        outcomes: numbers of connections: answered, refused, reset (or closed instead of an answer), silent.
    """

    def __init__(self, address: tuple[str, int], *, per_s: float, threads: int = 8) -> None:
        """Starts the threads.

        Args:
            address: of the gateway.
            per_s: connections per second of all threads together.
            threads: the number of threads, which take turns.
        """
        self.outcomes: Counter[str] = Counter()
        self._address = address
        self._pause_s = threads / per_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n / per_s,)) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self) -> Counter[str]:
        """Ends the threads. Returns all outcomes."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.outcomes

    def _run(self, offset_s: float) -> None:
        due_s = time.monotonic() + offset_s
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            # After a time on a busy machine there is no burst to catch up.
            due_s = max(due_s + self._pause_s, time.monotonic() - self._pause_s)
            outcome = self._once()
            with self._lock:
                self.outcomes[outcome] += 1

    def _once(self) -> str:
        try:
            sock = socket.create_connection(self._address, timeout=_WITHIN_S)
        except ConnectionRefusedError:
            return "refused"
        except OSError:
            return "not connected"
        with sock:
            try:
                sock.sendall(_REQUEST)
                answer = b""
                while len(answer) < 4 or len(answer) < 4 + unpack(">i", answer[:4])[0]:
                    piece = sock.recv(65536)
                    if not piece:
                        return "reset"
                    answer += piece
            except TimeoutError:
                return "silent"
            except OSError:
                return "reset"
        return "answered"
