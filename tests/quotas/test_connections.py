from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.connections import (
    Admission,
    AdmissionCause,
    AdmissionDecision,
    AfterHold,
    ConnectionLimits,
    ConnectionQuotas,
    ListenerLimits,
)
from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import Enforcement, Limits
from testkit.clock import FakeClock
from testkit.scenarios import scenarios, steps

KEY = QuotaKey.CONNECTION_CREATION_RATE
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "k": "10.0.0.11"}
PLAIN = {"EXT": ListenerLimits()}


def _limits(rates: dict[Name, float] | None = None) -> Limits:
    limits = Limits()
    for ip, rate in (rates or {}).items():
        limits.set(QuotaEntity(ip=ip), KEY, rate or 1e-7)  # the only way to a rate of 0
    return limits


def _quotas(clock: FakeClock, rates: dict[Name, float] | None = None, **options: Any) -> ConnectionQuotas:
    limits = ConnectionLimits(**{"listeners": PLAIN, **options})
    return ConnectionQuotas(_limits(rates), limits, now_ms=clock.now_ms)


def _of_row(row: dict[str, Any], now_ms: int) -> tuple[ConnectionQuotas, Limits]:
    rates: dict[Name, float] = {ADDRESSES[who]: rate for who, rate in row.get("ip", {}).items()}
    if "ip_default" in row:
        rates[DEFAULT] = row["ip_default"]
    limits = _limits(rates)
    listeners = {name: ListenerLimits(max_connection_creation_rate=rate) for name, rate in row["listeners"].items()}
    quotas = ConnectionQuotas(
        limits,
        ConnectionLimits(
            listeners, max_connection_creation_rate=row.get("broker"), protected_listener=row.get("inter_broker")
        ),
        window_num=row["S"],
        window_ms=row["W"] * 1000,
        now_ms=now_ms,
    )
    return quotas, limits


def _accept(quotas: ConnectionQuotas, listener: str, ip: str, now_ms: int) -> tuple[int, int | None]:
    """The acceptor's wait and the address's hold, as Kafka's tests count them: both at one instant."""
    admission = quotas.admit(listener, ip, now_ms=now_ms)
    wait_ms = 0
    if admission.decision is AdmissionDecision.WAIT:
        wait_ms = admission.wait_ms
        admission = quotas.admit(listener, ip, now_ms=now_ms, waited=True)
    return wait_ms, admission.wait_ms if admission.decision is AdmissionDecision.HOLD else None


@pytest.mark.parametrize("row", [p for p in scenarios("conn") if "ipq" not in p.values[0]])
def test_scenario_connection_rate(row: dict[str, Any], clock: FakeClock) -> None:
    start_ms = clock.now_ms
    quotas, limits = _of_row(row, start_ms)
    if "loop" in row:
        loop = row["loop"]
        answers = [
            _accept(quotas, loop["listener"], ADDRESSES[loop["ip"]], start_ms + i * loop["every_ms"])
            for i in range(loop["n"])
        ]
        assert answers.count((0, None)) == row["accepted"]
        assert len(answers) - answers.count((0, None)) == row["throttled"]
        return
    for step in steps(row):
        if step[0] == "ip":
            limits.set(QuotaEntity(ip=ADDRESSES[step[1]]), KEY, step[2])
            continue
        at_ms, listener, who, wait_ms, hold_ms = step
        now_ms = start_ms + at_ms
        assert _accept(quotas, listener, ADDRESSES[who], now_ms) == (wait_ms, hold_ms), step
    if "rates_after" in row:
        snapshot = quotas.snapshot(now_ms=now_ms)
        rates = {name: rate for name, (_, rate) in snapshot.by_listener.items()}
        rates |= {"broker": snapshot.accept_rate}
        rates |= {f"ip_{who}": snapshot.ip_rates.get(ip, 0) for who, ip in ADDRESSES.items()}
        assert {name: rates[name] for name in row["rates_after"]} == row["rates_after"]


