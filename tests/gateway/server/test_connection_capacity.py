import resource

import pytest

import config
from config import Config, ConfigError
from gateway.server.connection_capacity import (
    connection_cap,
    connection_limits,
    held_cap,
    lingering_cap,
    plan_descriptors,
    raise_descriptor_limit,
    reserved,
)
from quotas.connections import AfterHold, ListenerLimits

HEAD = '[upstream]\nbootstrap = ["k:1"]\n'


def read(text: str = "", *, first: str = "", second: str | None = None, held: str = "max_held = 10") -> Config:
    listeners = f'[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\nbroker_ports = 9\n{first}\n'
    if second is not None:
        listeners += f'[[listeners]]\nname = "b"\nbind = "127.0.0.1:29092"\nbroker_ports = 9\n{second}\n'
    return config.parse(f"{HEAD}{listeners}[connections]\n{held}\n{text}", name="f")


def test_the_cap_is_what_descriptors_carry_and_a_given_one_has_to_fit() -> None:
    plan = plan_descriptors(read(), 1000)
    # 64 others, 10 ports, 10 waiting, 31 lingering.
    assert plan.max_connections == (1000 - 64 - 10 - 10 - 31) // 2
    assert plan.protected_slots == 0
    assert connection_limits(read(), plan).max_connections == plan.max_connections
    most = plan_descriptors(read(), 1000).max_connections
    assert plan_descriptors(read(f"max_connections = {most}"), 1000).max_connections == most
    with pytest.raises(ConfigError) as caught:
        plan_descriptors(read(f"max_connections = {most + 1}"), 1000)
    (line,) = caught.value.lines
    assert line == (
        f"connections.max_connections: {most + 1} and what else there is (10 throttled connections, 10 ports) need "
        "1001 "
        f"file descriptors; the limit is 1000, which carries {most}; raise it (ulimit -n, LimitNOFILE) or lower what "
        "needs them"
    )
    with pytest.raises(ConfigError, match="which carries 0"):
        plan_descriptors(read(), 64)
    plain = connection_cap(1024, ports=1, max_held=1, protected_slots=0)
    assert connection_cap(1024, ports=101, max_held=1, protected_slots=0) == plain - 50
    assert connection_cap(1024, ports=1, max_held=101, protected_slots=0) == plain - 50
    tls = 'security_protocol = "SSL"\ntls = { certificate = "c", key = "k" }\n'
    named = f'{HEAD}[[listeners]]\nname = "a"\nbind = "127.0.0.1:1"\n{tls}'
    named += 'sni = { bootstrap_name = "k.test", broker_name = "b{node}.k.test" }\n[connections]\nmax_held = 10\n'
    assert plan_descriptors(config.parse(named, name="f"), 1000).max_connections == (1000 - 64 - 1 - 10 - 31) // 2
    # A protected connection has its own and its broker's, like any other.
    assert connection_cap(1024, ports=1, max_held=1, protected_slots=50) == plain - 50


def test_protected_slots_are_for_a_protected_listener_beside_others() -> None:
    found = read("protected_slots = 5\nmax_connections = 50", second="protected = true")
    plan = plan_descriptors(found, 1000)
    limits = connection_limits(found, plan)
    assert limits.protected_listener == "b"
    assert limits.listeners == {"a": ListenerLimits(), "b": ListenerLimits(55)}
    own = read(
        "protected_slots = 5\nmax_connections = 50",
        second="protected = true\nmax_connections = 7\nmax_connection_creation_rate = 3",
    )
    assert connection_limits(own, plan).listeners["b"] == ListenerLimits(7, 3)
    found = read(first="protected = true")
    assert plan_descriptors(found, 1000).protected_slots == 0
    assert connection_limits(found, plan_descriptors(found, 1000)).listeners == {"a": ListenerLimits()}


def test_limits_carry_every_key() -> None:
    found = read(
        """
        max_connections = 40
        max_connection_creation_rate = 30
        max_connections_per_ip = 20
        max_connections_per_ip_overrides = {"10.0.0.1" = 1}
        after_hold = "recheck"
        """,
        first="max_connections = 8\nmax_connection_creation_rate = 9",
    )
    limits = connection_limits(found, plan_descriptors(found, 1000))
    assert limits.max_connections == 40
    assert limits.max_connection_creation_rate == 30
    assert limits.max_connections_per_ip == 20
    assert limits.max_connections_per_ip_overrides == {"10.0.0.1": 1}
    assert limits.after_hold is AfterHold.RECHECK
    assert limits.max_held == 10
    assert limits.listeners == {"a": ListenerLimits(8, 9)}


def test_what_is_held_or_lingers_is_bounded_whoever_asks() -> None:
    assert plan_descriptors(read(held=""), 1024).max_held == 128
    one = plan_descriptors(read(), 10_000).max_lingering
    assert plan_descriptors(read(second=""), 10_000).max_lingering == one // 2
    for limit in (64, 256, 20_000, 1 << 20):
        assert 1 <= held_cap(limit) <= 1_000
        assert held_cap(limit) <= limit // 8
        assert 1 <= lingering_cap(limit) <= 256


def test_descriptor_limit_is_raised_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert raise_descriptor_limit() == 4096
    assert asked == [(4096, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert raise_descriptor_limit() == 4096
    assert len(asked) == 1


def test_descriptor_limit_stays_where_raising_it_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_resource: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_descriptor_limit() == 256


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
