"""``python -m campaigns.deploy.chart``: renders the Helm chart with several values and checks the manifests.

Helm lints and renders the chart, kubeconform checks Kubernetes' schemas, and the gateway's own loader reads the
configuration of each pod. deploy/kubernetes/sluice.yaml must equal the rendered chart: --write writes it. Exit code 1
when a check fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from campaigns.deploy.go_modules import helm, kubeconform
from campaigns.deploy.manifests import PLAIN, ROOT, Manifests
from campaigns.deploy.schemas import KUBERNETES, schemas

CHART: Final = ROOT / "deploy" / "helm" / "sluice"
_VERSION: Final = ("--kube-version", KUBERNETES)
_HEAD: Final = """\
# Two gateways of one fleet, for those without Helm: kubectl -n NAMESPACE apply -f sluice.yaml
# Made from deploy/helm/sluice by `make chart`. Change bootstrap servers, ports and quotas in the ConfigMap.
"""
# Each breaks one rule: (values, the expected message of Helm or kubeconform).
_WRONG: Final[tuple[tuple[str, str], ...]] = (
    ("{}", "bootstrap"),
    ("{config: {upstream: {bootstrap: [k:1]}}, replica: 3}", "replica"),
    ("{config: {upstream: {bootstrap: [k:1]}, quotas: []}}", "quotas"),
    ("{config: {clusters: [{name: a, listeners: [{name: b, bind: c:1}]}]}}", "upstream"),
    (
        "{config: {clusters: [{name: -, upstream: {bootstrap: [k:1]}, listeners: [{name: b, bind: c:1}]}]}}",
        "name",
    ),
    (
        "{config: {upstream: {bootstrap: [k:1]}, clusters: [{name: a, upstream: {bootstrap: [k:1]}, "
        "listeners: [{name: b, bind: c:1}]}]}}",
        "bootstrap",
    ),
    (
        "{config: {clusters: [{name: a, upstream: {bootstrap: [k:1]}, listeners: [{name: b, bind: c:1}]}]}, "
        "quotas: [{}]}",
        "quotas",
    ),
    ("{config: {upstream: {bootstrap: [k:1]}}, podServices: {type: Ingress}}", "podServices"),
    ("{config: {upstream: {bootstrap: [k:1]}}, env: [{name: A, valeu: b}]}", "valeu"),
)


def main() -> int:
    """Check, or write."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.deploy.chart", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PLAIN.relative_to(ROOT)}")
    options = parser.parse_args()
    found = plain()
    if options.write:
        PLAIN.parent.mkdir(parents=True, exist_ok=True)
        PLAIN.write_text(found)
    assert PLAIN.read_text() == found, f"{PLAIN} is not what the chart renders: make chart"
    objects = 0
    files = sorted((CHART / "ci").glob("*.yaml"))
    for file in files:
        _run(helm(), "lint", "--strict", *_VERSION, "-f", str(file), str(CHART))
        text = rendered(file)
        Manifests(text).check(pods=_most_pods(file))
        objects += text.count("\nkind: ")
        _run(*_kubeconform(), text=text)
        print(f"{file.name}: ok")
    for values, word in _WRONG:
        assert word in _refused(values), f"{values} is not refused because of {word}"
    print(
        f"**{len(files)} sets of values, {objects} objects valid for Kubernetes {KUBERNETES}, {len(_WRONG)} refused**"
    )
    return 0


def rendered(values: Path | str) -> str:
    """The manifests of a release in the namespace kafka.

    Args:
        values: a file, or "-" if `_run` gets the text.
    """
    return _run(helm(), "template", "sluice", str(CHART), "-n", "kafka", *_VERSION, "-f", str(values))


def plain() -> str:
    """The expected text of deploy/kubernetes/sluice.yaml."""
    lines = rendered(CHART / "ci" / "plain.yaml").splitlines()
    kept = [line.rstrip() for line in lines if not line.startswith("# Source:")]
    return _HEAD + "\n".join(kept) + "\n"


def _most_pods(file: Path) -> int:
    values: dict[str, Any] = yaml.safe_load(file.read_text())
    scaled = values.get("autoscaling", {})
    return int(scaled["maxReplicas"]) if scaled.get("enabled") else int(values.get("replicas", 2))


def _kubeconform() -> list[str]:
    return [kubeconform(), "-strict", "-summary", "-schema-location", schemas(), "-"]


def _refused(values: str) -> str:
    """The error message for these values; empty if they pass."""
    command = [helm(), "template", "sluice", str(CHART), *_VERSION, "-f", "-"]
    first = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
    if first.returncode:
        return first.stderr
    second = subprocess.run(_kubeconform(), input=first.stdout, capture_output=True, text=True, check=False)
    return second.stdout if second.returncode else ""


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
