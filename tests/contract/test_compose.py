"""docker-compose.yml and the Dockerfile, as far as they can be checked without a Docker daemon.

Checked: Debian's docker-compose accepts the file, what it mounts exists, and the programs that read that accept it;
ports and addresses are those of the gateway's configuration; no service is root; the image gets locked packages only,
and what it copies exists. Not checked: building, pulling and starting the images.
"""

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from config.loader import load
from embedded_kafka.jars import KAFKA_VERSION
from testkit.installed import copied_by_docker
from testkit.packages import require_package

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
EXAMPLES = ROOT / "config" / "examples"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The services as docker-compose understands them: names resolved, short forms written out."""
    program = require_package("docker-compose")
    done = subprocess.run(
        [program, "--file", str(ROOT / "docker-compose.yml"), "config"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    # Its output is YAML, for which the project has no parser; docker-compose's own Python has one.
    interpreter = Path(program).read_text().splitlines()[0].removeprefix("#!").split()
    as_json = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, default=str)"
    read = subprocess.run(
        [*interpreter, "-c", as_json], input=done.stdout, capture_output=True, text=True, timeout=60
    )
    assert read.returncode == 0, read.stderr
    services: dict[str, Any] = json.loads(read.stdout)["services"]
    return services


def test_compose_images_have_versions_kafkas_being_that_of_the_tests(compose: dict[str, Any]) -> None:
    assert sorted(compose) == ["gateway", "kafka", "prometheus"]
    assert compose["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    for service in compose.values():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]


def test_compose_publishes_exactly_what_the_gateway_binds_and_advertises(compose: dict[str, Any]) -> None:
    config = load(EXAMPLES / "compose.toml")
    (listener,) = config.listeners
    brokers = range(listener.first_broker_port, listener.last_broker_port + 1)
    wanted = {listener.bind.port, *brokers, config.admin.bind.port}
    published = [port.removesuffix("/tcp").split(":") for port in compose["gateway"]["ports"]]
    assert {int(inside) for _host, _outside, inside in published} == wanted
    assert all(outside == inside for _host, outside, inside in published), "clients connect to what is advertised"
    assert {host for host, _outside, _inside in published} == {"127.0.0.1"}
    assert listener.advertised_host == "localhost"


def test_compose_gateway_finds_kafka_under_its_advertised_name(compose: dict[str, Any]) -> None:
    (bootstrap,) = load(EXAMPLES / "compose.toml").upstream.bootstrap
    environment = compose["kafka"]["environment"]
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{bootstrap}"
    assert bootstrap.host == "kafka"
    assert "ports" not in compose["kafka"], "the way to the broker is through the gateway"


def test_compose_mounts_exist_where_the_programs_look(compose: dict[str, Any]) -> None:
    mounts = dict(volume.split(":")[:2] for name in compose for volume in compose[name].get("volumes", []))
    files = {source: target for source, target in mounts.items() if source.startswith("/")}
    assert files == {
        str(EXAMPLES / "compose.toml"): re.findall(r'"--config", "([^"]+)"', DOCKERFILE)[0],
        str(EXAMPLES / "prometheus.yml"): "/etc/prometheus/prometheus.yml",
    }
    assert all(Path(source).is_file() for source in files)


def test_compose_gateway_runs_without_root_or_capabilities(compose: dict[str, Any]) -> None:
    gateway = compose["gateway"]
    (user,) = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)
    assert gateway["user"] == user
    assert int(user.split(":")[0]) > 0
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]


def test_compose_waits_for_the_drain_before_it_kills(compose: dict[str, Any]) -> None:
    drain_ms = load(EXAMPLES / "compose.toml").drain.timeout_ms
    assert int(compose["gateway"]["stop_grace_period"].removesuffix("s")) * 1000 > drain_ms


def test_prometheus_accepts_its_configuration_and_scrapes_the_admin_port() -> None:
    file = EXAMPLES / "prometheus.yml"
    done = subprocess.run(
        [require_package("prometheus", "promtool"), "check", "config", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert f'"gateway:{load(EXAMPLES / "compose.toml").admin.bind.port}"' in file.read_text()


def test_dockerfile_copies_every_package_and_only_files_that_its_context_holds() -> None:
    copied = copied_by_docker()
    (names,) = re.findall(r"^INSIDE = (\(.*?\))$", (ROOT / "setup.py").read_text(), re.MULTILINE | re.DOTALL)
    assert {name for name in copied if (ROOT / name).is_dir()} == {"sluice", *ast.literal_eval(names)}
    in_context = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == in_context
    assert all((ROOT / name).exists() for name in copied)


def test_dockerfile_installs_hashed_packages_and_ends_without_root() -> None:
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
