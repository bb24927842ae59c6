"""The cost of traces: switched off compared with code without traces, and on while the collector is unreachable.

    python -m benchmarks.traces [--exchanges 25] [--rounds 300] [--write]

The three kinds of sessions serve the same frames, in turns of some milliseconds. The best turn of each counts,
because other programs only ever make a turn slower. The figure is the CPU time of the loop's thread. The code without
traces is the module's own source with every statement about traces removed. Goals: switched off, traces cost at most
2 percent of a mutation; a Produce costs the same with traces on and off.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import logging
import platform
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import keep_results
from gateway.handlers import mutation_exchange, topic_mutations
from gateway.observability.otlp import OtlpTraces
from gateway.observability.traces import TraceSink
from gateway.session.session import ClientSession
from testkit import wire
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation, frames_of
from testkit.core import GatewayCore
from testkit.frames import creatable, produce, produce_reply

RESULTS: Final = Path(__file__).with_name("results")
GOAL: Final = 1.02
_AWAY: Final = "http://127.0.0.1:9/v1/traces"
_REQUEST: Final = wire.request(
    "CreateTopics", 7, correlation_id=1, topics=creatable(("a", 3)), timeout_ms=1_000, validate_only=True
)


class _WithoutTraces(ast.NodeTransformer):
    """Removes the statements that exist only for traces."""

    taken = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if node.name.endswith("_trace") else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if "_trace" in ast.unparse(node.test):
            self.taken += 1
            return None
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if "_trace(" in ast.unparse(node):
            self.taken += 1
            return None
        return self.generic_visit(node)


def _exchange_without_traces() -> type[Any]:
    out = _WithoutTraces()
    tree = ast.fix_missing_locations(out.visit(ast.parse(inspect.getsource(mutation_exchange))))
    assert out.taken >= 5, "the statements about traces are not found any more"
    module = types.ModuleType("mutation_exchange_without_traces")
    sys.modules[module.__name__] = module
    exec(compile(tree, module.__name__, "exec"), module.__dict__)
    found: type[Any] = module.MutationExchange
    return found


def _answers() -> tuple[bytes, list[bytes]]:
    """The cluster's answers to the requests of one exchange, in order; the same in each exchange."""
    c = Conversation(controller_mutation_rate=1e9, cluster=ScriptedCluster())
    c.client_sends(_REQUEST)
    answers = []
    while asked := list(frames_of(c.take_upstream())):
        answers += [answer for frame in asked if (answer := c.cluster.answer(frame)) is not None]
        c.upstream_answers(answers[-1])
    return c.take_client(), answers


class _Mutations:
    """Sessions that serve CreateTopics one after the other. The requests change nothing, so that all are alike."""

    def __init__(self, traces: TraceSink | None, exchange: type[Any]) -> None:
        self._core = GatewayCore(controller_mutation_rate=1e9, traces=traces)
        self._exchange = exchange
        self._reply, self._answers = _answers()

    def __call__(self, count: int) -> float:
        topic_mutations.MutationExchange = self._exchange  # type: ignore[misc]
        session = self._core.new_session()
        now_ms = self._core.clock.now_ms
        began = time.thread_time()
        for _ in range(count):
            _serve(session, now_ms, self._answers)
        spent = time.thread_time() - began
        assert session.to_client[-1] == self._reply
        assert len(session.to_client) == count
        return spent


def _serve(session: ClientSession, now_ms: int, answers: list[bytes]) -> None:
    session.receive_from_client(_REQUEST, now_ms=now_ms)
    for answer in answers:
        session.to_upstream.clear()
        session.receive_from_upstream(answer, now_ms=now_ms)


class Produces:
    """Sessions that relay one small Produce after the other, with a quota."""

    def __init__(self, traces: TraceSink | None) -> None:
        self._core = GatewayCore(producer_byte_rate=1e12, traces=traces)
        self._request, self._reply = produce(1), produce_reply(1)

    def __call__(self, count: int) -> float:
        session = self._core.new_session()
        now_ms = self._core.clock.now_ms
        session.receive_from_client(self._request, now_ms=now_ms)
        session.receive_from_upstream(self._reply, now_ms=now_ms)
        began = time.thread_time()
        for _ in range(count):
            assert session.relay_request(self._request, now_ms=now_ms)
            if not session.relay_reply(self._reply, now_ms=now_ms):
                session.receive_from_upstream(self._reply, now_ms=now_ms)
            session.to_client.clear()
        return time.thread_time() - began


def main() -> int:
    """Run the benchmark and print a table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="What traces cost.")
    parser.add_argument("--exchanges", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--write", action="store_true", help="keep the results")
    options = parser.parse_args()
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the collector is unreachable on purpose
    with_traces = mutation_exchange.MutationExchange
    sink = OtlpTraces(_AWAY, max_spans_per_second=1_000_000, max_queued_spans=100_000, resource={})
    limited = OtlpTraces(_AWAY, max_spans_per_second=100, max_queued_spans=2_048, resource={})
    runs: dict[str, Callable[[int], float]] = {
        "mutation, without the code for traces": _Mutations(None, _exchange_without_traces()),
        "mutation, traces off": _Mutations(None, with_traces),
        "mutation, traces on, at their bound per second": _Mutations(limited, with_traces),
        "mutation, traces on, each reported": _Mutations(sink, with_traces),
        "Produce, traces off": Produces(None),
        "Produce, traces on": Produces(sink),
    }
    best = dict.fromkeys(runs, float("inf"))
    for at in range(options.rounds):
        for name, run in runs.items() if at % 2 else reversed(runs.items()):
            count = options.exchanges * (5 if name.startswith("Produce") else 1)
            best[name] = min(best[name], run(count) / count * 1e6)
    bases = {"mutation": "mutation, without the code for traces", "Produce": "Produce, traces off"}
    rows = [
        {"what": name, "us": round(us, 2), "ratio": round(us / best[bases[name.split(",")[0]]], 3)}
        for name, us in best.items()
    ]
    for row in rows:
        print(f"{row['what']:<50} {row['us']:>8.2f} us  {row['ratio']:.3f}")
    missed = [name for name in ("mutation, traces off", "Produce, traces on") if _ratio(rows, name) > GOAL]
    if options.write:
        keep_results({"python": platform.python_version(), "rows": rows}, _page(rows), RESULTS, "traces")
    print(f"missed: {missed}" if missed else f"goals kept: at most {GOAL}")
    return int(bool(missed))


def _ratio(rows: list[dict[str, Any]], name: str) -> float:
    return next(float(row["ratio"]) for row in rows if row["what"] == name)


def _page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# What traces cost",
        "",
        "Time of the loop's thread for one CreateTopics with its questions to the cluster, and for one small Produce",
        "with a quota; best turn of each (`python -m benchmarks.traces --write`). The ratio is to the first row of",
        "each kind. With traces on, the collector is away.",
        "",
        "| What | us | ratio |",
        "|---|---|---|",
        *(f"| {row['what']} | {row['us']} | {row['ratio']} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