@pytest.mark.parametrize("row", scenarios("cc"))
def test_scenario_connection_count(row: dict[str, Any], clock: FakeClock) -> None:
    by_ip = "max_per_ip" in row
    names = ["EXT"] if by_ip else row["listeners"]
    quotas = _quotas(
        clock,
        listeners={name: ListenerLimits(max_connections=row.get("max_per_listener")) for name in names},
        max_connections=row.get("max_connections"),
        max_connections_per_ip=row.get("max_per_ip"),
        protected_listener=row.get("inter_broker"),
    )
    refused: dict[str, int] = {}  # Kafka's test counts a refused connection until it closes it, we never do
    answers = {"ok": AdmissionDecision.ADMIT, "TooMany": AdmissionDecision.REFUSE, "block": AdmissionDecision.WAIT}

    def where(who: str) -> tuple[str, str]:
        return ("EXT", ADDRESSES[who]) if by_ip else (who, "10.0.0.1")

    for verb, who, amount, *expected in row["steps"]:
        if verb == "inc":
            for _ in range(amount):
                admission = quotas.admit(*where(who), now_ms=clock.now_ms)
                assert admission.decision is answers[expected[0]], (verb, who, amount)
                refused[who] = refused.get(who, 0) + (admission.decision is AdmissionDecision.REFUSE)
                if admission.decision is AdmissionDecision.WAIT:
                    assert admission == Admission(AdmissionDecision.WAIT, AdmissionCause.NO_SLOT)
        elif verb == "dec":
            closed = min(amount, refused.get(who, 0))
            refused[who] = refused.get(who, 0) - closed
            for _ in range(amount - closed):
                quotas.release(*where(who))
        elif verb == "count":
            assert quotas.connections_of(ADDRESSES[who]) + refused.get(who, 0) == amount
        else:
            assert verb == "exceeded"
            assert quotas.must_close_one(who) is amount


@pytest.mark.parametrize("row", scenarios("ipclose"))
def test_scenario_ip_close(row: dict[str, Any], clock: FakeClock) -> None:
    for case in row["rows"]:
        after_hold = AfterHold.CLOSE if case["mode"] == "code" else AfterHold.RECHECK
        for address_is_quiet in (True, False):
            quotas = ConnectionQuotas(
                _limits({DEFAULT: 5}),
                ConnectionLimits(PLAIN, after_hold=after_hold),
                window_num=2,
                now_ms=clock.now_ms,
            )
            for _ in range(5):
                quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
            held = quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
            assert (held.decision, held.wait_ms) == (AdmissionDecision.HOLD, row["throttle_ms"])
            now_ms = clock.now_ms + case["at_ms"]
            if not address_is_quiet:
                # 200 ms later one more fits; this one takes its place.
                quotas.admit("EXT", "10.0.0.1", now_ms=now_ms)
            after = quotas.after_hold("EXT", "10.0.0.1", held, now_ms=now_ms)
            if case["mode"] == "kip":
                assert after.decision is (AdmissionDecision.ADMIT if address_is_quiet else AdmissionDecision.REFUSE)
            else:
                assert (after.decision is AdmissionDecision.REFUSE) is case["closed"]


def test_hazard_b14_a_held_socket_uses_up_none_of_the_listeners_rate(clock: FakeClock) -> None:
    quotas = _quotas(
        clock,
        {ADDRESSES["a"]: 1},
        listeners={"EXT": ListenerLimits(max_connection_creation_rate=2)},
        max_connection_creation_rate=2,
    )
    for _ in range(10):
        assert quotas.admit("EXT", ADDRESSES["a"], now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT
    for _ in range(5):
        held = quotas.admit("EXT", ADDRESSES["a"], now_ms=clock.now_ms)
        assert held == Admission(AdmissionDecision.HOLD, AdmissionCause.IP_RATE, 1_000, clock.now_ms + 1_000)
    for _ in range(10):
        assert quotas.admit("EXT", ADDRESSES["b"], now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT
    assert quotas.admit("EXT", ADDRESSES["b"], now_ms=clock.now_ms).decision is AdmissionDecision.WAIT
    snapshot = quotas.snapshot(now_ms=clock.now_ms)
    assert (snapshot.connections, snapshot.held) == (20, 5)


def test_hazard_b15_held_sockets_are_bounded(clock: FakeClock) -> None:
    quotas = _quotas(clock, {DEFAULT: 1e-7}, max_held=3)
    decisions = [quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms) for _ in range(5)]
    assert [each.decision for each in decisions] == [AdmissionDecision.HOLD] * 3 + [AdmissionDecision.REFUSE] * 2
    assert decisions[-1].cause is AdmissionCause.HELD_FULL
    quotas.abandon_hold(decisions[0])
    assert quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms).decision is AdmissionDecision.HOLD


