"""Plans that once broke a law, made smaller: each names what was wrong with the gateway."""

from __future__ import annotations

from typing import Final

from simulation.plan import Client, Plan

FINDINGS: Final = {
    "a Metadata request that creates a topic was counted twice for request_percentage": Plan(
        seed=81,
        seconds=9,
        tables={
            "quotas": [
                {"client_id": "look", "controller_mutation_rate": 2.0},
                {"default_client_id": True, "request_percentage": 20.0},
            ]
        },
        topics={"a": 1, "b": 2},
        brokers=1,
        clients=(Client("look", "look", 1, {"version": 5, "pause_ms": 300, "create": True}),),
    )
}
