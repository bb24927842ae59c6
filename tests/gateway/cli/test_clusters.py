"""``--cluster``: which cluster of a file or of a running gateway a command is about."""

from pathlib import Path

import pytest

from config import Config, load
from gateway.server.clusters.gateway_id import with_own_id
from gateway.server.handover_link import DESCRIPTOR
from gateway.usage import service
from tests.gateway.cli.conftest import Run
from tests.gateway.cli.test_admin_port import Server, server
from tests.gateway.cli.test_serve import Served, served

__all__ = ["server", "served"]

TEXT = """
[admin]
bind = "127.0.0.1:0"
[[clusters]]
name = "a"
[clusters.upstream]
bootstrap = ["k:1"]
[[clusters.listeners]]
name = "in"
bind = "127.0.0.1:2000"
[[clusters.quotas]]
client_id = "x"
producer_byte_rate = 77
[[clusters]]
name = "b"
[clusters.upstream]
bootstrap = ["k:2"]
[[clusters.listeners]]
name = "in"
bind = "127.0.0.1:3000"
[clusters.usage]
kind = "files"
directory = "USAGE"
"""
CHOOSE = "has several clusters: a, b; choose one with --cluster NAME"


@pytest.fixture
def clusters(file: Path, tmp_path: Path) -> Path:
    (tmp_path / "usage").mkdir()
    file.write_text(TEXT.replace("USAGE", str(tmp_path / "usage")))
    return file


def test_file_of_several_clusters_is_checked_and_shown_cluster_by_cluster(clusters: Path, run: Run) -> None:
    code, out, err = run("check-config", clusters)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[1:] if "cluster" in line or "quotas" in line] == [
        ["cluster", "a"],
        ["quotas", "1,", "enforced"],
        ["cluster", "b"],
        ["quotas", "0,", "enforced"],
    ]
    text = clusters.read_text()
    clusters.write_text(text + '[clusters.upstream.tls]\nca = "/does/not/exist"\n')
    code, _, err = run("check-config", clusters)
    assert code == 2
    assert "clusters.b.upstream.tls: " in err
    clusters.write_text(text + "[clusters.fleet]\nmembers = 2\n")
    code, out, err = run("check-config", clusters, "--strict")
    assert (code, "note: clusters.b.fleet.members: " in err) == (3, True)


def test_command_for_a_file_needs_the_name_of_a_cluster(clusters: Path, run: Run) -> None:
    for command in ("quotas", "usage"):
        assert run(command, "--config", clusters) == (2, "", f"sluice: {clusters}: {CHOOSE}\n")
        code, _, err = run(command, "--config", clusters, "--cluster", "c")
        assert (code, err) == (2, f'sluice: {clusters}: has no cluster "c"; it has a, b\n')
    assert "77" in run("quotas", "--config", clusters, "--cluster", "a")[1]
    assert "77" not in run("quotas", "--config", clusters, "--cluster", "b")[1]
    assert run("quotas", "export", "--config", clusters, "--cluster", "a", "--all")[0] == 0
    assert run("usage", "--config", clusters, "--cluster", "b")[:2] == (1, "no usage records here\n")


def test_command_for_a_gateway_asks_for_the_paths_of_the_cluster(server: Server, run: Run) -> None:
    run("enforcement", "--admin", server.url, "--cluster", "a")
    run("why", "--client-id", "x", "--cluster", "b-1", "--admin", server.url)
    run("quotas", "--admin", server.url, "--cluster", "a", "history")
    assert [path for _, path, _, _ in server.asked] == [
        "/clusters/a/enforcement",
        "/clusters/b-1/why?client_id=x",
        "/clusters/a/quotas/history?limit=20",
    ]


@pytest.mark.parametrize("command", ["why --client-id x", "quotas", "enforcement", "top", "quotas history"])
def test_gateway_with_several_clusters_is_named_with_them(server: Server, run: Run, command: str) -> None:
    server.status, server.answer = 400, b'{"error": "it has a and b", "clusters": ["a", "b"]}'
    code, out, err = run(*command.split(), "--admin", server.url)
    assert (code, out) == (1, "")
    assert err.startswith(f"sluice: the gateway at {server.url}: it has a and b")
    server.status, server.answer = 200, b'{"clusters": [{"name": "a"}, {"name": "b"}]}'
    assert f"the gateway at {server.url} {CHOOSE}" in run("top", "--admin", server.url)[2]


def test_gateway_without_clusters_says_so(server: Server, run: Run) -> None:
    server.status, server.answer = 404, b"404: Not Found"
    code, _, err = run("enforcement", "--admin", server.url, "--cluster", "a")
    assert (code, err) == (1, f"sluice: the gateway at {server.url} has no clusters; leave --cluster out\n")


@pytest.mark.parametrize("name", ["../b", "a/b", "a?x", "", "a b", "%2e"])
def test_name_that_would_be_another_path_is_refused(server: Server, run: Run, name: str) -> None:
    code, _, err = run("enforcement", "--admin", server.url, "--cluster", name)
    assert (code, server.asked) == (2, [])
    assert "is no name of a cluster" in err


def test_one_cluster_is_served_with_an_id_of_its_own(served: Served, clusters: Path, run: Run) -> None:
    assert run("serve", "--config", clusters, "--cluster", "b")[0] == 7
    ((found, banner),) = served
    assert (found.upstream.bootstrap, found.usage.gateway_id) == (
        load(clusters, cluster="b").upstream.bootstrap,
        f"{service.host_id()}.b",
    )
    assert "127.0.0.1:3000" in banner


def test_ids_of_long_host_names_differ_and_fit(monkeypatch: pytest.MonkeyPatch, clusters: Path) -> None:
    config = load(clusters, cluster="b")
    ids = set()
    for host in ("h" * 63 + "1", "h" * 63 + "2"):
        monkeypatch.setattr("gateway.server.clusters.gateway_id.host_id", lambda host=host: host)
        ids.add(with_own_id(config, "c" * 32).usage.gateway_id)
    assert len(ids) == 2
    for each in ids:
        usage = {"kind": "off", "gateway_id": each}
        assert Config.model_validate({**config.model_dump(), "usage": usage}).usage.gateway_id == each


def test_several_clusters_take_no_upstream_and_do_not_replace_one_gateway(
    clusters: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"sluice: {clusters}: has several clusters (a, b); "
    assert run("serve", "--config", clusters, "--upstream", "k:1") == (
        2,
        "",
        f"{text}--upstream is for one cluster\n",
    )
    monkeypatch.setenv(DESCRIPTOR, "x")
    monkeypatch.setattr("gateway.server.predecessor.tell_failure", lambda environment, reason: None)
    assert run("serve", "--config", clusters)[0] == 2
