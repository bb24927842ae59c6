"""Metrics of configuration reloads, quota changes and the quota store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.events import AdminApi, AdminOutcome, AdminRefusal, ReloadResult
from gateway.runtime.clock import NowMs
from quotas.entities import QuotaKey
from quotas.layered_quotas import LayeredQuotas


class _QuotaAdmin(Protocol):
    @property
    def outcomes(self) -> Mapping[tuple[AdminApi, AdminOutcome], int]: ...
    @property
    def changes(self) -> int: ...


class _AdminAccess(Protocol):
    @property
    def refusals(self) -> Mapping[AdminRefusal, int]: ...


class _AdminKeys(Protocol):
    @property
    def last_reload_failed(self) -> bool: ...


class _Login(Protocol):
    @property
    def refreshes(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def last_refresh_failed(self) -> bool: ...
    def expires_s(self) -> float | None: ...


class _Store(Protocol):
    @property
    def version(self) -> int: ...
    @property
    def read_only(self) -> str | None: ...
    @property
    def stale(self) -> str | None: ...
    @property
    def bad_records(self) -> int: ...
    @property
    def unsigned_records(self) -> int: ...


class _StoreCounts(Protocol):
    @property
    def writes(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def changed_at_ms(self) -> int | None: ...


class _OwnTopics(Protocol):
    @property
    def refusals(self) -> int: ...


class _LiveQuotas(Protocol):
    @property
    def quotas(self) -> LayeredQuotas: ...
    @property
    def store(self) -> _Store: ...
    @property
    def counts(self) -> _StoreCounts: ...


class ReloadMetrics(Collector):
    """Reloads of the configuration file."""

    def __init__(self) -> None:
        self._reloads: Counter[ReloadResult] = Counter()
        self._last_reload_failed = False
        self._awaiting_restart = 0

    def config_reloaded(self, result: ReloadResult, *, awaiting_restart: int) -> None:
        """The configuration file was reloaded.

        Args:
            result: the result.
            awaiting_restart: the number of settings that differ from those in force; ignored if the file is invalid.
        """
        self._reloads[result] += 1
        self._last_reload_failed = result is ReloadResult.INVALID
        if not self._last_reload_failed:
            self._awaiting_restart = awaiting_restart

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        reloads = CounterMetricFamily(
            "gateway_config_reloads", "Times the configuration file was read again.", labels=["result"]
        )
        for result in ReloadResult:
            reloads.add_metric([result.value], self._reloads[result])
        yield reloads
        yield GaugeMetricFamily(
            "gateway_config_last_reload_successful",
            "0 while the configuration file has errors and the last valid one stays in force.",
            value=not self._last_reload_failed,
        )
        yield GaugeMetricFamily(
            "gateway_config_settings_awaiting_restart",
            "Changed settings of the configuration file that need a restart.",
            value=self._awaiting_restart,
        )


class ReadinessMetrics(Collector):
    """Whether clients can be served."""

    def __init__(self, why_not_ready: Callable[[], str | None]) -> None:
        self._why_not_ready = why_not_ready

    def collect(self) -> Iterator[Metric]:
        """As of now."""
        yield GaugeMetricFamily(
            "gateway_ready",
            "1 while clients can be served; /readyz says why not.",
            value=self._why_not_ready() is None,
        )


class QuotaAdminMetrics(Collector):
    """Requests about quotas. All series exist from the start, so that the first refusal is an increase."""

    def __init__(self, admin: _QuotaAdmin) -> None:
        self._admin = admin

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        requests = CounterMetricFamily(
            "gateway_quota_admin_requests",
            "Requests to see or change quotas and limits, answered here.",
            labels=["api", "outcome"],
        )
        for api in AdminApi:
            for outcome in AdminOutcome:
                requests.add_metric([api.value, outcome.value], self._admin.outcomes[api, outcome])
        yield requests
        yield CounterMetricFamily(
            "gateway_quota_changes",
            "Quotas and limits that were changed by Kafka's API.",
            value=self._admin.changes,
        )


class AdminPortMetrics(Collector):
    """Refused requests to the admin port, and its keys."""

    def __init__(self, access: _AdminAccess, keys: _AdminKeys) -> None:
        self._access = access
        self._keys = keys

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        refusals = CounterMetricFamily(
            "gateway_admin_refusals", "Requests that the admin port refused, by reason.", labels=["reason"]
        )
        for reason in AdminRefusal:
            refusals.add_metric([reason.value], self._access.refusals[reason])
        yield refusals
        yield GaugeMetricFamily(
            "gateway_admin_keys_last_reload_successful",
            "0 while a changed token file of the admin port cannot be used and its earlier tokens stay in force.",
            value=not self._keys.last_reload_failed,
        )


class LoginMetrics(Collector):
    """The gateway's own logins to brokers."""

    def __init__(self, logins: Mapping[str, _Login]) -> None:
        """Args: logins: by upstream."""
        self._logins = logins

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        refreshes = CounterMetricFamily(
            "gateway_upstream_login_refreshes",
            "Times the gateway had a new password, secret or token for its own login, or could not use it.",
            labels=["upstream", "result"],
        )
        current = GaugeMetricFamily(
            "gateway_upstream_login_last_refresh_successful",
            "0 while the gateway cannot use or get a new password, secret or token for its own login. An earlier "
            "one stays in force.",
            labels=["upstream"],
        )
        expiry = GaugeMetricFamily(
            "gateway_upstream_login_token_expiry_timestamp_seconds",
            "End of validity of the token of the gateway's own login.",
            labels=["upstream"],
        )
        for name, login in self._logins.items():
            refreshes.add_metric([name, "applied"], login.refreshes)
            refreshes.add_metric([name, "failed"], login.failures)
            current.add_metric([name], not login.last_refresh_failed)
            if (expires_s := login.expires_s()) is not None:
                expiry.add_metric([name], expires_s)
        yield from (refreshes, current, expiry)


