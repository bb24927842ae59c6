"""The page of the matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from campaigns.matrix.cells import LACKS, Cell, Verdict
from campaigns.matrix.clients import STEPS

_MARKS: Final = {
    Verdict.WORKS: "yes",
    Verdict.LACKS: "-",
    Verdict.NEITHER: "no",
    Verdict.FAILS_THROUGH: "**FAILS THROUGH**",
    Verdict.ONLY_THROUGH: "only through",
    Verdict.BY_CHANCE: "by chance",
}
_REASON_CHARS: Final = 170
_HEAD: Final = """\
# Brokers and clients of many versions

Each client does the same steps directly at a broker and through the gateway before that broker. `make campaigns
ONLY=matrix` runs all of it; the campaign fails if a step works directly and fails through the gateway, or if an
address behind the gateway reaches a client.

"""
_JUDGES: Final = """\
Kafka publishes its tests as jars. Tests that ask a `ClusterInstance` run as they are: they get one that knows an
address. Directly and through the gateway the same must pass. A test that looks inside the process of a broker, or
wants a cluster of other settings, fails on both sides.

| Kafka's test | How it is run |
|---|---|
| the classes below | as they are |
| ControllerMutationQuotaTest (core) | rewritten: `tests/integration/test_kip599.py` |
| RequestQuotaTest (core), request_quota_test | rewritten: `tests/integration/test_request_quota.py`. The original \
reads metrics inside the broker |
| quota_test (system test) | rewritten: entities in `tests/integration/test_precedence.py`, rates in the campaign \
`accuracy`. The original needs ducktape and a machine for each process |

"""
_LEGEND: Final = """\
"yes" works directly and through the gateway. "no" fails directly, and through the gateway too. "-" means that the
client has no such function. "only through" fails directly, and works through the gateway. "by chance"
works now and then, directly too.

| Step | What the client does |
|---|---|
| admin | creates a topic, changes its settings, adds partitions, describes it, lists groups, deletes it |
| produce | writes 20 records into two partitions, with acks of all replicas |
| consume | reads them without a group |
| classic | reads them as a member of a group of the classic protocol, commits, and reads what it committed |
| consumer | the same with the consumer protocol (KIP-848) |
| share | reads them as a member of a share group (KIP-932) |
| streams-classic | an application of Kafka Streams repartitions and counts them, with the classic protocol |
| streams | the same with the streams protocol (KIP-1071) |
| transactions | reads them and writes them in a transaction with its offsets, aborts one, commits one; a reader \
finds the committed records alone |
| quotas | Java: the kafka-configs of that version sets a quota of a client id, a user and an address, a producer is \
throttled by it, and the tool removes them. Others: the client sets, describes and removes a quota |

