"""Clients with certificates, through the gateway, to the TLS listener of a real Kafka.

The brokers see one principal, that of the gateway's own certificate; quotas are for those of the clients.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from testkit.certificates import Authority
from testkit.secure_kafka import SecureKafka
from testkit.tap import Tap
from tests.integration.gateway_process import GATEWAY_HOST, TAP_HOST, GatewayOptions, GatewayProcess
from tests.integration.sasl_clients import IMPATIENCE_S, PATIENCE_S
from tests.integration.tls_clients import FAMILIES, TOPIC, Job, run_family

pytestmark = pytest.mark.integration

METERED_RATE: Final = 2_000
WINDOWS: Final = 2
FREE_RATE: Final = 1_000_000_000

QUOTAS: Final = f"""
[client_quota]
window_num = {WINDOWS}
[[quotas]]
user = "metered"
producer_byte_rate = {METERED_RATE}

[[quotas]]
default_user = true
producer_byte_rate = {FREE_RATE}
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A gateway before the brokers' TLS listener, with a TLS listener of its own."""

    gateway: GatewayProcess
    secure: SecureKafka
    stranger: Authority

    def job(self, family: str, who: str) -> Job:
        """What one client does; `nobody` has no certificate, `stranger` one of an authority that is not known."""
        name = f"{family} {who}"
        own = {"nobody": lambda: None, "stranger": lambda: self.stranger.issue("stranger", "metered")}.get(
            who, lambda: self.secure.authority.issue(name.replace(" ", "-"), who)
        )()
        bad = who in ("nobody", "stranger")
        return Job(
            str(self.gateway.bootstrap),
            name,
            str(self.secure.authority.certificate),
            own,
            # A JVM takes its time to start, and Java's client gives up at the first failure.
            IMPATIENCE_S if bad and family != "Java" else PATIENCE_S,
        )

    def limit(self, user: str, client_id: str) -> float | None:
        """The limit of a client's bytes, as of its series."""
        return self.gateway.metric("gateway_produce_byte_rate_limit", user=user, client_id=client_id)


@pytest.fixture(scope="module")
def setting(secure_kafka: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """See `Setting`."""
    secure_kafka.create_topic(TOPIC)
    authority = secure_kafka.authority
    listener = authority.issue("listener", "listener", hosts=(GATEWAY_HOST, TAP_HOST))
    own = authority.issue("gateway-own", "gateway")
    options = GatewayOptions(
        upstream=f"""\
security_protocol = "SSL"
tls = {{ ca = "{authority.certificate}", certificate = "{own.certificate}", key = "{own.key}" }}""",
        listener=f"""\
security_protocol = "SSL"
[listeners.tls]
certificate = "{listener.certificate}"
key = "{listener.key}"
client_auth = "required"
client_ca = "{authority.certificate}"
principal_mapping_rules = "RULE:^CN=([^,]+)$/$1/, DEFAULT"
""",
        tables=QUOTAS,
    )
    gateway = GatewayProcess(tmp_path_factory.mktemp("gateway"), secure_kafka.addresses("SSL").values(), tap, options)
    gateway.start()
    try:
        yield Setting(gateway, secure_kafka, Authority(tmp_path_factory.mktemp("stranger"), "stranger"))
    finally:
        gateway.stop()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quota_binds_the_user_of_the_certificate_and_nobody_else(setting: Setting, family: str) -> None:
    throttled = setting.gateway.metric("gateway_throttle_seconds_total", api="produce") or 0.0
    jobs = [setting.job(family, who) for who in ("metered", "free")]
    assert run_family(family, jobs) == [True, True]
    for job, user, rate in zip(jobs, ("metered", "free"), (METERED_RATE, FREE_RATE), strict=True):
        assert setting.limit(user, job.client_id) == rate or setting.limit(user, "") == rate
    waited = (setting.gateway.metric("gateway_throttle_seconds_total", api="produce") or 0.0) - throttled
    # The record is 5 seconds of the quota. A reply carries what is left of that when it comes.
    assert waited >= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_h19_who_has_no_certificate_of_the_authority_produces_nothing(setting: Setting, family: str) -> None:
    failed = {
        reason: setting.gateway.metric("gateway_tls_handshake_failures_total", reason=reason) or 0.0
        for reason in ("no_certificate", "certificate_untrusted")
    }
    assert run_family(family, [setting.job(family, who) for who in ("nobody", "stranger")]) == [False, False]
    for reason, before in failed.items():
        after = setting.gateway.metric("gateway_tls_handshake_failures_total", reason=reason) or 0.0
        assert after > before, reason


def test_no_handshake_with_a_broker_failed_and_secrets_stay_where_they_are(setting: Setting) -> None:
    assert setting.gateway.metric("gateway_upstream_tls_failures_total") == 0
    assert "PRIVATE KEY" not in setting.gateway.log_file.read_text()
