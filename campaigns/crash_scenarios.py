"""The alterations whose crash points are tried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gateway.quota_admin.store.interface import Alteration
from quotas.entities import QuotaEntity
from testkit.quota_stores import ALICE, ANYBODY, APP, FETCH, PRODUCE, alteration

_IMPORTED: Final = tuple(
    (QuotaEntity(user=f"user-{number}"), PRODUCE, float(number + 1)) for number in range(100)
)


@dataclass(frozen=True)
class Scenario:
    """One alteration of a store with contents; without an alteration, the creation of a store.

    Attributes:
        warm: whether the same process has written the earlier contents, so that its log is already in use.
    """

    name: str
    before: tuple[Alteration, ...] = ()
    change: Alteration | None = None
    warm: bool = False


_COLD: Final = (
    Scenario("first quota", (), alteration((ALICE, PRODUCE, 1.0))),
    Scenario("another value", (alteration((ALICE, PRODUCE, 1.0)),), alteration((ALICE, PRODUCE, 2.0))),
    Scenario(
        "three at once, one of them removed",
        (alteration((ALICE, PRODUCE, 1.0), (APP, FETCH, 7.0)),),
        alteration((ALICE, PRODUCE, 2.0), (ANYBODY, FETCH, 3.0), (APP, FETCH, None)),
    ),
    Scenario("a hundred at once", (alteration((ALICE, PRODUCE, 1.0)),), alteration(*_IMPORTED)),
    Scenario(
        "with a full history",
        tuple(alteration((ALICE, PRODUCE, float(value))) for value in range(1, 105)),
        alteration((ALICE, PRODUCE, None), (APP, FETCH, 2.0)),
    ),
    Scenario(
        "a long name",
        (alteration((ALICE, PRODUCE, 1.0)),),
        alteration((QuotaEntity(user="x" * 10_240, client_id="y" * 10_240), PRODUCE, 1.0)),
    ),
    Scenario(
        "all removed",
        (alteration(*_IMPORTED),),
        alteration(*((entity, key, None) for entity, key, _ in _IMPORTED)),
    ),
)

SCENARIOS: Final = (
    Scenario("a store is made"),
    *_COLD,
    *(replace(each, name=f"{each.name}, in a process at work", warm=True) for each in _COLD),
)
