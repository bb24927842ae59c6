"""Every campaign, in the order in which `make campaigns` runs them: the short ones first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pinned_jars import cache_dir

SEED: Final = "{seed}"
"""Placeholder in a command for the seed of the run."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A program whose exit code is 0 when its claim holds.

    Attributes:
        name: `make campaigns ONLY=name` runs it alone.
        shows: the claim that holds when it passes.
        command: the arguments of Python.
        figure: a regular expression. The last matching line of the output is kept as the figure.
        says: the figure in words with the groups of that match, such as `\\1 seeds`; empty: the line as it is.
        environment: additional environment variables of its process.
        quick: whether it is part of `make scoreboard-quick`, which takes 20 minutes.
    """

    name: str
    shows: str
    command: tuple[str, ...]
    figure: str = r"\S"
    says: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    quick: bool = False

    @property
    def seeded(self) -> bool:
        """Whether its command uses the seed."""
        return any(SEED in argument for argument in self.command)


def _module(module: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", module, *arguments)


_PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0")
_SEEDED: Final = f"--randomly-seed={SEED}"
_PASSED: Final = r"\b\d+ (passed|failed|errors?)\b"
_SUMMARY: Final = r"^\*\*.*\*\*"
_0_1_0: Final = "6c07d1d2"
"""The revision of 0.1.0, which has no tag."""


def _tests(name: str, shows: str, *selected: str, quick: bool = True) -> Campaign:
    """The tests of one row of the scoreboard, each once and in the order of its file."""
    command = (*_PYTEST, "-p", "no:randomly", "-m", "not campaign and not spark", *selected)
    return Campaign(name, shows, command, _PASSED, quick=quick)


_QUICK_SCRIPTED: Final = ("dead-broker", "moving-brokers", "scrapers")
"""The quick scripted campaigns; the others together take five minutes."""

CAMPAIGNS: Final = (
    Campaign("tests", "the tests that are marked `campaign`", (*_PYTEST, _SEEDED, "-m", "campaign"), _PASSED),
    Campaign(
        "properties",
        "fuzz and property tests with 2,000 examples each, others in each run",
        (
            *_PYTEST,
            _SEEDED,
            "-m",
            "not integration and not spark",
            "tests/fuzz",
            "tests/reference",
            "tests/quotas",
            "tests/gateway/handlers",
        ),
        _PASSED,
        environment=(("HYPOTHESIS_PROFILE", "thorough"),),
    ),
    Campaign(
        "stalls",
        "the tests pass while random processes of the run, and brokers, stand still",
        _module("campaigns.stalls", "--seed", SEED),
        r"^\d+ stops of",
    ),
    Campaign(
        "fresh-clones",
        "the README's test command passes in fresh clones, also beside busy processes",
        _module("campaigns.fresh_clones"),
        _SUMMARY,
    ),
    Campaign(
        "both-cores",
        "the compiled core does what the sources do",
        _module("tests.fuzz.both_cores", "--seconds", "300"),
    ),
    *(
        Campaign(
            f"fuzz-{target.replace('_', '-')}",
            f"coverage-guided fuzzing of {target.replace('_', ' ')}",
            _module("tests.fuzz.atheris_run", target, "--seconds", "300"),
            r"number_of_executed_units: *(\d+)",
            r"\1 executions",
        )
        for target in ("sasl", "proxy_protocol", "principals", "mapping_rules", "client_quotas")
    ),
    Campaign(
        "chart",
        "the Helm chart renders what Kubernetes and the gateway accept",
        _module("campaigns.deploy.chart"),
        _SUMMARY,
    ),
    Campaign(
        "image",
        "the image, built here, serves clients from its own read-only root",
        _module("campaigns.deploy.image"),
        _SUMMARY,
    ),
    Campaign(
        "unit",
        "systemd's own tools accept the unit, and the gateway keeps within its bounds",
        (*_PYTEST, "tests/contract/test_systemd_unit.py"),
        _PASSED,
    ),
    Campaign(
        "compose",
        "the services of docker-compose.yml throttle a client of two gateways",
        _module("campaigns.deploy.compose"),
        _SUMMARY,
    ),
    Campaign(
        "spark-versions",
        "the pipeline works with each Spark that is supported",
        _module("campaigns.spark_versions"),
        _SUMMARY,
    ),
    Campaign(
        "terraform",
        "Terraform's provider for Kafka sets quotas directly and through the gateway",
        _module("campaigns.terraform"),
        _SUMMARY,
    ),
    _tests(
        "same-bytes",
        "what is passed on stays byte for byte, and what is rewritten changes only there",
        "tests/protocol",
        "tests/fuzz/test_protocol_junk.py",
        "tests/gateway/handlers/test_addresses.py",
    ),
    _tests(
        "hostile-frames",
        "each hostile frame is answered or refused as documented",
        "tests/hazards/test_frames.py",
        "tests/hazards/test_hostile_frames.py",
        "tests/hazards/test_bodies.py",
    ),
    _tests(
        "descriptors",
        "clients wait while descriptors and ports are used up",
        "-k",
        "f01 or f02 or f03",
        "tests/hazards/test_processes.py",
        "tests/gateway/net/test_acceptor.py",
        "tests/gateway/server/test_connection_capacity.py",
    ),
    _tests(
        "gone-while-muted",
        "a throttled client that leaves is noticed and forgotten",
        "-k",
        "c08 or c09",
        "tests/gateway/net",
        "tests/hazards/test_throttled_connections.py",
    ),
    _tests(
        "mutations",
        "permits of mutations are taken, given back and refused as in Kafka",
        "tests/attacks/test_mutations.py",
        "tests/quotas/test_mutations.py",
        "tests/gateway/handlers/test_mutation_exchange.py",
    ),
    _tests(
        "drain",
        "a drain answers what was read, and ends at its deadline",
        "-k",
        "drain",
        "tests/hazards/test_faults.py",
        "tests/gateway/test_app.py",
        "tests/gateway/session/test_session.py",
    ),
    _tests(
        "workers",
        "workers that are killed or stand still are replaced, and others continue",
        "tests/gateway/server/test_worker_pool.py",
        "tests/gateway/server/test_supervisor_gone.py",
    ),
    _tests(
        "clocks",
        "clocks that jump and processes that stand still change no throttle and grant at most a burst",
        "-k",
        "f06 or f07 or l05 or l06 or i15",
        "tests/hazards",
        "tests/gateway/net",
        "tests/gateway/tls",
        "tests/gateway/upstream",
        "tests/gateway/usage",
    ),
    _tests(
        "secrets",
        "no secret reaches a log, a metric, an answer or a file",
        "tests/hazards/test_secret_search.py",
        "tests/hazards/test_secrets.py",
        "tests/integration/test_secret_exchanges.py",
        quick=False,
    ),
    _tests(
        "tls-cases",
        "certificates, ciphers, records and handshakes that are wrong",
        "tests/hazards/test_tls.py",
        "tests/hazards/test_tls_cost.py",
        "tests/hazards/test_tls_ends.py",
    ),
    _tests(
        "identity",
        "every SASL mechanism, outcome and new login, at a real broker and in exchanges",
        "tests/gateway/auth",
        "tests/gateway/handlers/test_sasl.py",
        "tests/hazards/test_sasl.py",
        "tests/hazards/test_certificate_names.py",
        "tests/integration/test_sasl_matrix.py",
        "tests/integration/test_principals.py",
        quick=False,
    ),
    _tests(
        "privilege",
        "quotas, APIs of brokers, the gateway's topics, the admin port and PROXY headers need rights",
        "tests/gateway/handlers/test_quota_rights.py",
        "tests/gateway/quota_admin/test_rights.py",
        "tests/gateway/net/test_proxy_acceptor.py",
        "tests/hazards/test_proxy_protocol.py",
        "tests/attacks/test_own_topics.py",
        "tests/attacks/test_admin_access.py",
    ),
    _tests(
        "observed",
        "series, rules and dashboard show what happens, under documented names",
        "tests/monitoring",
        "tests/gateway/observability",
        "tests/contract/test_metric_names.py",
        "tests/contract/test_metrics_page.py",
    ),
    Campaign(
        "catalogue",
        "each hazard of the catalogue has a test, and these tests pass",
        _module("campaigns.scoreboard.catalogue"),
        _SUMMARY,
    ),
    *(
        Campaign(
            name, shows, _module(f"campaigns.scripted.{module}"), _SUMMARY, quick=name in _QUICK_SCRIPTED
        )
        for name, module, shows in (
            (
                "dead-broker",
                "dead_broker",
                "clients of a broker that does not answer are closed, others served",
            ),
            (
                "moving-brokers",
                "moving_brokers",
                "brokers that come, move and go are reached, and no other one",
            ),
            ("log-flood", "log_flood", "a flood of bad connections is a few lines and an exact count"),
            (
                "no-descriptors",
                "no_descriptors",
                "a gateway without descriptors rests, loses no client, and accepts again soon",
            ),
            (
                "worker-kills",
                "worker_kills",
                "workers that are killed are replaced soon, and others lose nothing",
            ),
            ("worker-quotas", "worker_quotas", "a quota is soon in force in every worker"),
            ("scrapers", "scrapers", "a hundred scrapers at a time leave clients their answers"),
            ("crowd", "crowd", "a million client ids and a million addresses cost bounded memory and series"),
        )
    ),
    Campaign(
        "reassigned",
        "partitions that move between real brokers are followed, and no other broker is reached",
        _module("campaigns.reassigned"),
        _SUMMARY,
    ),
    Campaign("simulated-hour", "an hour of whole gateways breaks no law", _module("simulation", "--hour")),
    Campaign(
        "simulation",
        "10,000 seeds of whole gateways break no law",
        _module("simulation", "--seeds", "0:10000", "--jobs", "2"),
    ),
    Campaign(
        "shares",
        "1,000 seeds that divide a capacity break no promise about shares",
        _module("simulation", "--shares", "--seeds", "0:1000", "--jobs", "2"),
    ),
    Campaign(
        "share-attacks",
        "50 seeds of each attack on shares keep within their bounds",
        _module("simulation", "--attacks", "--seeds", "0:50", "--jobs", "2"),
    ),
    Campaign(
        "share-attacks-broker",
        "attacks on shares keep within their bounds at a real broker, honest clients beside them",
        _module("campaigns.adversary.shares"),
        _SUMMARY,
    ),
    Campaign(
        "order",
        "five million small frames stay in order under every quota",
        _module("benchmarks.order", "--requests", "5000000", "--seed", SEED),
        _SUMMARY,
    ),
    Campaign(
        "accuracy",
        "byte rates hold, by client family",
        _module("benchmarks.accuracy"),
        r"^\| librdkafka \| fetch \| ([\d.]+) \(([\d.]+) to ([\d.]+)\)",
        r"librdkafka's Fetch: \1 of the quota, \2 to \3 in windows of 11.5 s",
    ),
    Campaign(
        "crash",
        "the quota store survives a kill at every system call",
        _module("benchmarks.crash"),
        r"^\*\*[\d,]+ processes killed",
    ),
    Campaign(
        "store",
        "a hundred thousand quotas: start, alterations and look-ups, in a file and in a topic",
        _module("benchmarks.store", "--topic"),
        _SUMMARY,
    ),
    Campaign(
        "slow-consumers",
        "memory while 500 consumers read slowly or not at all, and when those that do not read are closed",
        _module("benchmarks.connections.slow_consumers"),
        r"^\| sources \| ([\d.]+) .*\| ([\d.]+) s \|$",
        r"500 consumers: \1 KiB of memory each; those that read nothing are closed after \2 s",
    ),
    Campaign(
        "connection-rates",
        "connection rates hold, beside Kafka's",
        _module("benchmarks.connections.accuracy"),
        r"^\| Sluice \| address \| 11 x 1 s \| [^|]+ \| ([\d.]+), ([\d.]+), ([\d.]+) ",
        r"three addresses over two periods of eleven windows: \1, \2 and \3 of their limit",
    ),
    Campaign(
        "slow-clients",
        "slow clients go at their deadlines",
        _module("benchmarks.connections.slowloris"),
        r"^\| silent \| ([\d,]+) \| \S+ s \| \S+ s \| \+?(\S+) s ",
        r"\1 silent clients were closed at most \2 s from their deadline",
    ),
    Campaign(
        "churn",
        "connections that come and go leave nothing behind",
        _module("benchmarks.connections.churn"),
        r"^\*\*[\d,]+ connections",
    ),
    Campaign(
        "storms",
        "storms of Metadata and commits are over in 2 s, and honest clients beside them notice little",
        _module("campaigns.storms.campaign"),
        _SUMMARY,
    ),
    Campaign(
        "tls-storm",
        "a storm of handshakes",
        _module("benchmarks.tls.storm"),
        r"^\| Sluice \| storm \| \d+ us \| \d+ us \| (\d+) us \|.*\| ([\d.]+) \| [\d.]+ \|$",
        r"p99 of an established client in the storm \1 us, \2 times that of its calmest round alone",
    ),
    Campaign(
        "limits",
        "the largest bodies of every API hold the loop for at most 20 ms; writes benchmarks/results/limits.md",
        _module("benchmarks.limits", "--write", "benchmarks/results/limits.md"),
        r"^\d+ cases",
    ),
    Campaign(
        "broker-restart",
        "clients are back soon after 20 restarts of a broker, beside clients without Sluice",
        _module("campaigns.broker_restart"),
        _SUMMARY,
    ),
    Campaign(
        "at-least-once",
        "producers without idempotence lose nothing through faults, and double no more than without Sluice",
        _module("campaigns.at_least_once"),
        _SUMMARY,
    ),
    Campaign(
        "transactions",
        "transactions during restarts of gateways and brokers show no more anomalies than without Sluice",
        _module("campaigns.transactions", "--seed", SEED),
        _SUMMARY,
    ),
    Campaign(
        "usage-outage",
        "ten minutes without the topic of usage records: each line is there or counted as dropped",
        _module("campaigns.usage_outage"),
        _SUMMARY,
    ),
    Campaign(
        "misrouted",
        "clients of Kafka 4.4 at the wrong broker recover in 5 s and get no other node's data",
        _module("benchmarks.misrouted"),
        _SUMMARY,
    ),
    Campaign(
        "peers",
        "the same hostile clients at Sluice, HAProxy and Kroxylicious, side by side",
        _module("benchmarks.peers"),
        _SUMMARY,
    ),
    Campaign(
        "three-teams",
        "three teams of real clients have their shares of a capacity, and tier 0 its latency",
        _module("campaigns.three_teams"),
        _SUMMARY,
    ),
    Campaign("alerts", "every alert fires and stops", _module("benchmarks.alerts"), r"fired and stopped"),
    Campaign(
        "overload", "all attacks at once in 512 MiB", _module("benchmarks.adversary.overload"), _SUMMARY
    ),
    Campaign(
        "announced",
        "what is announced and not sent costs no other client",
        _module("benchmarks.adversary.announced"),
    ),
    Campaign(
        "fleet-schedules",
        "one quota over a fleet, in 1,250 random schedules",
        _module("benchmarks.fleet", "--schedules", "1250"),
        _SUMMARY,
    ),
    Campaign(
        "fleet-minutes",
        "one quota over four gateways of two workers, minute by minute",
        _module("benchmarks.fleet", "--minutes", "100"),
        r"^\| 4 x 2 \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) ",
        r"\1 runs: in a minute \2 of the quota in the mean, \3 to \4",
    ),
    Campaign(
        "fleet-faults",
        "one quota over a fleet, under faults",
        _module("benchmarks.fleet", "--faults"),
        r"In all (\d+) s they passed ([\d.]+) of the quota",
        r"\2 of the quota in \1 s with six faults",
    ),
    Campaign(
        "upgrade",
        "no client notices 50 upgrades and 100 reloads",
        _module("benchmarks.upgrade"),
        _SUMMARY,
    ),
    Campaign(
        "upgrade-earlier",
        "no client notices an upgrade from 0.1.0 by its installation, and its quotas stay",
        _module("benchmarks.upgrade", "--from", _0_1_0, "--upgrades", "3", "--reloads", "4"),
        _SUMMARY,
    ),
    Campaign(
        "streams",
        "Kafka Streams of three versions counts as directly under mutation quotas",
        _module("tests.integration.streams_quotas"),
        _SUMMARY,
    ),
    Campaign(
        "exactly-once",
        "ingests that are killed lose no row and count none twice",
        _module("benchmarks.pipeline_exactly_once", "--seed", SEED),
        r"^\| files \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\d+) / (\d+) ",
        r"\1 kills: of \2 rows Spark has \3 and DuckDB \4; counted twice: \5 and \6",
    ),
    Campaign(
        "fidelity",
        "simulate says what a gateway did",
        _module("benchmarks.fidelity_campaign", "--seed", SEED),
        r"share of throttled requests is off by ([\d.]+%).* times reported by ([\d.]+%)",
        r"throttled shares of bytes are off by \1 (mean, goal 1%), throttle times by \2 (median, goal 5%)",
    ),
    Campaign(
        "backtest", "quotas of earlier days fit the next", _module("benchmarks.backtest"), r"^\| 1 day \|"
    ),
    Campaign(
        "feedback",
        "quotas recommended from throttled days recover",
        _module("benchmarks.backtest_feedback"),
        r"^\| observed \| ([\d.]+) .*\| ([\d.]+) \|$",
        r"quota over need: \1 on the first day, \2 on the last",
    ),
    Campaign(
        "matrix",
        "what brokers and clients of many versions do directly, they do through the gateway",
        _module("benchmarks.matrix"),
        _SUMMARY,
    ),
    Campaign(
        "mutation",
        "unit tests find small faults",
        _module("benchmarks.mutation"),
        r"^\| all \| [\d,]+ \| (\d+) \| (\d+) .*\| ([\d.]+ %) \| ([\d.]+) to ([\d.]+) % \|$",
        r"\2 of \1 faults found: \3 (95 % interval: \4 to \5 %)",
        environment=(("PYTHONHASHSEED", "0"), ("PYTHONPATH", str(cache_dir() / "mutation"))),
    ),
    Campaign(
        "adversary",
        "10,000 random clients find no way around their quotas",
        _module("benchmarks.adversary", "--seed", SEED),
        r"^\*\*.*violations",
    ),
    Campaign(
        "soak",
        "after an hour of faults memory, descriptors and tasks are what they were",
        _module("benchmarks.soak", "--seed", SEED),
        _SUMMARY,
    ),
    Campaign(
        "chaos",
        "300 rounds of faults lose nothing that was acknowledged",
        _module("benchmarks.chaos", "--seed", SEED),
        r"^(\d+) rounds.*: (\d+) acknowledged alterations, (\d+) .* records, (\d+) requests .*\*\*(\d+ violations)",
        r"\1 rounds: \2 acknowledged alterations, \3 acknowledged records, \4 requests carried out at drains; \5",
    ),
)
