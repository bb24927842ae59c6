"""The JSON Schema of the configuration takes what the models take, and knows all their keys."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import Config, ConfigError
from config.json_schema import json_schema
from config.loader import parse_file
from config.section_base import Section, kind_of
from config.value_files import MORE_DIRECTORIES
from gateway.cli.main import main
from testkit.configuration_schema import PAGE, validator
from testkit.module_map import ROOT

SCHEMA = json_schema()
GOOD = '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'


def configurations() -> Iterator[tuple[str, str]]:
    """Each configuration of the repository: files, and what pages show."""
    for folder in ("config", "deploy", "benchmarks", "campaigns", "tests"):
        for file in sorted((ROOT / folder).rglob("*.toml")):
            yield str(file.relative_to(ROOT)), file.read_text()
    for page in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]):
        toml = r'^( *)```toml(?! title="(?:groups|prices)\.toml").*?\n(.*?)^ *```'
        blocks = re.findall(toml, page.read_text(), re.MULTILINE | re.DOTALL)
        for at, (indent, block) in enumerate(blocks):
            yield f"{page.name} {at}", re.sub(f"^{indent}", "", block, flags=re.MULTILINE)


ALL = dict(configurations())


def whole(text: str) -> bool:
    tables = tomllib.loads(text)
    return "clusters" in tables or ("listeners" in tables and "upstream" in tables)


def test_the_schema_is_one_and_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    validator().check_schema(SCHEMA)
    assert main(["check-config", "--schema"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ALL)
def test_every_configuration_of_the_repository_passes(name: str) -> None:
    tables = tomllib.loads(ALL[name])
    faults = list(validator().iter_errors(tables))
    if not whole(ALL[name]):  # a part of one: sections are missing
        faults = [each for each in faults if each.validator != "required" or each.absolute_path]
    if tables.keys() <= {*Config.model_fields, "clusters"}:  # others are no configuration of the gateway
        assert [(list(each.absolute_path), each.message) for each in faults] == []


def test_there_are_configurations() -> None:
    assert sum(map(whole, ALL.values())) > 10


def models(of: type[Section], found: dict[str, type[Section]]) -> dict[str, type[Section]]:
    for field in of.model_fields.values():
        stack: list[Any] = [field.annotation]
        while stack:
            kind = stack.pop()
            stack += getattr(kind, "__args__", ())
            if isinstance(kind, type) and issubclass(kind, Section):
                found[kind.__name__] = kind
                models(kind, found)
    return found


@pytest.mark.parametrize(("name", "model"), models(Config, {}).items())
def test_every_key_is_described_and_takes_units_where_the_models_do(name: str, model: type[Section]) -> None:
    keys = SCHEMA["$defs"][name]["properties"]
    assert keys.keys() >= model.model_fields.keys()
    assert [key for key, found in keys.items() if not found.get("description", "$ref" in found)] == []
    units = [key for key, found in keys.items() if "string" in found.get("type", ()) and kind_of(key)]
    assert units == [key for key in keys if kind_of(key) is not None]


@pytest.mark.parametrize(
    "text",
    [
        '[limits]\nmax_frame_bytes = "10MiB"\nqueued_max_request_bytes = "1.5 GB"\n',
        '[connections]\nmax_connection_creation_rate = "5/s"\n',
        '[connections.max_connections_per_ip_overrides]\n"10.0.0.1" = 5\n',
        '[server]\nworkers = "auto"\n',
        '[server]\nworkers = "${WORKERS}"\n',
        '[log]\nlevel = "${LEVEL}"\n',
        '[admin]\nbind = "[::1]:0"\n',
        '[admin]\nbind = "${file:DIR/bind}"\n',
        '[quota_store]\naccept_unsigned = true\nsecret_file = "s"\n',
        '[[quotas]]\nclient-id = "a"\nrequest_percentage = "250%"\n',
        "[[quotas]]\ndefault-client-id = true\ncontroller_mutation_rate = 0.5\n",
        '[[quotas]]\nuser = "a"\ndefault_user = false\nproducer_byte_rate = "1kB/s"\n',
        '[[quotas]]\ntopic = "t"\nuser = "a"\nconsumer_byte_rate = 5\n',
        '[[quotas]]\ndefault_ip = true\nconnection_creation_rate = "5/s"\n',
        '[[quotas]]\nip = "10.0.0.0/8"\nobserve = true\nconnection_creation_rate = 5\n',
        '[[groups]]\nname = "g"\naddresses = ["10.0.0.0/8"]\n'
        '[[quotas]]\ngroup = "g"\ndefault_user = false\nproducer_byte_rate = "5MB"\nrequest_percentage = "50%"\n',
    ],
)
def test_what_the_models_take_the_schema_takes(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MORE_DIRECTORIES, str(tmp_path))
    (tmp_path / "bind").write_text("127.0.0.1:9644\n")
    text = GOOD + text.replace("DIR", str(tmp_path))
    parse_file(text, name="f", environment={"LEVEL": "info", "WORKERS": "auto", MORE_DIRECTORIES: str(tmp_path)})
    assert [each.message for each in validator().iter_errors(tomllib.loads(text))] == []


CLUSTER = """
[[clusters]]
name = "a"
[clusters.upstream]
bootstrap = ["k:1"]
[[clusters.listeners]]
name = "a"
bind = "127.0.0.1:1"
"""


@pytest.mark.parametrize(
    "text",
    [
        CLUSTER.replace('name = "a"\n', "", 1),
        CLUSTER.replace('"a"', '"a b"', 1),
        CLUSTER + "[server]\nworkers = 1\n",
        CLUSTER + "[clusters.log]\nlevel = 'info'\n",
        GOOD + '[[admin.keys]]\nname = "a"\nroles = ["read"]\n',
        GOOD + '[[admin.keys]]\nname = "a"\nroles = ["read"]\ntoken_file = "f"\ncertificate = "c"\n',
        GOOD + '[[admin.keys]]\nname = "a"\nroles = ["admin"]\ntoken_file = "f"\n',
        GOOD + '[[quotas]]\nuser = "a"\ndefault_user = true\nproducer_byte_rate = 1\n',
        GOOD + '[[quotas]]\ntopic = "a"\nrequest_percentage = 1\n',
        GOOD + '[[groups]]\nname = "g"\n',
        GOOD + '[[quotas]]\ngroup = "g"\nuser = "a"\nproducer_byte_rate = 1\n',
        GOOD + '[[quotas]]\ngroup = "g"\nproducer_byte_rate = 1\ntier = 0\n',
        GOOD + '[[quotas]]\ngroup = "g"\nproducer_record_rate = 1\n',
        GOOD + '[[quotas]]\ngroup = "g"\n',
        GOOD + '[admin.tls]\ncertificate = "c"\nkey = "k"\nclient_auth = "required"\n',
        GOOD + '[fleet]\nprevious_secret_file = "c"\n',
        GOOD + 'sni = {bootstrap_name = "k.e", broker_name = "b{node}.e"}\nbroker_ports = 3\n',
    ],
)
def test_rules_of_a_section_are_in_both(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_file(text, name="f")
    assert list(validator().iter_errors(tomllib.loads(text))) != []


def test_a_good_file_with_clusters_passes_both() -> None:
    parse_file(CLUSTER, name="f")
    assert list(validator().iter_errors(tomllib.loads(CLUSTER))) == []