class StoreMetrics(Collector):
    """The quota store."""

    def __init__(self, live: _LiveQuotas, own_topics: _OwnTopics, now_ms: NowMs) -> None:
        self._live = live
        self._own_topics = own_topics
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        live, counts = self._live, self._live.counts
        yield GaugeMetricFamily(
            "gateway_quota_store_version",
            "Version of the quota store; the same in all gateways that share it.",
            value=live.store.version,
        )
        yield GaugeMetricFamily(
            "gateway_quota_store_writable",
            "0 while the store refuses alterations because its disk could not be written at the start.",
            value=float(live.store.read_only is None),
        )
        yield GaugeMetricFamily(
            "gateway_quota_store_following",
            "1 while the gateway follows the changes of other gateways.",
            value=float(live.store.stale is None),
        )
        overrides = GaugeMetricFamily(
            "gateway_quota_store_quotas", "Quotas in the store, by quota.", labels=["quota"]
        )
        for key in QuotaKey:
            overrides.add_metric([key.value], live.quotas.override_count(key))
        yield overrides
        yield CounterMetricFamily(
            "gateway_quota_store_writes",
            "Alterations that were made through this gateway.",
            value=counts.writes,
        )
        yield CounterMetricFamily(
            "gateway_quota_store_write_failures",
            "Alterations that failed. Refused ones do not count.",
            value=counts.failures,
        )
        yield CounterMetricFamily(
            "gateway_quota_store_bad_records",
            "Records of the shared topic that are not quotas and were skipped.",
            value=live.store.bad_records,
        )
        yield CounterMetricFamily(
            "gateway_quota_store_unsigned_records",
            "Records of the shared topic that were skipped because they have no valid signature.",
            value=live.store.unsigned_records,
        )
        yield CounterMetricFamily(
            "gateway_own_topic_refusals",
            "Requests of clients that would have changed a topic of the gateway.",
            value=self._own_topics.refusals,
        )
        if counts.changed_at_ms is not None:
            yield GaugeMetricFamily(
                "gateway_quota_store_last_change_age_seconds",
                "Time since the last change of a quota, here or in another gateway; absent before the first one.",
                value=(self._now_ms() - counts.changed_at_ms) / 1000,
            )
