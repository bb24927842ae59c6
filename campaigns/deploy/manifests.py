"""Checks that the manifests of a rendered chart agree with each other and with the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from config import Clusters, Config, Severity, cluster_findings, findings, parse_file

ROOT: Final = Path(__file__).parents[2]
PLAIN: Final = ROOT / "deploy" / "kubernetes" / "sluice.yaml"
_SERVICE_PORT: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Manifests:
    """The objects of one release.

    Attributes:
        objects: all of them, by kind and name.
        workload: the StatefulSet.
        toml: the configuration file of the gateway.
    """

    def __init__(self, text: str) -> None:
        """Read the manifests.

        Args:
            text: YAML documents.
        """
        documents = [each for each in yaml.safe_load_all(text) if each]
        self.objects: dict[tuple[str, str], dict[str, Any]] = {
            (each["kind"], each["metadata"]["name"]): each for each in documents
        }
        assert len(self.objects) == len(documents), "two objects with one name"
        (self.workload,) = self.of_kind("StatefulSet")
        self.name: str = self.workload["metadata"]["name"]
        self.toml: str = self.objects["ConfigMap", self.name]["data"]["sluice.toml"]

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        """The objects of a kind."""
        return (each for (found, _), each in self.objects.items() if found == kind)

    def configuration(self, pod: str) -> Config | Clusters:
        """The configuration that a pod's gateway reads, with its container's environment alone."""
        fields = {"metadata.name": pod, "metadata.namespace": "kafka"}
        environment = {
            each["name"]: each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in self._container["env"]
        }
        return parse_file(self.toml, name="sluice.toml", environment=environment)

    @property
    def _container(self) -> dict[str, Any]:
        (container,) = self.workload["spec"]["template"]["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    def check(self, *, pods: int) -> None:
        """Check all rules.

        Args:
            pods: maximum number of pods.

        Raises:
            AssertionError: a rule is broken.
        """
        template = self.workload["spec"]["template"]
        labels = template["metadata"]["labels"]
        names = [f"{self.name}-{at}" for at in range(pods)]
        found = [self._clusters(pod) for pod in names]
        for clusters in zip(*found, strict=True):
            self._check_names(clusters, names)
        by_port = any(listener.sni is None for each in found[0] for listener in each.listeners)
        for pod, each in zip(names, found, strict=True):
            assert (("Service", pod) in self.objects) is by_port
            if by_port:
                self._check_ports(pod, each, labels)
        self._check_shared_ports(found[0])
        assert ("Service", f"{self.name}-{pods}") not in self.objects
        self._check_life(found[0])
        self._check_selectors(labels)
        mounts = tuple(f"{each['mountPath']}/" for each in self._container["volumeMounts"])
        paths = re.findall(r'"(/[^"]+)"', self.toml)
        assert all(path.startswith(mounts) for path in paths), (paths, mounts)

    def _clusters(self, pod: str) -> list[Config]:
        """Each cluster of a pod's file, or the only one; without errors."""
        found = self.configuration(pod)
        all_findings = cluster_findings(found) if isinstance(found, Clusters) else findings(found)
        errors = [str(one) for one in all_findings if one.severity is Severity.ERROR]
        assert not errors, errors
        return list(found.by_name.values()) if isinstance(found, Clusters) else [found]

    def _check_names(self, found: Sequence[Config], names: list[str]) -> None:
        hosts = [tuple(one.advertised_host for one in each.listeners if one.sni is None) for each in found]
        assert len(set(hosts)) == len(names) or not hosts[0], "two pods are advertised under one name"
        for pod, advertised in zip(names, hosts, strict=True):
            assert all(host.startswith(f"{pod}.") for host in advertised)
        if found[0].client_quota.scope == "fleet":
            assert [each.fleet.member for each in found] == names

    def _check_ports(self, pod: str, found: list[Config], labels: dict[str, str]) -> None:
        """Check that a pod can be reached on all ports that it binds and advertises."""
        service = self.objects["Service", pod]["spec"]
        ports = {each["port"]: each["targetPort"] for each in service["ports"]}
        wanted = {
            port
            for one in found
            for each in one.listeners
            for port in (each.bind.port, *each.ports_of_brokers)
            if each.sni is None
        }
        assert set(ports) == wanted
        assert all(outside == inside for outside, inside in ports.items()), (
            "clients connect to what is advertised"
        )
        assert all(_SERVICE_PORT.fullmatch(each["name"]) for each in service["ports"])
        assert len({each["name"] for each in service["ports"]}) == len(ports)
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == pod
        assert service["selector"].items() - {("statefulset.kubernetes.io/pod-name", pod)} <= labels.items()

    def _check_shared_ports(self, found: list[Config]) -> None:
        """Check that shared ports reach the pods: all advertised ports must be open, all bound ports may be."""
        listeners = [each for one in found for each in one.listeners]
        service = self.objects["Service", self.name]["spec"]["ports"]
        assert all(_SERVICE_PORT.fullmatch(each["name"]) for each in service)
        assert len({each["name"] for each in service}) == len(service)
        assert {each["port"]: int(each["targetPort"]) for each in service} == {
            (each.sni and each.sni.advertised_port) or each.bind.port: each.bind.port for each in listeners
        }
        wanted = {port for each in listeners for port in (each.bind.port, *each.ports_of_brokers)}
        for policy in self.of_kind("NetworkPolicy"):
            open_ports = {
                port
                for each in policy["spec"]["ingress"][0]["ports"]
                for port in range(each["port"], each.get("endPort", each["port"]) + 1)
            }
            assert open_ports == wanted

    def _check_life(self, clusters: list[Config]) -> None:
        found = clusters[0]  # the admin port is the same for all
        pod = self.workload["spec"]["template"]["spec"]
        (admin,) = self._container["ports"]
        assert admin == {"name": "admin", "containerPort": found.admin.bind.port}
        probes = [self._container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")]
        scheme = {} if found.admin.tls is None else {"scheme": "HTTPS"}
        assert probes == [{"path": f"/{path}", "port": "admin", **scheme} for path in ("healthz", "readyz")]
        assert f"{self.name}-pods" in found.admin.allowed_hosts
        for monitor in self.of_kind("ServiceMonitor"):
            (endpoint,) = monitor["spec"]["endpoints"]
            assert endpoint.get("scheme", "http") == found.admin.url.partition(":")[0]
            assert bool(endpoint.get("authorization")) == bool(found.admin.keys)
        program, seconds = self._container["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "sleep"
        assert pod["terminationGracePeriodSeconds"] * 1000 > int(seconds) * 1000 + max(
            each.drain.timeout_ms for each in clusters
        )
        (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        security = pod["securityContext"]
        assert (str(security["runAsUser"]), str(security["runAsGroup"])) == user
        assert security["runAsNonRoot"] is True
        assert self._container["securityContext"]["readOnlyRootFilesystem"] is True
        assert self._container["securityContext"]["capabilities"] == {"drop": ["ALL"]}

    def _check_selectors(self, labels: dict[str, str]) -> None:
        """Check that each selector matches the pods, and Prometheus' selector a Service."""
        for kind in ("PodDisruptionBudget", "StatefulSet"):
            for each in self.of_kind(kind):
                assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
        for each in self.of_kind("NetworkPolicy"):
            assert each["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        assert ("Service", self.workload["spec"]["serviceName"]) in self.objects
        for each in self.of_kind("ServiceMonitor"):
            wanted = each["spec"]["selector"]["matchLabels"].items()
            matched = [one for one in self.of_kind("Service") if wanted <= one["metadata"]["labels"].items()]
            assert [one["metadata"]["name"] for one in matched] == [f"{self.name}-pods"]
            (end,) = each["spec"]["endpoints"]
            assert end["port"] in {port["name"] for port in matched[0]["spec"]["ports"]}
            assert matched[0]["metadata"]["labels"][each["spec"]["jobLabel"]].startswith("sluice")
