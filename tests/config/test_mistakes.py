"""Forty typical mistakes in a configuration: `check-config --strict` and the JSON Schema refuse each of them.

The message has the key, the line of the file and what is allowed. `# <-` marks the line.
"""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.cli.main import main
from testkit.configuration_schema import validator

GOOD = """\
[upstream]
bootstrap = ["kafka-1:9092"]

[[listeners]]
name = "default"
bind = "127.0.0.1:19092"

[[quotas]]
default_user = true
producer_byte_rate = "10MB"
"""


class Mistake(NamedTuple):
    """What is written instead of a good text, and what is said of it."""

    name: str
    good: str
    wrong: str
    says: str


def added(name: str, text: str, says: str) -> Mistake:
    return Mistake(name, "[[quotas]]\n", f"{text}\n[[quotas]]\n", says)


BOOTSTRAP = 'bootstrap = ["kafka-1:9092"]'
BIND = 'bind = "127.0.0.1:19092"'
RATE = 'producer_byte_rate = "10MB"'
USER = "default_user = true"
UNITS = (
    "give a number of bytes per second, alone or with B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB or TiB "
    "(powers of 1024), and with or without /s"
)

MISTAKES = [
    # names of sections and keys
    added(
        "section with a letter too few", "[limit]  # <-\nmax_mute_ms = 5", "limit: unknown key; did you mean limits?"
    ),
    Mistake(
        "section for a list",
        "[[listeners]]",
        "[listeners]  # <-",
        "listeners: a table is not an array with at least one item; write [[listeners]]",
    ),
    Mistake("list for a section", "[upstream]", "[[upstream]]  # <-", "upstream: an array is not a table"),
    Mistake(
        "dash for an underscore",
        RATE,
        f'{RATE}\nconsumer-byte-rate = "1MB"  # <-',
        "quotas.0.consumer-byte-rate (default_user=true): unknown key; did you mean consumer_byte_rate?",
    ),
    Mistake(
        "camel case",
        BOOTSTRAP,
        f"{BOOTSTRAP}\nconnectTimeoutMs = 5  # <-",
        "upstream.connectTimeoutMs: unknown key; did you mean connect_timeout_ms?",
    ),
    Mistake(
        "Kafka's name of a key",
        BIND,
        f'{BIND}\nadvertised-listeners = "k:1"  # <-',
        "listeners.default.advertised-listeners: unknown key; did you mean advertised_host?",
    ),
    added(
        "key of another section",
        "[log]\ntimeout_ms = 5  # <-",
        "log.timeout_ms: unknown key; known keys: level, format",
    ),
    Mistake(
        "quota that is not enforced",
        RATE,
        f"{RATE}\nmax_connections = 5  # <-",
        "quotas.0.max_connections (default_user=true): unknown key; ",
    ),
    added(
        "cluster beside an upstream",
        '[[clusters]]\nname = "a"\n[clusters.upstream]\nbootstrap = ["k:1"]\n[[clusters.listeners]]\nname = "a"\n'
        'bind = "127.0.0.1:1"\n',
        "upstream: cannot stand beside [[clusters]]; move it into a cluster, as [clusters.upstream]",
    ),
    # what is missing
    Mistake("no upstream", f"[upstream]\n{BOOTSTRAP}", "", "upstream: required, but missing"),
    Mistake(
        "no brokers", BOOTSTRAP, "bootstrap = []  # <-", "upstream.bootstrap: an empty array is not an array with"
    ),
    Mistake("listener without a port", BIND, "", "listeners.default.bind: required, but missing"),
    Mistake("quota of nothing", USER, "", "quotas.0: names no entity; give user, default_user, client_id, "),
    Mistake(
        "quota without a limit", RATE, "", "quotas.0 (default_user=true): limits nothing; give producer_byte_rate or "
    ),
    Mistake(
        "TLS without a certificate",
        BIND,
        f'{BIND}\nsecurity_protocol = "SSL"',
        "listeners.default.tls: required, since security_protocol is SSL",
    ),
    added(
        "certificate without its key",
        '[upstream.tls]  # <-\ncertificate = "c.pem"',
        "upstream.tls.key: required, since certificate is given",
    ),
    added("usage in no directory", '[usage]  # <-\nkind = "files"', "usage.directory: required, since kind is files"),
    added(
        "previous secret without a secret",
        '[quota_store]\nprevious_secret_file = "old"  # <-',
        "quota_store.previous_secret_file: without effect, since there is no secret_file; remove it, or give ",
    ),
    # types
    Mistake(
        "number in quotes",
        BIND,
        f'{BIND}\nbroker_ports = "3"  # <-',
        'listeners.default.broker_ports: "3" is not a whole number in 1..65535; write 3, without quotes',
    ),
    Mistake(
        "true in quotes", USER, 'default_user = "true"  # <-', 'quotas.0.default_user: "true" is not true or false'
    ),
    Mistake("one for true", USER, "default_user = 1  # <-", "quotas.0.default_user: 1 is not true or false"),
    Mistake(
        "fraction",
        RATE,
        "producer_byte_rate = 1.5  # <-",
        "quotas.0.producer_byte_rate (default_user=true): 1.5 is not a whole number in 1..",
    ),
    Mistake(
        "text for an array",
        BOOTSTRAP,
        'bootstrap = "kafka-1:9092"  # <-',
        'upstream.bootstrap: "kafka-1:9092" is not an array',
    ),
    added(
        "text for a list of admins",
        '[quota_admin]\nadmins = "User:a"  # <-',
        'quota_admin.admins: "User:a" is not an array',
    ),
    added(
        "number for a path",
        "[quota_store]\ndata_dir = 5  # <-",
        "quota_store.data_dir: 5 is not a string of at least one character",
    ),
    # ranges
    Mistake(
        "port of none",
        BIND,
        'bind = "127.0.0.1"  # <-',
        'listeners.default.bind: "127.0.0.1" is not host:port with a port in 0..65535',
    ),
    Mistake(
        "broker with a scheme",
        BOOTSTRAP,
        'bootstrap = ["PLAINTEXT://kafka-1:9092"]  # <-',
        'upstream.bootstrap.0: "PLAINTEXT://kafka-1:9092" has too many colons',
    ),
    Mistake(
        "quota of zero",
        RATE,
        "producer_byte_rate = 0  # <-",
        "quotas.0.producer_byte_rate (default_user=true): 0 is not in 1..9223372036854775807; to set no "
        "quota, leave the key out",
    ),
    added("negative time", "[drain]\ntimeout_ms = -1  # <-", "drain.timeout_ms: -1 is not in 0..2147483647"),
    added(
        "minutes for milliseconds",
        "[fleet]\ninterval_ms = 60_000  # <-",
        "fleet.interval_ms: 60000 is not in 10..10000",
    ),
    added(
        "too many workers",
        "[server]\nworkers = 1000  # <-",
        'server.workers: 1000 is not a whole number in 1..64 or "auto"',
    ),
    Mistake(
        "name with a blank",
        'name = "default"',
        'name = "my listener"  # <-',
        '"my listener" is not a string that matches ^[A-Za-z0-9_.-]{1,64}$',
    ),
    # units
    Mistake(
        "unit of bits",
        RATE,
        'producer_byte_rate = "10Mbit"  # <-',
        f'"10Mbit" is not a whole number in 1..9223372036854775807; it has the unknown unit Mbit; {UNITS}',
    ),
    Mistake(
        "unit in small letters",
        RATE,
        'producer_byte_rate = "10mb"  # <-',
        "it has the unknown unit mb (did you mean 10MB?); give",
    ),
    added(
        "unit where there is none",
        '[drain]\ntimeout_ms = "30s"  # <-',
        'drain.timeout_ms: "30s" is not a whole number in 0..2147483647; give a number without a unit',
    ),
    Mistake(
        "percent of bytes",
        RATE,
        'producer_byte_rate = "50%"  # <-',
        "it has the unknown unit %; give a number of bytes per second",
    ),
    # words
    added(
        "level in capitals",
        '[log]\nlevel = "INFO"  # <-',
        'log.level: "INFO" is not one of "debug", "info", "warning", "error"',
    ),
    Mistake(
        "protocol in small letters",
        BIND,
        f'{BIND}\nsecurity_protocol = "sasl_ssl"  # <-',
        'security_protocol: "sasl_ssl" is not one of "PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"',
    ),
    added(
        "mode that does not exist",
        '[enforcement]\nmode = "dry_run"  # <-',
        'enforcement.mode: "dry_run" is not one of "enforce", "observe", "off"',
    ),
    # contradictions
    Mistake(
        "address with a byte rate",
        USER,
        'ip = "10.0.0.1"',
        "addresses have no such quota; give connection_creation_rate",
    ),
]


def test_there_are_forty_and_without_them_the_file_is_good(tmp_path: Path) -> None:
    assert len(MISTAKES) == 40
    assert len({each.name for each in MISTAKES}) == 40
    file = tmp_path / "sluice.toml"
    file.write_text(GOOD)
    assert main(["check-config", "--strict", str(file)]) == 0
    assert list(validator().iter_errors(tomllib.loads(GOOD))) == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.name)
def test_mistake_is_refused_with_key_line_and_what_is_allowed(
    mistake: Mistake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert GOOD.count(mistake.good) == 1
    text = GOOD.replace(mistake.good, mistake.wrong)
    file = tmp_path / "sluice.toml"
    file.write_text(text)
    assert main(["check-config", "--strict", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    at = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# <-")]
    (said,) = [line for line in lines if mistake.says in line]
    if at:
        assert said.startswith(f"sluice: {file}:{at[0]}: ")
    assert len(lines) == 1 or mistake.name in ("list for a section", "cluster beside an upstream")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.name)
def test_mistake_is_refused_by_the_schema(mistake: Mistake) -> None:
    found: dict[str, Any] = tomllib.loads(GOOD.replace(mistake.good, mistake.wrong))
    assert list(validator().iter_errors(found)) != []
