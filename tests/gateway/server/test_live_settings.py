"""Settings of slow brokers that change while brokers are slow."""

from __future__ import annotations

from typing import Any

import pytest

from config import Config
from gateway.server.live_settings import LiveSettings
from gateway.session.client_quotas import ClientQuotas
from quotas.overload import Overload
from quotas.rate_quotas import RateSettings
from testkit.core import RecordingObserver

FILE: dict[str, Any] = {
    "upstream": {"bootstrap": ["k:1"]},
    "listeners": [{"name": "a", "bind": "127.0.0.1:19092"}],
    "capacity": {"producer_byte_rate": "100MB"},
    "overload": {"mode": "observe", "broker_time_ms": 100},
}


def settings_of(quotas: ClientQuotas, config: Config) -> LiveSettings:
    parts: Any = None
    return LiveSettings(
        config,
        descriptor_limit=10_000,
        set_session_settings=lambda _settings: None,
        limits_changed=lambda: None,
        connections=parts,
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
