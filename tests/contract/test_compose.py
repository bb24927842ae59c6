"""docker-compose.yml and the Dockerfile, as far as they can be checked without a Docker daemon.

Checked: Debian's docker-compose accepts the file, what it mounts exists, and the programs that read that accept it;
ports and addresses are those of the gateway's configuration; no service is root; the image gets locked packages only,
and what it copies exists. The campaigns `compose` and `image` start the services and the image.
"""

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import config
from config import Config
from embedded_kafka.jars import KAFKA_VERSION
from testkit.installed import copied_by_docker
from testkit.packages import require_package

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
FILES = ROOT / "deploy" / "compose"
GATEWAYS = {"gateway-1": "127.0.0.1", "gateway-2": "127.0.0.2"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The services as docker-compose understands them: names resolved, short forms written out."""
    program = require_package("docker-compose")
    done = subprocess.run(
        [program, "--file", str(ROOT / "docker-compose.yml"), "config"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return services


def configuration(service: dict[str, Any]) -> Config:
    """What a gateway reads, with the variables that it gets."""
    return config.parse((FILES / "sluice.toml").read_text(), name="sluice.toml", environment=service["environment"])


@pytest.mark.slow
def test_compose_images_have_versions_kafkas_being_that_of_the_tests(compose: dict[str, Any]) -> None:
    assert sorted(compose) == [*GATEWAYS, "grafana", "kafka", "prometheus"]
    assert compose["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    for service in compose.values():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "host"), GATEWAYS.items())
def test_compose_publishes_exactly_what_a_gateway_binds_and_advertises(
    compose: dict[str, Any], name: str, host: str
) -> None:
    found = configuration(compose[name])
    (listener,) = found.listeners
    brokers = range(listener.first_broker_port, listener.last_broker_port + 1)
    wanted = {listener.bind.port, *brokers, found.admin.bind.port}
    published = [port.removesuffix("/tcp").split(":") for port in compose[name]["ports"]]
    assert {int(inside) for _host, _outside, inside in published} == wanted
    assert all(outside == inside for _host, outside, inside in published), "clients connect to what is advertised"
    assert {address for address, _outside, _inside in published} == {host}
    assert listener.advertised_host == host


def test_compose_gateways_are_one_fleet_and_have_no_error(compose: dict[str, Any]) -> None:
    found = [configuration(compose[name]) for name in GATEWAYS]
    assert [each.fleet.member for each in found] == list(GATEWAYS)
    assert {each.fleet.members for each in found} == {len(GATEWAYS)}
    # Clients are on the machine of the containers, and the admin ports are published there only.
    notes = [(each.severity, each.key) for one in found for each in config.findings(one)]
    keys = ["listeners.clients.advertised_host", "admin.bind"]
    assert notes == [(config.Severity.NOTE, key) for key in keys] * len(GATEWAYS)


def test_compose_gateways_find_kafka_under_its_advertised_name(compose: dict[str, Any]) -> None:
    environment = compose["kafka"]["environment"]
    for name in GATEWAYS:
        (bootstrap,) = configuration(compose[name]).upstream.bootstrap
        assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{bootstrap}"
        assert bootstrap.host == "kafka"
    assert "ports" not in compose["kafka"], "the way to the broker is through a gateway"


def test_compose_mounts_exist_where_the_programs_look(compose: dict[str, Any]) -> None:
    mounts = [volume.split(":")[:2] for name in compose for volume in compose[name].get("volumes", [])]
    files = {(source, target) for source, target in mounts if source.startswith("/")}
    provisioning = "/etc/grafana/provisioning"
    assert files == {
        (str(FILES / "sluice.toml"), re.findall(r'"--config", "([^"]+)"', DOCKERFILE)[0]),
        (str(FILES / "prometheus.yml"), "/etc/prometheus/prometheus.yml"),
        (str(ROOT / "monitoring/rules.yml"), "/etc/prometheus/rules.yml"),
        (str(ROOT / "monitoring/must_not_wait.yml"), "/etc/prometheus/must_not_wait.yml"),
        (str(FILES / "grafana-datasource.yml"), f"{provisioning}/datasources/sluice.yml"),
        (str(FILES / "grafana-dashboards.yml"), f"{provisioning}/dashboards/sluice.yml"),
        (str(ROOT / "monitoring/dashboard.json"), "/var/lib/grafana/dashboards/sluice.json"),
    }
    assert all(Path(source).is_file() for source, _target in files)


def test_grafana_finds_prometheus_and_the_dashboard(compose: dict[str, Any]) -> None:
    (source,) = yaml.safe_load((FILES / "grafana-datasource.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    dashboard = json.loads((ROOT / "monitoring/dashboard.json").read_text())
    kinds = {each["query"] for each in dashboard["templating"]["list"] if each["type"] == "datasource"}
    assert kinds == {source["type"]}
    (provider,) = yaml.safe_load((FILES / "grafana-dashboards.yml").read_text())["providers"]
    folder = provider["options"]["path"]
    mounted = [volume.split(":")[1] for volume in compose["grafana"]["volumes"]]
    home = compose["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in mounted
    assert home.startswith(f"{folder}/")


@pytest.mark.parametrize("name", GATEWAYS)
def test_f19_compose_gateways_run_without_root_or_capabilities(compose: dict[str, Any], name: str) -> None:
    gateway = compose[name]
    (user,) = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)
    assert gateway["user"] == user
    assert int(user.split(":")[0]) > 0
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]


def test_compose_waits_for_the_drain_before_it_kills(compose: dict[str, Any]) -> None:
    for name in GATEWAYS:
        drain_ms = configuration(compose[name]).drain.timeout_ms
        assert int(compose[name]["stop_grace_period"].removesuffix("s")) * 1000 > drain_ms


def test_prometheus_accepts_its_configuration_and_scrapes_the_admin_ports(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    for volume in compose["prometheus"]["volumes"]:
        source, target = volume.split(":")[:2]
        if source.startswith("/"):
            (tmp_path / Path(target).name).symlink_to(source)
    file = tmp_path / "prometheus.yml"
    done = subprocess.run(
        [require_package("prometheus", "promtool"), "check", "config", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (job,) = yaml.safe_load(file.read_text())["scrape_configs"]
    assert job["job_name"].startswith("sluice"), "as the rules and the dashboard expect it"
    wanted = [f"{name}:{configuration(compose[name]).admin.bind.port}" for name in GATEWAYS]
    assert job["static_configs"] == [{"targets": wanted}]
    for name in GATEWAYS:
        assert configuration(compose[name]).admin.allowed_hosts == (name,)


def test_dockerfile_copies_every_package_and_only_files_that_its_context_holds() -> None:
    copied = copied_by_docker()
    (names,) = re.findall(r"^INSIDE = (\(.*?\))$", (ROOT / "setup.py").read_text(), re.MULTILINE | re.DOTALL)
    assert {name for name in copied if (ROOT / name).is_dir()} == {"sluice", *ast.literal_eval(names)}
    in_context = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == in_context
    assert all((ROOT / name).exists() for name in copied)


def test_f19_dockerfile_installs_hashed_packages_and_ends_without_root() -> None:
    installs = re.findall(r"pip install ([^&\n]+)", DOCKERFILE)
    assert all("--require-hashes" in install or "--no-deps" in install for install in installs)
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER " in last_stage
    assert not re.search(r"\n(RUN|COPY) ", last_stage.partition("\nUSER ")[2])


def test_lock_files_hold_what_the_project_asks_for_with_hashes_and_no_index() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, asked in {
        "requirements.lock": project["dependencies"],
        "requirements-compile.lock": project["optional-dependencies"]["compile"],
        "requirements-dev.lock": project["dependencies"] + project["optional-dependencies"]["dev"],
    }.items():
        text = (ROOT / name).read_text()
        locked = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
        wanted = {re.split(r"[<>=~!\[; ]", requirement)[0].lower().replace("_", "-") for requirement in asked}
        assert wanted <= locked, f"{name}: run make lock for {sorted(wanted - locked)}"
        assert text.count("--hash=sha256:") >= len(locked)
        assert "://" not in text
        assert "-index" not in text
