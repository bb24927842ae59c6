"""Every parser of `protocol`, and every target of the coverage-guided fuzzer, on frames that are damaged or lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from protocol.api_keys import Api, ApiKey, describe
from protocol.errors import ProtocolError
from testkit import wire
from tests.fuzz.both_cores.conversations import FAILED, Say
from tests.fuzz.both_cores.messages import LIES, damaged, request, response, version_of
from tests.fuzz.parsers import TARGETS, corpus
from tests.fuzz.targets import SEEDS
from tests.fuzz.targets import TARGETS as UNKNOWN_PEERS


def _result(parse: Callable[[], object]) -> str:
    try:
        return repr(parse())
    except ProtocolError as exc:
        return repr(exc)
    except Exception as exc:  # noqa: BLE001  (what is looked for)
        return f"{FAILED}{type(exc).__name__}: {exc}"


def _frame(dice: Random, target: str) -> tuple[Api, bytes]:
    of = TARGETS[target]
    if dice.random() < 0.3:
        api, frame = dice.choice(corpus(target))
    else:
        name = dice.choice(of.names)
        versions = [api.version for api, _ in corpus(target) if api.key == wire.api_key_of(name)]
        version = max(min(version_of(dice, name), max(versions)), min(versions))
        api = describe(ApiKey(wire.api_key_of(name)), version)
        make = request if of.kind == "request" else response
        frame = make(dice, name, version, correlation_id=1, lies=dice.choice(LIES))
    chance = dice.random()
    if chance < 0.3:
        frame = damaged(dice, frame)
    elif chance < 0.4:
        frame = frame[: dice.randrange(4, len(frame) + 1)]
    return api, wire.framed(frame[4:])  # as the session's own look has found it


def parse(dice: Random, say: Say) -> None:
    """Ten frames for parsers, and one input for what reads from peers that are not known yet."""
    for _ in range(10):
        target = dice.choice(list(TARGETS))
        api, frame = _frame(dice, target)
        found = _result(partial(TARGETS[target].parse, frame, api))
        say(f"{target} v{api.version} {frame.hex()}")
        say(found if found.startswith(FAILED) else f"is {found}")
    target = dice.choice(list(SEEDS))
    data = damaged(dice, b"1234" + dice.choice(SEEDS[target]))[4:]
    found = _result(partial(UNKNOWN_PEERS[target], data))
    say(f"{target} {data.hex()}")
    say(found)
