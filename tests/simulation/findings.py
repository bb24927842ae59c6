"""Plans that once broke a law, made smaller: each names what was wrong with the gateway or the simulation."""

from __future__ import annotations

from typing import Final

from simulation.plan import Client, Fault, Plan

PRODUCES: Final = {
    "version": 11,
    "in_flight": 1,
    "acks": 1,
    "most_bytes": 200,
    "pause_ms": 0,
    "honours": True,
    "topic": "a",
    "each_connection": 0,
    "timeout_ms": 30_000,
}

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
    ),
    "the law of counters took an answer to be counted whole that the client did not wait for": Plan(
        seed=6042,
        seconds=9,
        tables={"quotas": [{"default_client_id": True, "consumer_byte_rate": 20_000}]},
        topics={"a": 3, "b": 2},
        brokers=1,
        most_delay_ms=60,
        most_cost_us=60,
        buffer_bytes=8_192,
        clients=(
            Client("beat", "beat-0", 1, {"version": 4, "pause_ms": 100}),
            Client(
                "consume",
                "consume-1",
                1,
                {
                    "version": 7,
                    "in_flight": 3,
                    "most_bytes": 1_000,
                    "wait_ms": 0,
                    "pause_ms": 0,
                    "sessions": False,
                    "honours": False,
                    "topic": "b",
                    "each_connection": 0,
                    "timeout_ms": 30_000,
                },
            ),
            Client("leave", "adversary-0", 1, {"pause_ms": 20}),
            Client("junk", "beat-0", 1, {"pause_ms": 20}),
        ),
        faults=(Fault(at_ms=5_903, what="stall", where=0, for_ms=2_881, amount=165),),
    ),
    "a replaced worker refused clients at the ports of brokers": Plan(
        seed=2326,
        seconds=7,
        gateways=(2,),
        topics={"a": 1, "b": 2},
        brokers=3,
        most_delay_ms=20,
        most_cost_us=400,
        clients=(
            Client("produce", "produce-3", 1, PRODUCES | {"each_connection": 3}),
            Client("produce", "produce-5", 1, PRODUCES | {"most_bytes": 20_000, "in_flight": 5, "topic": "b"}),
            Client("administer", "administer-1", 1, {"strict": True, "most_partitions": 6, "pause_ms": 500}),
            Client("leave", "produce-5", 1, {"pause_ms": 200}),
        ),
        faults=(Fault(at_ms=4_592, what="worker-kill", where=4, for_ms=3_388, amount=582),),
    ),
}