@pytest.mark.slow
def test_hazard_b18_counts_do_not_drift(clock: FakeClock) -> None:
    quotas = _quotas(clock, {DEFAULT: 1_000}, max_connections=50, max_connections_per_ip=20)
    open_connections: list[str] = []
    for i in range(100_000):
        ip = f"::ffff:10.0.0.{i % 7}" if i % 2 else f"10.0.0.{i % 7}"
        admission = quotas.admit("EXT", ip, now_ms=clock.advance(i % 3))
        if admission.decision is AdmissionDecision.ADMIT:
            open_connections.append(ip)
        elif admission.decision is AdmissionDecision.HOLD:
            quotas.abandon_hold(admission)
        if len(open_connections) == 50 or i % 5 == 0:
            quotas.release("EXT", open_connections.pop(0))
        assert len(open_connections) <= 50
    for ip in open_connections:
        quotas.release("EXT", ip)
    snapshot = quotas.snapshot(now_ms=clock.now_ms)
    assert (snapshot.connections, snapshot.held, snapshot.by_listener["EXT"][0]) == (0, 0, 0)
    assert all(quotas.connections_of(f"10.0.0.{i}") == 0 for i in range(7))


def test_listeners_do_not_keep_each_other_waiting_and_the_protected_one_has_its_own_limits(clock: FakeClock) -> None:
    quotas = _quotas(
        clock, listeners={"EXT": ListenerLimits(max_connection_creation_rate=1), "OTHER": ListenerLimits()}
    )
    for _ in range(10):
        quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
    wait = quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
    assert wait == Admission(AdmissionDecision.WAIT, AdmissionCause.LISTENER_RATE, 1_000)
    assert quotas.admit("OTHER", "10.0.0.1", now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT
    quotas = _quotas(
        clock,
        listeners={"EXT": ListenerLimits(), "ADMIN": ListenerLimits(max_connection_creation_rate=2)},
        max_connection_creation_rate=1,
        max_connections=1,
        protected_listener="ADMIN",
    )
    quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
    decisions = [quotas.admit("ADMIN", "10.0.0.1", now_ms=clock.now_ms).decision for _ in range(21)]
    assert decisions == [AdmissionDecision.ADMIT] * 20 + [AdmissionDecision.WAIT]


def test_observed_or_switched_off_quotas_hold_nobody(clock: FakeClock) -> None:
    limits = _limits({DEFAULT: 1})
    limits.set_observed({QuotaEntity(ip=DEFAULT)})
    quotas = ConnectionQuotas(limits, ConnectionLimits(PLAIN), now_ms=clock.now_ms)
    for _ in range(10):
        assert quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms) == Admission(AdmissionDecision.ADMIT)
    for _ in range(3):
        # As if it were enforced, so who would be delayed is not counted, and the next would wait no longer.
        would = quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
        assert would == Admission(AdmissionDecision.ADMIT, AdmissionCause.IP_RATE, 1_000)
    assert quotas.snapshot(now_ms=clock.now_ms).connections == 13
    limits.set_observed()
    assert quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms).decision is AdmissionDecision.HOLD
    limits = _limits({DEFAULT: 1})
    quotas = ConnectionQuotas(limits, ConnectionLimits(PLAIN, max_connections=20), now_ms=clock.now_ms)
    limits.set_mode(Enforcement.OFF)
    decisions = [quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms).decision for _ in range(21)]
    assert decisions == [AdmissionDecision.ADMIT] * 20 + [AdmissionDecision.WAIT]
    assert quotas.snapshot(now_ms=clock.now_ms).ip_rates == {}
    limits = _limits({DEFAULT: 1})
    quotas = ConnectionQuotas(limits, ConnectionLimits(PLAIN, after_hold=AfterHold.RECHECK), now_ms=clock.now_ms)
    for _ in range(10):
        quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
    held = [quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms) for _ in range(3)]
    limits.set_mode(Enforcement.OBSERVE)
    later_ms = clock.advance(1_000)
    after = [quotas.after_hold("EXT", "10.0.0.1", each, now_ms=later_ms).decision for each in held]
    assert after == [AdmissionDecision.ADMIT] * 3


