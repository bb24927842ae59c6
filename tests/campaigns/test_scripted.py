"""What the short campaigns count, in small: a planted fault must change the figure."""

import pytest

from campaigns.scripted import (
    crowd,
    dead_broker,
    log_flood,
    moving_brokers,
    no_descriptors,
    scrapers,
    worker_kills,
    worker_quotas,
)

LINE = "event=connection_refused level=info time=2026-11-28T06:47:0{second}.100Z cause=other_protocol{more}\n"


def lines(*, left_out: int) -> list[str]:
    """Twenty lines in a first second, one in the next that says how many were left out."""
    first = [LINE.format(second=1, more="")] * 20
    return [
        *first,
        LINE.format(second=2, more=f" suppressed={left_out}"),
        "event=stopped time=2026-11-28T06:47:03Z\n",
    ]


def test_lines_and_those_that_were_left_out_add_up_to_the_connections() -> None:
    assert log_flood.accounted(lines(left_out=79), "connection_refused") == 100
    assert log_flood.accounted(lines(left_out=78), "connection_refused") == 99


def test_the_busiest_second_is_found_by_the_clock_of_the_lines() -> None:
    assert log_flood.busiest_second(lines(left_out=0), "connection_refused") == 20
    assert log_flood.busiest_second(lines(left_out=0) * 2, "connection_refused") == 40


def test_a_line_that_is_not_counted_and_a_second_with_too_many_show_in_a_flood() -> None:
    flood = log_flood.Flood(100, 2.0, lines(left_out=79))
    assert (flood.event, flood.most, flood.not_counted, flood.per_s) == ("connection_refused", 20, 0, 50.0)
    flood = log_flood.Flood(101, 2.0, lines(left_out=79) * 2)
    assert (flood.most, flood.not_counted) == (40, -99)


@pytest.mark.slow
async def test_clients_of_a_dead_broker_are_closed_and_others_answered() -> None:
    _, refused, sent, answered = await dead_broker.campaign(2)
    assert len(refused) == 2
    assert sent == answered > 0


@pytest.mark.slow
async def test_requests_reach_the_brokers_that_metadata_names() -> None:
    requests, _, wrong = await moving_brokers.campaign(5)
    assert requests >= 10
    assert wrong == 0


@pytest.mark.slow
async def test_i08_scrapers_beyond_the_places_of_the_admin_port_get_their_answers() -> None:
    failed, sent, answered = await scrapers.campaign(50, 2)
    assert failed == 0
    assert sent == answered > 0


@pytest.mark.slow
async def test_a_crowd_of_names_costs_bounded_memory_and_forgives_no_debt() -> None:
    found = await crowd.campaign(2_000, 50)
    assert found.series < crowd.GOAL_SERIES
    assert found.mib < crowd.GOAL_MIB
    assert found.debtor_waits


@pytest.mark.slow
@pytest.mark.parametrize("places", [True, False])
async def test_a_gateway_without_descriptors_counts_that_and_serves_all_who_waited(places: bool) -> None:
    found = await no_descriptors.campaign(1, places=places)
    assert len(found.back_s) == 1
    assert found.sent == found.answered > 0
    assert found.counted >= 1


@pytest.mark.slow
async def test_f05_each_worker_that_is_killed_is_replaced_and_others_answer_all() -> None:
    took_s, sent, answered = await worker_kills.campaign(2, seed=1)
    assert len(took_s) == 2
    assert sent == answered > 0


@pytest.mark.slow
async def test_a_quota_is_set_and_removed_in_all_workers() -> None:
    assert len(await worker_quotas.campaign(2)) == 4
