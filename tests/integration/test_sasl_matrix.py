"""Four families of clients, four mechanisms, through the gateway to a real Kafka that authenticates them.

All clients of a family run at once, before the first test that asks about one of them. Who a client was to the
gateway is read from its own series: each has a client id of its own, and a quota that no one reaches gives everybody
series.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from testkit.sasl_matrix import CELLS, Cell
from testkit.secure_kafka import PASSWORDS, REAUTH_MS, WRONG_PASSWORD, SecureKafka
from testkit.tap import Tap
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_clients import IMPATIENCE_S, PATIENCE_S, TOPIC, Done, Job, run_family
from tests.integration.sasl_gateway import own_user, reauth_listener, tls_listener

pytestmark = pytest.mark.integration

EVERYBODY: Final = "[[quotas]]\ndefault_user = true\ndefault_client_id = true\nproducer_byte_rate = 1000000000\n"


class Setting:
    """The gateway before the SASL listeners of the cluster, and what the families have done there."""

    def __init__(self, gateway: GatewayProcess, reauth: str, tls: str, ca: str) -> None:
        self.gateway = gateway
        self._where = {"tapped": str(gateway.bootstrap), "reauth": reauth, "tls": tls}
        self._ca = ca
        self._done: dict[str, dict[str, Done]] = {}
        self._ended: dict[str, Counter[tuple[str, str, str]]] = {}
        self._users: defaultdict[str, set[str]] = defaultdict(set)

    def done(self, cell: Cell) -> Done:
        """What became of a client."""
        return self._family(cell.family)[cell.client_id]

    def ended(self, cell: Cell, result: str) -> float:
        """How many exchanges of the family ended so, by this mechanism, on the listener of the cell's outcome."""
        self._family(cell.family)
        return self._ended[cell.family][_listener(cell), cell.mechanism, result]

    def users(self, cell: Cell) -> set[str]:
        """For whom the client was counted."""
        self._family(cell.family)
        return self._users[cell.client_id]

    def _samples(self, name: str) -> list[Sample]:
        families = text_string_to_metric_families(self.gateway.http("/metrics")[1])
        return [sample for family in families for sample in family.samples if sample.name == name]

    def _count(self) -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        for sample in self._samples("gateway_authentications_total"):
            labels = sample.labels
            key = (labels["listener"], labels["mechanism"].upper(), labels["result"])
            found[key] = int(sample.value)
        return found

    def _family(self, family: str) -> dict[str, Done]:
        if family not in self._done:
            jobs = [job_of(cell, self._where[_listener(cell)], self._ca) for cell in CELLS if cell.family == family]
            before = self._count()
            self._done[family] = run_family(family, jobs)
            self._ended[family] = self._count() - before
            self._await_reauthentications(family, before)
            for sample in self._samples("gateway_produce_byte_rate_limit"):
                self._users[sample.labels["client_id"]].add(sample.labels["user"])
        return self._done[family]

    def _await_reauthentications(self, family: str, before: Counter[tuple[str, str, str]]) -> None:
        """Runs clients again that renewed too late, and had to connect anew: a moment of standing still is enough."""
        deadline = time.monotonic() + PATIENCE_S
        due = [cell for cell in CELLS if cell.family == family and cell.reauthenticates]
        while time.monotonic() < deadline and (
            late := [cell for cell in due if not self.ended(cell, "reauthenticated")]
        ):
            jobs = [job_of(cell, self._where[_listener(cell)], self._ca) for cell in late]
            run_family(family, jobs)
            self._ended[family] = self._count() - before


def _listener(cell: Cell) -> str:
    return {"re-authentication": "reauth", "over TLS": "tls"}.get(cell.outcome, "tapped")


def job_of(cell: Cell, bootstrap: str, ca: str) -> Job:
    """What the cell's client does."""
    user = "bob" if cell.outcome == "other principal" else "alice"
    password: str | None = PASSWORDS[user]
    patience_s = PATIENCE_S
    if cell.outcome == "failure":
        password = None if cell.mechanism == "OAUTHBEARER" else WRONG_PASSWORD
        if cell.family != "Java":  # gives up at the first failure
            patience_s = IMPATIENCE_S
    seconds = 2.2 * REAUTH_MS / 1000 if cell.outcome == "re-authentication" else 0.0
    trusted = ca if cell.outcome == "over TLS" else ""
    return Job(bootstrap, cell.mechanism, user, password, cell.client_id, seconds, trusted, patience_s)


@pytest.fixture(scope="module")
def setting(secure_kafka: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """See `Setting`."""
    secure_kafka.create_topic(TOPIC)
    reauth, reauth_tables = reauth_listener(secure_kafka)
    tls, tls_tables = tls_listener(secure_kafka)
    options = GatewayOptions(
        upstream=own_user(secure_kafka),
        listener='security_protocol = "SASL_PLAINTEXT"',
        tables=reauth_tables + tls_tables + EVERYBODY,
    )
    gateway = GatewayProcess(tmp_path_factory.mktemp("sasl"), secure_kafka.addresses("SASL").values(), tap, options)
    gateway.start()
    yield Setting(gateway, str(reauth), str(tls), str(secure_kafka.authority.certificate))
    gateway.stop()
    log = gateway.log_file.read_text()
    assert not [password for password in (*PASSWORDS.values(), WRONG_PASSWORD) if password in log]


def _success(setting: Setting, cell: Cell) -> None:
    done = setting.done(cell)
    assert (done.delivered, done.error) == (done.tried, "")
    assert setting.users(cell) == {"bob" if cell.outcome == "other principal" else "alice"}


def _failure(setting: Setting, cell: Cell) -> None:
    done = setting.done(cell)
    assert done.delivered == 0
    assert done.error, "the client was not told"
    assert setting.users(cell) == set()
    if (cell.family, cell.mechanism) != ("aiokafka", "OAUTHBEARER"):  # leaves without acknowledging the error
        assert setting.ended(cell, "failed") >= 1


def _reauthentication(setting: Setting, cell: Cell) -> None:
    _success(setting, cell)
    again = setting.ended(cell, "reauthenticated")
    assert again >= 1 if cell.reauthenticates else again == 0


CHECKS: Final[dict[str, Callable[[Setting, Cell], None]]] = {
    "success": _success,
    "over TLS": _success,
    "failure": _failure,
    "re-authentication": _reauthentication,
    "other principal": _success,
}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.client_id)
def test_client_is_who_the_broker_accepted(setting: Setting, cell: Cell) -> None:
    CHECKS[cell.outcome](setting, cell)
