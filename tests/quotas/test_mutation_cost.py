from typing import Any

import pytest

from quotas.mutation_cost import CostError, create_partitions_permits, create_topics_permits, delete_topics_permits
from testkit.scenarios import scenarios


def _permits(case: dict[str, Any]) -> int | CostError:
    if case["api"] == "CreateTopics":
        default = case.get("default_num_partitions", 1)
        return create_topics_permits(case["num_partitions"], case["assignments"], default)
    if case["api"] == "CreatePartitions":
        return create_partitions_permits(case["current"], case["count"], case.get("assignments"))
    return delete_topics_permits(case["current"])


@pytest.mark.parametrize("row", scenarios("count"))
def test_scenario_count(row: dict[str, Any]) -> None:
    for case in row["rows"]:
        assert _permits(case) == case.get("error", case["charge"]), case


@pytest.mark.parametrize("replication_factor", [0, -2])
def test_a_replication_factor_that_the_broker_refuses_costs_nothing(replication_factor: int) -> None:
    permits = create_topics_permits(5, 0, 1, replication_factor=replication_factor)
    assert permits is CostError.INVALID_REPLICATION_FACTOR


def test_an_assignment_with_a_replication_factor_is_refused_by_the_broker() -> None:
    assert create_topics_permits(-1, 4, 1, replication_factor=3) is CostError.INVALID_REQUEST


def test_partitions_for_an_unknown_topic_cost_nothing() -> None:
    assert create_partitions_permits(None, 5) is CostError.UNKNOWN_TOPIC_OR_PARTITION
