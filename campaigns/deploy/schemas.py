"""JSON schemas for kubeconform: from Kubernetes' own API description, and from the Prometheus operator's resources.

Unknown keys are errors, as for `kubectl apply --validate=strict`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from campaigns.deploy.go_modules import module
from pinned_jars import cache_dir

KUBERNETES: Final = "1.34.3"
_OPERATOR: Final = ("github.com/prometheus-operator/prometheus-operator", "v0.84.0")
_CRDS: Final = tuple(
    f"example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml"
    for name in ("prometheusrules", "servicemonitors")
)
_PREFIX: Final = "#/definitions/"
_REFERENCE: Final = re.compile(rf'"{_PREFIX}([^"]+)"')
_EITHER: Final[dict[str, list[str]]] = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": ["integer", "string"],
    "io.k8s.apimachinery.pkg.api.resource.Quantity": ["number", "string"],
}
"""Definitions that the description calls strings, but that can be strings or numbers."""


def schemas() -> str:
    """The path template where kubeconform finds the schema of a kind."""
    folder = cache_dir() / "kubernetes-schemas" / f"{KUBERNETES}-{_OPERATOR[1]}"
    done = folder / "done"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_kubernetes(folder)
        _write_operator(folder)
        done.touch()
    return str(folder / "{{ .ResourceKind }}{{ .KindSuffix }}.json")


def _write_kubernetes(folder: Path) -> None:
    text = (module("k8s.io/kubernetes", f"v{KUBERNETES}") / "api/openapi-spec/swagger.json").read_text()
    definitions: dict[str, Any] = json.loads(text)["definitions"]
    for name, definition in definitions.items():
        _close(definition)
        if name in _EITHER:
            definition.pop("format", None)
            definition["type"] = _EITHER[name]
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            schema = {"$ref": _PREFIX + name, "definitions": _used(definitions, name)}
            _file(folder, kind["group"], kind["version"], kind["kind"]).write_text(json.dumps(schema))


def _used(definitions: dict[str, Any], name: str) -> dict[str, Any]:
    """A definition and those that it refers to, because kubeconform follows no reference to another file."""
    found: dict[str, Any] = {}
    names = [name]
    while names:
        each = names.pop()
        if each not in found:
            found[each] = definitions[each]
            names += _REFERENCE.findall(json.dumps(definitions[each]))
    return found


def _write_operator(folder: Path) -> None:
    for name in _CRDS:
        spec = yaml.safe_load((module(*_OPERATOR) / name).read_text())["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            _close(schema)
            schema["properties"]["metadata"] = {"type": "object"}
            _file(folder, spec["group"], version["name"], spec["names"]["kind"]).write_text(
                json.dumps(schema)
            )


def _file(folder: Path, group: str, version: str, kind: str) -> Path:
    """The file's name as kubeconform expects it."""
    parts = [kind.lower(), *([group.partition(".")[0]] if group else []), version]
    return folder / f"{'-'.join(parts)}.json"


def _close(schema: Any) -> None:
    """Forbid keys other than an object's properties."""
    if isinstance(schema, list):
        for each in schema:
            _close(each)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    if schema.pop("x-kubernetes-int-or-string", False):
        schema["type"] = ["integer", "string"]
        schema.pop("anyOf", None)
    for each in schema.values():
        _close(each)
