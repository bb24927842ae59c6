from __future__ import annotations

import pytest

from gateway.server.connection_capacity import connection_cap, held_cap, lingering_cap, reserved


@pytest.mark.parametrize("limit", [256, 1024, 20_000, 1 << 20])
@pytest.mark.parametrize("protected_slots", [0, 32])
def test_f01_what_the_cap_allows_fits_into_the_descriptors(limit: int, protected_slots: int) -> None:
    for ports in (1, 101):
        others = {"ports": ports, "max_held": held_cap(limit), "protected_slots": protected_slots}
        cap = connection_cap(limit, **others)
        rest = reserved(limit, **others)
        if rest + 2 > limit:
            assert cap == 0
        else:
            assert rest + 2 * cap in (limit, limit - 1)


def test_each_thing_that_takes_descriptors_lowers_the_cap() -> None:
    plain = connection_cap(1024, ports=1, max_held=1, protected_slots=0)
    assert connection_cap(1024, ports=101, max_held=1, protected_slots=0) == plain - 50
    assert connection_cap(1024, ports=1, max_held=101, protected_slots=0) == plain - 50
    # A protected connection has its own and its broker's, like any other.
    assert connection_cap(1024, ports=1, max_held=1, protected_slots=50) == plain - 50


def test_too_few_descriptors_carry_nobody() -> None:
    assert connection_cap(64, ports=101, max_held=8, protected_slots=0) == 0


def test_what_attackers_can_have_held_stays_a_small_part() -> None:
    for limit in (64, 256, 20_000, 1 << 20):
        assert 1 <= held_cap(limit) <= 1_000
        assert held_cap(limit) <= limit // 8
        assert 1 <= lingering_cap(limit) <= 256
