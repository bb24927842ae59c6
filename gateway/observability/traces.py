"""Traces of mutations, logins and quota changes. Pure. When off, nothing is created.

A `Trace` records one operation: its beginning, its phases and its end. It is passed to a sink once, at its end. Times
are the loop's; the sink converts them to wall time.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

Attribute: TypeAlias = str | int | float | bool

MAX_PHASES: Final = 16
"""The most phases of a trace. In a SASL exchange the client decides how many there are."""


class Phase(NamedTuple):
    """A part of an operation.

    Attributes:
        name: of a closed list, one per kind of operation.
        began_ms, ended_ms: the loop's time.
    """

    name: str
    began_ms: int
    ended_ms: int


class TraceSink(Protocol):
    """Receives operations that have ended."""

    def take(self, trace: Trace, *, now_ms: int) -> None:
        """Receive a trace that has just ended; must be cheap, and must not raise."""


class Trace:
    """One operation.

    Attributes:
        name: the kind of operation, of a closed list.
        began_ms, ended_ms: the loop's time; `ended_ms` is None until the end.
        attributes: by OpenTelemetry's names where they exist; clients may have chosen the texts.
        phases: the phases that have ended.
        failure: why it failed, in the gateway's words; None: it did not.
    """

    __slots__ = ("_phase", "_sink", "attributes", "began_ms", "ended_ms", "failure", "name", "phases")

    def __init__(self, sink: TraceSink, name: str, attributes: dict[str, Attribute], *, now_ms: int) -> None:
        self._sink = sink
        self._phase: tuple[str, int] | None = None
        self.name = name
        self.began_ms = now_ms
        self.ended_ms: int | None = None
        self.attributes = attributes
        self.phases: list[Phase] = []
        self.failure: str | None = None

    def phase(self, name: str | None, *, now_ms: int) -> None:
        """End the current phase and begin this one; None: begin no phase."""
        if self._phase is not None and len(self.phases) < MAX_PHASES:
            self.phases.append(Phase(*self._phase, now_ms))
        self._phase = None if name is None else (name, now_ms)

    def end(self, failure: str | None = None, *, now_ms: int, **attributes: Attribute) -> None:
        """End the operation; a second call changes nothing."""
        if self.ended_ms is not None:
            return
        self.phase(None, now_ms=now_ms)
        self.ended_ms = now_ms
        self.failure = failure
        self.attributes.update({f"sluice.{name}": value for name, value in attributes.items()})
        self._sink.take(self, now_ms=now_ms)


class OpenTraces:
    """The open traces of one connection, which end with it."""

    __slots__ = ("_open", "_sink")

    def __init__(self, sink: TraceSink) -> None:
        self._sink = sink
        self._open: list[Trace] = []

    def begin(self, name: str, attributes: dict[str, Attribute], *, now_ms: int) -> Trace:
        """Begin a trace."""
        self._open = [trace for trace in self._open if trace.ended_ms is None]
        trace = Trace(self._sink, name, attributes, now_ms=now_ms)
        self._open.append(trace)
        return trace

    def connection_ended(self, *, now_ms: int) -> None:
        """End all open traces: no response will arrive."""
        for trace in self._open:
            trace.end("the connection ended", now_ms=now_ms)
        self._open.clear()


class SpanBudget:
    """Bounds the traced operations of each kind per second."""

    def __init__(self, per_second: int) -> None:
        """Args: per_second: operations of one kind."""
        self._per_second = per_second
        self._told: dict[str, tuple[int, int]] = {}

    def take(self, name: str, *, now_ms: int) -> bool:
        """Whether one more operation may be traced.

        Args:
            name: the kind of operation, of a closed list.
            now_ms: the time.
        """
        second = now_ms // 1000
        of_second, told = self._told.get(name, (second, 0))
        if of_second != second:
            told = 0
        if told >= self._per_second:
            return False
        self._told[name] = (second, told + 1)
        return True
