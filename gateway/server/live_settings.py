"""Settings that change while clients are connected: by a reload, or by Kafka's API for broker limits."""

from __future__ import annotations

from collections.abc import Callable

from config import Config, ConfigError
from gateway.quota_admin.broker_limits import BrokerLimits, Values
from gateway.quota_admin.rights import QuotaAdmin
from gateway.runtime.clock import NowMs
from gateway.server.admin_keys import AdminKeys
from gateway.server.connection_capacity import connection_limits, plan_descriptors, session_settings
from gateway.server.reload import ReloadPlan
from gateway.session.client_quotas import ClientQuotas
from gateway.session.settings import SessionSettings
from gateway.tls.handshake_rate import HandshakeRateLimiter
from quotas.connections import ConnectionQuotas
from quotas.limits import Enforcement
from quotas.overload import Overload


class LiveSettings:
    """Checks such changes against the file descriptors, and puts them in force.

    Code that reads the configuration in force at each use needs nothing here.

    Attributes:
        broker_limits: connection limits that were set by Kafka's API; they override those of the file.
    """

    def __init__(
        self,
        config: Config,
        *,
        descriptor_limit: int,
        set_session_settings: Callable[[SessionSettings], None],
        limits_changed: Callable[[], None],
        connections: ConnectionQuotas,
        quota_admin: QuotaAdmin,
        handshake_limiter: HandshakeRateLimiter,
        admin_keys: AdminKeys,
        client_quotas: ClientQuotas,
        now_ms: NowMs,
    ) -> None:
        """Nothing has changed yet.

        Args:
            config: in force.
            descriptor_limit: of the process.
            set_session_settings: puts the bounds of new connections in force.
            limits_changed: called after a change of connection limits.
            connections: get the limits of connections.
            quota_admin: gets the rights.
            handshake_limiter: gets its rate.
            admin_keys: get new keys.
            client_quotas: get the capacity.
            now_ms: the clock.
        """
        self._config = config
        self._descriptor_limit = descriptor_limit
        self._set_session_settings = set_session_settings
        self._limits_changed = limits_changed
        self._connections = connections
        self._quota_admin = quota_admin
        self._handshake_limiter = handshake_limiter
        self._admin_keys = admin_keys
        self._client_quotas = client_quotas
        self._now_ms = now_ms
        self.broker_limits = BrokerLimits(
            [listener.name for listener in config.listeners],
            config=lambda: self._config,
            check=self._require_descriptors,
            apply=self._apply_limits,
            in_force=lambda: connections.configured,
        )

    def check(self, config: Config) -> None:
        """Check a configuration with the broker limits applied, as the start does.

        Raises:
            ConfigError: the file descriptors do not suffice, or the two can't be in force together.
        """
        values = self.broker_limits.values
        try:
            self.broker_limits.check_over(config, values)
        except ConfigError as exc:
            if not values:
                raise
            # The fault may be in none of the values of the file.
            before = "with the limits of brokers in the quota store: "
            raise ConfigError([before + line for line in exc.lines]) from exc

    def read_files(self, config: Config) -> None:
        """Read the token files of a configuration, for `apply`. May block on the file system.

        Raises:
            ConfigError: a file can't be used.
        """
        self._admin_keys.prepare(config.admin.keys)

    def apply(self, plan: ReloadPlan) -> None:
        """Put the changes of a reload in force, except for quotas and the log."""
        self._config = plan.config
        self._set_session_settings(session_settings(plan.config))
        rights = plan.config.quota_admin
        self._quota_admin.set_rights(rights.authorize, rights.admin_names())
        self._admin_keys.use(plan.config.admin.keys)
        if plan.changes("capacity") or plan.changes("overload"):
            self.set_capacity(plan.config)
        if plan.changes("connections") or plan.changes("listeners"):
            self._handshake_limiter.per_second = plan.config.connections.max_tls_handshakes_per_second
            self._apply_limits(self.broker_limits.values)

    def set_capacity(self, config: Config) -> None:
        """Put the capacity of a configuration in force, and the reaction to slow brokers."""
        section = config.capacity
        self._client_quotas.set_capacity(section.by_quota(), observe=section.observe, now_ms=self._now_ms())
        wanted, overload = config.overload, self._client_quotas.overload
        enforce, errors = wanted.mode is Enforcement.ENFORCE, wanted.error_percent / 100
        if wanted.mode is Enforcement.OFF:
            self._client_quotas.overload = None
        elif overload is None:
            self._client_quotas.overload = Overload(
                wanted.broker_time_ms, target_errors=errors, enforce=enforce
            )
        else:  # keeps what is known about slow brokers
            overload.target_ms = wanted.broker_time_ms
            overload.target_errors = errors
            overload.enforce = enforce

    def _require_descriptors(self, config: Config) -> None:
        plan_descriptors(config, self._descriptor_limit)

    def _apply_limits(self, values: Values) -> None:
        config = self.broker_limits.over(self._config, values)
        descriptors = plan_descriptors(config, self._descriptor_limit)
        self._connections.update(connection_limits(config, descriptors), now_ms=self._now_ms())
        self._limits_changed()
