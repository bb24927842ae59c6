from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from quotas.connections import AdmissionDecision, ConnectionLimits, ConnectionQuotas, ListenerLimits
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from tests.reference.models import RateModel

LISTENERS = ("EXT", "ADMIN", "OTHER")
_limit = st.one_of(st.none(), st.integers(1, 4))
_steps = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 100, 700, 1_000, 5_000]),
        st.sampled_from(LISTENERS),
        st.sampled_from(["10.0.0.1", "10.0.0.2"]),
        st.sampled_from(["accept", "accept", "accept", "close"]),
    ),
    max_size=80,
)


class Model:
    """Section by section what an acceptor does, every question answered from lists."""

    def __init__(self, limits: dict[str, Any], now_ms: int) -> None:
        self.limits = limits
        self.rates = {name: RateModel(3, 1_000, now_ms) for name in ("gateway", *LISTENERS)}
        self.open: list[tuple[str, str]] = []

    def wait_ms(self, name: str, limit: int | None, now_ms: int) -> int:
        self.rates[name].record(1, now_ms)
        return 0 if limit is None else min(1_000, self.rates[name].throttle_time_ms(limit, now_ms))

    def has_slot(self, listener: str) -> bool:
        own, total = self.limits["listener_count"], self.limits["count"]
        if own is not None and sum(name == listener for name, _ in self.open) >= own:
            return False
        return listener == "ADMIN" or total is None or len(self.open) < total

    def accept(self, listener: str, ip: str, now_ms: int) -> tuple[str, int]:
        most = self.limits["ip_count"]
        has_all = most is not None and sum(at == ip for _, at in self.open) >= most
        recorded = [] if has_all else [listener] if listener == "ADMIN" else [listener, "gateway"]
        bounds = {listener: self.limits["listener_rate"], "gateway": self.limits["rate"]}
        wait_ms = max((self.wait_ms(name, bounds[name], now_ms) for name in recorded), default=0)
        if not has_all and (wait_ms or not self.has_slot(listener)):
            return "wait", wait_ms
        if self.limits["ip_rate"] is not None:
            # An address's sensor begins when its first connection is recorded, not while that one waits.
            self.rates.setdefault(ip, RateModel(3, 1_000, now_ms))
            hold_ms = self.wait_ms(ip, self.limits["ip_rate"], now_ms)
            if hold_ms:
                for name in [ip, *recorded]:
                    self.rates[name].record(-1, now_ms)
                return "hold", hold_ms
        if has_all:
            return "refuse", 0
        self.open.append((listener, ip))
        return "admit", 0


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("rate", "listener_rate", "ip_rate", "count", "listener_count", "ip_count"), _limit)
    ),
    _steps,
)
@example(
    dict.fromkeys(("rate", "listener_rate", "listener_count", "ip_count")) | {"ip_rate": 1, "count": 1},
    [
        (0, "EXT", "10.0.0.1", "accept"),
        (0, "EXT", "10.0.0.2", "accept"),  # waits for a slot
        (1, "ADMIN", "10.0.0.2", "accept"),
        (0, "ADMIN", "10.0.0.2", "accept"),
        (0, "ADMIN", "10.0.0.2", "accept"),
    ],
)
def test_admission_is_the_acceptors_steps_in_order(limits: dict[str, Any], steps: list[Any]) -> None:
    now_ms = 10_000
    configured = Limits()
    if limits["ip_rate"] is not None:
        configured.set(QuotaEntity(ip=DEFAULT), QuotaKey.CONNECTION_CREATION_RATE, limits["ip_rate"])
    listener_limits = ListenerLimits(limits["listener_count"], limits["listener_rate"])
    quotas = ConnectionQuotas(
        configured,
        ConnectionLimits(
            dict.fromkeys(LISTENERS, listener_limits),
            max_connections=limits["count"],
            max_connection_creation_rate=limits["rate"],
            max_connections_per_ip=limits["ip_count"],
            protected_listener="ADMIN",
        ),
        window_num=3,
        now_ms=now_ms,
    )
    model = Model(limits, now_ms)
    for wait_ms, listener, ip, verb in steps:
        now_ms += wait_ms
        if verb == "close":
            if model.open:
                quotas.release(*model.open.pop(0))
            continue
        expected, expected_ms = model.accept(listener, ip, now_ms)
        admission = quotas.admit(listener, ip, now_ms=now_ms)
        assert (str(admission.decision), admission.wait_ms) == (expected, expected_ms)
        if admission.decision is AdmissionDecision.HOLD:
            quotas.abandon_hold(admission)
    assert quotas.snapshot(now_ms=now_ms).connections == len(model.open)