def test_too_many_of_one_address_are_refused_and_overrides_beat_the_general_limit(clock: FakeClock) -> None:
    quotas = _quotas(clock, max_connections_per_ip=0, max_connections_per_ip_overrides={"::ffff:10.0.0.1": 2})
    refused = Admission(AdmissionDecision.REFUSE, AdmissionCause.IP_COUNT)
    assert quotas.admit("EXT", "10.0.0.2", now_ms=clock.now_ms) == refused
    assert [quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms).decision for _ in range(3)] == [
        AdmissionDecision.ADMIT,
        AdmissionDecision.ADMIT,
        AdmissionDecision.REFUSE,
    ]
    quotas.release("EXT", "::ffff:10.0.0.1")
    assert quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT


def test_new_limits_drop_nobody_and_keep_samples(clock: FakeClock) -> None:
    quotas = _quotas(clock)
    for _ in range(30):
        quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
    quotas.update(ConnectionLimits(PLAIN, max_connections=10, max_connection_creation_rate=1), now_ms=clock.now_ms)
    assert quotas.snapshot(now_ms=clock.now_ms).connections == 30
    assert quotas.must_close_one("EXT")
    assert quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms).decision is AdmissionDecision.WAIT


def test_a_place_is_taken_until_it_is_given_back_and_looked_for_again_after_a_wait(clock: FakeClock) -> None:
    quotas = _quotas(clock, max_connections=1)
    quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
    full = Admission(AdmissionDecision.WAIT, AdmissionCause.NO_SLOT)
    assert quotas.admit("EXT", "10.0.0.2", now_ms=clock.now_ms) == full
    assert quotas.admit("EXT", "10.0.0.2", now_ms=clock.now_ms, waited=True) == full
    quotas.release("EXT", "10.0.0.1")
    assert quotas.has_slot("EXT")
    admission = quotas.admit("EXT", "10.0.0.2", now_ms=clock.now_ms, waited=True)
    assert admission.decision is AdmissionDecision.ADMIT
    # Waiting twice did not record the socket twice.
    assert quotas.snapshot(now_ms=clock.now_ms).accept_rate == 2 / 10
    quotas = _quotas(clock, max_connections=1)
    assert quotas.reserve("EXT", now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT
    waits = quotas.reserve("EXT", now_ms=clock.now_ms)
    assert (waits.decision, waits.cause) == (AdmissionDecision.WAIT, AdmissionCause.NO_SLOT)
    quotas.cancel_reservation("EXT")
    assert quotas.reserve("EXT", now_ms=clock.now_ms, waited=True).decision is AdmissionDecision.ADMIT
    quotas.cancel_reservation("EXT")
    with pytest.raises(ValueError, match="no place"):
        quotas.cancel_reservation("EXT")


def test_addresses_of_a_block_share_its_rate(clock: FakeClock) -> None:
    quotas = _quotas(clock, {"10.0.0.0/24": 1})
    decisions = [quotas.admit("EXT", f"10.0.0.{i}", now_ms=clock.now_ms).decision for i in range(11)]
    assert decisions == [AdmissionDecision.ADMIT] * 10 + [AdmissionDecision.HOLD]
    assert quotas.admit("EXT", "10.0.1.1", now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT


def test_k19_refused_for_the_count_of_its_address_a_connection_takes_no_rate_and_does_not_wait(
    clock: FakeClock,
) -> None:
    quotas = _quotas(clock, max_connections_per_ip=1, max_connection_creation_rate=1, max_connections=12)
    for i in range(1, 10):
        assert quotas.admit("EXT", f"10.0.1.{i}", now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT
        for _ in range(5):
            refused = quotas.admit("EXT", "10.0.1.1", now_ms=clock.now_ms)
            assert (refused.decision, refused.cause) == (AdmissionDecision.REFUSE, AdmissionCause.IP_COUNT)
    assert quotas.admit("EXT", "10.0.2.1", now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT
    # Behind a load balancer the address is known only after the wait: what it has used is given back.
    waits = quotas.admit("EXT", "10.0.2.2", now_ms=clock.now_ms)
    assert waits.decision is AdmissionDecision.WAIT
    assert quotas.reserve("EXT", now_ms=clock.advance(20_000)).decision is AdmissionDecision.ADMIT
    before = quotas.snapshot(now_ms=clock.now_ms).accept_rate
    refused = quotas.admit_reserved("EXT", "10.0.1.1", now_ms=clock.now_ms)
    assert (refused.decision, refused.cause) == (AdmissionDecision.REFUSE, AdmissionCause.IP_COUNT)
    assert quotas.snapshot(now_ms=clock.now_ms).accept_rate < before
    # Without a slot it does not wait either.
    for i in range(2):
        assert quotas.admit("EXT", f"10.0.3.{i}", now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT
    assert quotas.admit("EXT", "10.0.3.9", now_ms=clock.now_ms).cause is AdmissionCause.NO_SLOT
    assert quotas.admit("EXT", "10.0.1.1", now_ms=clock.now_ms).cause is AdmissionCause.IP_COUNT


@pytest.mark.parametrize("prefix_bits", [64, 128])
def test_i02_k08_a_network_of_many_addresses_leaves_others_their_connection_rates(
    prefix_bits: int, clock: FakeClock
) -> None:
    quotas = ConnectionQuotas(
        _limits({DEFAULT: 1}),
        ConnectionLimits(PLAIN),
        max_ip_trackers=100,
        ipv6_prefix_bits=prefix_bits,
        now_ms=clock.now_ms,
    )
    for i in range(170):
        address = f"2001:db8:7::{i + 1:x}" if prefix_bits == 128 else f"2001:db8:7:{i:x}::1"
        for _ in range(2 if i < 100 else 12):
            quotas.admit("EXT", address, now_ms=clock.now_ms)
    held = quotas.admit("EXT", "2001:db8:7:ffff::1", now_ms=clock.now_ms)
    assert held.decision is AdmissionDecision.HOLD, "by the counter that its network shares"
    for honest in ("192.0.2.1", "192.0.2.2", "2001:db8:8::1"):
        for _ in range(10):
            assert quotas.admit("EXT", honest, now_ms=clock.now_ms).decision is AdmissionDecision.ADMIT
    assert len(quotas.snapshot(now_ms=clock.now_ms).ip_rates) == 100


def test_counting_wrong_is_found_out(clock: FakeClock) -> None:
    quotas = _quotas(clock)
    with pytest.raises(ValueError, match=r"10\.0\.0\.1"):
        quotas.release("EXT", "10.0.0.1")
    with pytest.raises(ValueError, match="not throttled"):
        quotas.abandon_hold(Admission(AdmissionDecision.ADMIT))


def test_i02_many_addresses_need_bounded_memory(clock: FakeClock) -> None:
    quotas = ConnectionQuotas(
        _limits({DEFAULT: 1}), ConnectionLimits(PLAIN), max_ip_trackers=100, now_ms=clock.now_ms
    )
    for i in range(5_000):
        if (
            quotas.admit("EXT", f"10.0.{i // 256}.{i % 256}", now_ms=clock.advance(1)).decision
            is AdmissionDecision.ADMIT
        ):
            quotas.release("EXT", f"10.0.{i // 256}.{i % 256}")
    assert len(quotas.snapshot(now_ms=clock.now_ms).ip_rates) <= 100


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 100, 1_000]), st.sampled_from(["a", "b"]), st.booleans()), max_size=60),
    st.one_of(st.none(), st.integers(1, 5)),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_two_halves_of_an_admission_are_the_whole(
    connections: list[tuple[int, str, bool]], rate: int | None, count: int | None
) -> None:
    limits = {"listeners": {"EXT": ListenerLimits(max_connection_creation_rate=rate)}, "max_connections": count}
    clock = FakeClock(now_ms=7_300_000)
    whole, halves = (_quotas(clock, {DEFAULT: 2}, **limits) for _ in range(2))
    for wait_ms, who, waited in connections:
        clock.advance(wait_ms)
        now_ms, ip = clock.now_ms, ADDRESSES[who]
        expected = whole.admit("EXT", ip, now_ms=now_ms, waited=waited)
        got = halves.reserve("EXT", now_ms=now_ms, waited=waited)
        if got.decision is AdmissionDecision.ADMIT:
            got = halves.admit_reserved("EXT", ip, now_ms=now_ms)
        assert got == expected
        assert halves.snapshot(now_ms=now_ms) == whole.snapshot(now_ms=now_ms)
