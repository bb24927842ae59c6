"""A gateway's connection limits for tests of changes over the wire, without a gateway."""

from __future__ import annotations

import config
from config import Config
from gateway.quota_admin.broker_limits import BrokerLimits, Values
from gateway.server.connection_capacity import connection_limits, plan_descriptors
from quotas.connections import ConnectionLimits

DESCRIPTORS = 1_000
TEXT = """\
[upstream]
bootstrap = ["k:1"]
[[listeners]]
name = "Clients"
bind = "127.0.0.1:19092"
[connections]
max_connections_per_ip = 50
"""


class ScriptedLimits:
    """Limits of connections, without a store.

    Attributes:
        limits: for a `HandlerContext`.
        config: the limits of the configuration file.
        in_force: all limits together.
    """

    def __init__(self, text: str = TEXT) -> None:
        self.config: Config = config.parse(text, name="f")
        self.in_force: ConnectionLimits = self._limits_of(self.config)
        self.limits = BrokerLimits(
            [listener.name for listener in self.config.listeners],
            config=lambda: self.config,
            check=self._check,
            apply=self._apply,
            in_force=lambda: self.in_force,
        )

    def _check(self, found: Config) -> None:
        plan_descriptors(found, DESCRIPTORS)

    def _apply(self, values: Values) -> None:
        self.in_force = self._limits_of(self.limits.over(self.config, values))

    def _limits_of(self, found: Config) -> ConnectionLimits:
        return connection_limits(found, plan_descriptors(found, DESCRIPTORS))
