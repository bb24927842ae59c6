"""Time added up over connections."""

from __future__ import annotations

from gateway.net.channel import BackPressure
from gateway.observability.events import Side


def test_time_under_way_counts_at_every_moment() -> None:
    pressure = BackPressure()
    assert pressure.total_ms(Side.CLIENT, 1_000) == 0
    pressure.begin(Side.CLIENT, now_ms=1_000)
    assert pressure.total_ms(Side.CLIENT, 1_250) == 250
    pressure.end(Side.CLIENT, now_ms=1_500)
    assert pressure.total_ms(Side.CLIENT, 9_000) == 500


def test_connections_add_up_and_sides_are_apart() -> None:
    pressure = BackPressure()
    pressure.begin(Side.CLIENT, now_ms=0)
    pressure.begin(Side.CLIENT, now_ms=100)
    pressure.begin(Side.UPSTREAM, now_ms=100)
    pressure.end(Side.CLIENT, now_ms=200)
    assert pressure.total_ms(Side.CLIENT, 300) == 400
    assert pressure.total_ms(Side.UPSTREAM, 300) == 200
