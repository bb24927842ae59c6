"""The manifests for Kubernetes fit the gateway and each other; the campaign `chart` renders other values, too."""

import tomllib

import pytest

from campaigns.deploy.manifests import PLAIN, ROOT, Manifests
from config import ConfigError

PODS = 2


def test_plain_manifests_fit_the_gateway_and_each_other() -> None:
    Manifests(PLAIN.read_text()).check(pods=PODS)


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ("port: 19101, targetPort: 19101", "port: 19101, targetPort: 19102"),
        ("- {name: clients-1, port: 19101, targetPort: 19101}", ""),
        ("endPort: 19102", "endPort: 19101"),
        ("terminationGracePeriodSeconds: 45", "terminationGracePeriodSeconds: 35"),
        ("pod-name: sluice-1", "pod-name: sluice-0"),
        ('member = "${POD_NAME}"', 'member = "one"'),
        ('advertised_host = "${POD_NAME}.', 'advertised_host = "sluice.'),
        ("containerPort: 9644", "containerPort: 9645"),
        ("path: /readyz", "path: /healthz"),
        ("runAsUser: 10001", "runAsUser: 0"),
        ("serviceName: sluice-pods", "serviceName: sluice-none"),
        ('kind = "topic"', 'kind = "memory"'),
    ],
)
def test_what_does_not_fit_is_found(written: str, wrong: str) -> None:
    text = PLAIN.read_text().replace(written, wrong)
    assert text != PLAIN.read_text()
    with pytest.raises(AssertionError):
        Manifests(text).check(pods=PODS)


def test_a_pod_without_its_variables_does_not_start() -> None:
    text = PLAIN.read_text().replace("name: POD_NAME\n", "name: OTHER\n")
    with pytest.raises(ConfigError, match="the environment has no variable POD_NAME"):
        Manifests(text).configuration("sluice-0")


def test_chart_and_image_have_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = (ROOT / "deploy/helm/sluice/Chart.yaml").read_text().splitlines()
    assert {f"version: {version}", f"appVersion: {version}"} <= set(chart)
    assert f'image: "sluice:{version}"' in PLAIN.read_text()
    assert f"\nARG VERSION={version}\n" in (ROOT / "Dockerfile").read_text()
