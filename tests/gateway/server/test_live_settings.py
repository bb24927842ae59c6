"""Settings of slow brokers that change while brokers are slow, and limits of brokers over a new file."""

from __future__ import annotations

from typing import Any

import pytest

from config import Config, ConfigError
from gateway.quota_admin.broker_limits import LimitError
from gateway.server.connection_capacity import connection_limits, plan_descriptors
from gateway.server.live_settings import LiveSettings
from gateway.session.client_quotas import ClientQuotas
from quotas.connections import ConnectionQuotas
from quotas.limits import Limits
from quotas.overload import Overload
from quotas.rate_quotas import RateSettings
from testkit.core import RecordingObserver

FILE: dict[str, Any] = {
    "upstream": {"bootstrap": ["k:1"]},
    "listeners": [{"name": "a", "bind": "127.0.0.1:19092"}],
    "capacity": {"producer_byte_rate": "100MB"},
    "overload": {"mode": "observe", "broker_time_ms": 100},
}


DESCRIPTORS = 10_000


def settings_of(quotas: Any, config: Config, connections: Any = None) -> LiveSettings:
    parts: Any = None
    return LiveSettings(
        config,
        descriptor_limit=DESCRIPTORS,
        set_session_settings=lambda _settings: None,
        limits_changed=lambda: None,
        connections=connections,
        quota_admin=parts,
        handshake_limiter=parts,
        admin_keys=parts,
        client_quotas=quotas,
        now_ms=lambda: 1_000,
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"overload": {"mode": "enforce", "broker_time_ms": 100}},
        {"overload": {"mode": "observe", "broker_time_ms": 50}},
        {"capacity": {"producer_byte_rate": "80MB"}},
    ],
)
def test_brokers_that_are_slow_stay_slow_through_a_reload(changed: dict[str, Any]) -> None:
    config = Config.model_validate(FILE)
    quotas = ClientQuotas(config.quota_limits(), RateSettings(), RecordingObserver())
    settings = settings_of(quotas, config)

    def in_force(config: Config) -> Overload:
        settings.set_capacity(config)
        assert quotas.overload is not None
        return quotas.overload

    before = in_force(config)
    before.step(400, 0.8)
    usable = before.usable
    assert usable < 1
    after = in_force(wanted := Config.model_validate({**FILE, **changed}))
    assert after.usable == usable
    assert after.times is before.times
    assert (after.target_ms, after.enforce) == (wanted.overload.broker_time_ms, wanted.overload.mode == "enforce")
    settings.set_capacity(Config.model_validate({**FILE, "overload": {"mode": "off"}}))
    assert quotas.overload is None
    assert in_force(config).usable == 1


def test_file_that_the_start_would_refuse_with_the_limits_of_brokers_is_refused() -> None:
    of_one = {"10.0.0.1": 5}
    config = Config.model_validate({**FILE, "connections": {"max_connections_per_ip_overrides": of_one}})
    limits = connection_limits(config, plan_descriptors(config, DESCRIPTORS))
    settings = settings_of(None, config, connections := ConnectionQuotas(Limits(), limits, now_ms=0))
    settings.broker_limits.put_in_force({"max.connections.per.ip": "0"})
    assert connections.configured.max_connections_per_ip == 0
    settings.check(config)
    wanted = Config.model_validate(FILE)
    with pytest.raises(ConfigError) as refused:
        settings.check(wanted)
    line = "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
    assert refused.value.lines == [f"with the limits of brokers in the quota store: requirement failed: {line}"]
    started = settings_of(None, wanted, ConnectionQuotas(Limits(), limits, now_ms=0))
    with pytest.raises(LimitError, match="can be set to zero only if"):
        started.broker_limits.put_in_force({"max.connections.per.ip": "0"})
    # Without such limits the line names the key of the file.
    settings.broker_limits.put_in_force({})
    settings.check(wanted)
    with pytest.raises(ConfigError, match=r"^connections\.max_connections: 9999 and "):
        settings.check(Config.model_validate({**FILE, "connections": {"max_connections": 9_999}}))