"""


def page(document: Mapping[str, Any]) -> str:
    """The page.

    Args:
        document: the results of `benchmarks.matrix`.
    """
    cells = [Cell(**row) for row in document["rows"]]
    parts = [_HEAD, f"{summary(cells, document['leaks'])}\n\n", _runs(document), _LEGEND]
    for broker in dict.fromkeys(cell.broker for cell in cells):
        parts.append(_broker_table(broker, [cell for cell in cells if cell.broker == broker]))
    parts += [_failures(cells), _not_directly(cells), _unavailable(document["unavailable"])]
    parts += [_mixed(document["mixed"]), _judges(document["judges"])]
    return "".join(parts)


def summary(cells: Sequence[Cell], leaks: Sequence[str]) -> str:
    """One line with the number of each verdict."""
    counts = {verdict: sum(cell.verdict is verdict for cell in cells) for verdict in Verdict}
    pairs = len({(cell.broker, cell.client) for cell in cells})
    return (
        f"**{pairs} pairs of a broker and a client, {len(cells)} steps: {counts[Verdict.WORKS]} work directly and "
        f"through the gateway, {counts[Verdict.FAILS_THROUGH]} work directly and fail through, "
        f"{counts[Verdict.NEITHER]} fail directly too, {counts[Verdict.ONLY_THROUGH]} work only through, "
        f"{counts[Verdict.BY_CHANCE]} by chance, {counts[Verdict.LACKS]} the client lacks; "
        f"{len(leaks)} addresses behind the gateway reached a client**"
    )


def _runs(document: Mapping[str, Any]) -> str:
    rows = "".join(f"| {broker} | {date} |\n" for broker, date in document["dates"].items())
    machine = document["machine"]
    described = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    return f"{described}\n\n| Broker | Run |\n|---|---|\n{rows}\n"


def _broker_table(broker: str, cells: Iterable[Cell]) -> str:
    by_client: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        by_client.setdefault(cell.client, {})[cell.step] = cell
    lines = [f"## Broker {broker}\n", f"| Client | {' | '.join(STEPS)} |", "|---" * (1 + len(STEPS)) + "|"]
    for client, steps in by_client.items():
        marks = (_MARKS[steps[step].verdict] if step in steps else "" for step in STEPS)
        lines.append(f"| {client} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n\n"


def _failures(cells: Iterable[Cell]) -> str:
    rows = [
        f"| {cell.broker} | {cell.client} | {cell.step} | {_reason(cell.through)} |"
        for cell in cells
        if cell.verdict is Verdict.FAILS_THROUGH
    ]
    if not rows:
        return ""
    head = "## Works directly, fails through\n\n| Broker | Client | Step | Through the gateway |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n\n"


def _not_directly(cells: Iterable[Cell]) -> str:
    """Steps that fail directly, by client and reason, with their brokers."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        if cell.verdict in (Verdict.NEITHER, Verdict.ONLY_THROUGH):
            found.setdefault((cell.client, cell.step, _reason(cell.direct)), []).append(cell.broker)
    if not found:
        return ""
    head = "## What fails directly\n\n| Client | Step | Brokers | Directly |\n|---|---|---|---|\n"
    rows = (
        f"| {client} | {step} | {', '.join(brokers)} | {reason} |"
        for (client, step, reason), brokers in found.items()
    )
    return head + "\n".join(rows) + "\n\n"


def _reason(outcome: str) -> str:
    if outcome == LACKS:
        return "has no such function"
    text = outcome.removeprefix("failed ").replace("|", "/")
    return text if len(text) <= _REASON_CHARS else f"{text[:_REASON_CHARS]} ..."


def _unavailable(unavailable: Mapping[str, str]) -> str:
    if not unavailable:
        return ""
    rows = "".join(f"| {client} | {_reason(why)} |\n" for client, why in unavailable.items())
    return f"## What could not be had\n\n| Client | Why |\n|---|---|\n{rows}\n"


def _mixed(mixed: Iterable[Mapping[str, Any]]) -> str:
    parts = []
    for upgrade in mixed:
        lines = [
            f"## Rolling upgrade from {upgrade['older']} to {upgrade['newer']}\n",
            "Three brokers. A producer and a reader of a group run all the time through the gateway.\n",
            "| Stage | Ports asked | APIs compared | Offered beyond the broker | metadata.version |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {stage['stage']} | {stage['ports']} | {stage['compared']} | {len(stage['beyond'])} "
            f"| {stage['metadata_version']} |"
            for stage in upgrade["stages"]
        ]
        lines.append(
            f"\n{upgrade['acknowledged']} records were acknowledged, {upgrade['missing']} of them are missing, "
            f"{upgrade['twice']} are there twice, {upgrade['unread']} were not read by the group.\n"
        )
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


def _judges(judges: Mapping[str, Any]) -> str:
    """Kafka's own tests: counts by class, and each test that does not pass on both sides."""
    if not judges["rows"]:
        return ""
    cells = [Cell(**row) for row in judges["rows"]]
    lines = [
        f"## Kafka's own tests, of {judges['version']}\n",
        _JUDGES,
        "| Class | Tests | Pass on both sides | Fail on both sides | Pass directly, fail through |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(cell.client for cell in cells):
        verdicts = [cell.verdict for cell in cells if cell.client == name]
        counts = (Verdict.WORKS, Verdict.NEITHER, Verdict.FAILS_THROUGH)
        numbers = " | ".join(str(verdicts.count(verdict)) for verdict in counts)
        lines.append(f"| {name} | {len(verdicts)} | {numbers} |")
    lines += ["\nThose that do not pass on both sides:\n", "| Test | Directly | Through |", "|---|---|---|"]
    lines += [
        f"| {cell.client}.{cell.step} | {_reason(cell.direct)} | {_reason(cell.through)} |"
        for cell in cells
        if cell.verdict is not Verdict.WORKS
    ]
    return "\n".join(lines) + "\n"
