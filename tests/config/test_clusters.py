"""[[clusters]]: each is checked as a file of its own, and then what two of them must not share."""

import re
from pathlib import Path

import pytest

import config
from config.loader import parse_file

ADMIN = '[admin]\nbind = "127.0.0.1:9644"\n'


def cluster(name: str, port: int, more: str = "", *, broker: str = "k:1", broker_ports: int = 4) -> str:
    return f"""
[[clusters]]
name = "{name}"
[clusters.upstream]
bootstrap = ["{broker}"]
[[clusters.listeners]]
name = "in"
bind = "127.0.0.1:{port}"
broker_ports = {broker_ports}
{more}
"""


def faults(text: str) -> list[str]:
    with pytest.raises(config.ConfigError) as caught:
        parse_file(text, name="f")
    return [re.sub(r"^f:(\d+:)? ", "", line) for line in caught.value.lines]


def read(text: str) -> config.Clusters:
    found = parse_file(text, name="f")
    assert isinstance(found, config.Clusters)
    return found


def test_each_cluster_is_a_whole_configuration_with_what_is_shared() -> None:
    text = '[log]\nlevel = "debug"\n[traces]\nendpoint = "http://127.0.0.1:4318"\n' + ADMIN.replace("9644", "7000")
    quota = '[[clusters.quotas]]\nuser = "x"\nproducer_byte_rate = 5\n'
    found = read(text + cluster("b", 2000, quota) + cluster("a", 3000))
    assert found.names == "b, a"
    for each in found.by_name.values():
        assert (each.admin.bind.port, each.log.level, each.traces.endpoint) == (
            7000,
            "debug",
            "http://127.0.0.1:4318",
        )
    assert [len(each.quota_items()) for each in found.by_name.values()] == [1, 0]


def test_cluster_without_a_store_directory_gets_one_of_its_own() -> None:
    stores = ["", '[clusters.quota_store]\ndata_dir = "x"\n', '[clusters.quota_store]\nkind = "memory"\n']
    found = read("".join(cluster(f"c{at}", 2000 + 10 * at, store) for at, store in enumerate(stores)))
    assert [each.quota_store.data_dir for each in found.by_name.values()] == ["sluice-data/c0", "x", "sluice-data"]
    assert config.cluster_findings(found) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clusters = []", "clusters: an empty array is not an array with at least one item"),
        ("clusters = 1", "clusters: 1 is not an array of tables: [[clusters]]"),
        ('[clusters]\nname = "a"', "clusters: a table is not an array of tables: [[clusters]]"),
        (
            '[upstream]\nbootstrap = ["k:1"]' + cluster("a", 2000),
            "upstream: cannot stand beside [[clusters]]; move it into a cluster, as [clusters.upstream]",
        ),
        (
            '[[quotas]]\nuser = "x"' + cluster("a", 2000),
            "quotas: cannot stand beside [[clusters]]; move it into a cluster, as [[clusters.quotas]]",
        ),
        ("[admi]" + cluster("a", 2000), "admi: unknown key; did you mean admin?"),
        (
            cluster("a", 2000, '[clusters.log]\nlevel = "info"'),
            "clusters.a.log: is for all clusters; write it at the top of the file, as [log]",
        ),
        (cluster("a", 2000, "[clusters.usag]"), "clusters.a.usag: unknown key; did you mean usage?"),
        (
            cluster("a", 2000, "max_conections = 5"),
            "clusters.a.listeners.in.max_conections: unknown key; did you mean max_connections?",
        ),
        (
            cluster("a", 2000, '[[clusters.quotas]]\nuser = "u"\nproducer_byte_rate = -1'),
            'clusters.a.quotas.0.producer_byte_rate (user="u"): -1 is not in 1..9223372036854775807; '
            "to set no quota, leave the key out",
        ),
        ('[[clusters]]\nname = "a"', "clusters.a.upstream: required, but missing"),
        (cluster("a", 2000) + cluster("a", 3000), 'clusters.1.name: "a" is the name of clusters.0 too'),
        ("[[clusters]]\n", "clusters.0.name: required, but missing"),
        (
            cluster("a", 2000) + cluster("b", 2003),
            "clusters.b.listeners.in.bind: 127.0.0.1:2003 overlaps clusters.a.listeners.in.first_broker_port "
            "127.0.0.1:2001..2004",
        ),
        (
            ADMIN + cluster("a", 9640),
            "clusters.a.listeners.in.first_broker_port: 127.0.0.1:9641..9644 overlaps admin.bind 127.0.0.1:9644",
        ),
        (
            cluster("a", 2000) + cluster("b", 3000, broker="127.0.0.1:2000"),
            'clusters.b.upstream.bootstrap.0: "127.0.0.1:2000" is the gateway itself (clusters.a.listeners.in.bind)',
        ),
        (
            ADMIN + cluster("a", 3000, broker="127.0.0.1:9644"),
            'clusters.a.upstream.bootstrap.0: "127.0.0.1:9644" is the gateway itself (admin.bind)',
        ),
    ],
)
def test_fault_is_named_with_its_cluster(text: str, expected: str) -> None:
    assert expected in faults(text)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a.b", "a b", 'a\\"} 1', "a\\n", "é", "-a", "a" * 33, "%2e"]
)
def test_name_that_could_mean_something_in_a_path_or_a_label_is_refused(name: str) -> None:
    (found,) = faults(cluster(name, 2000))
    assert found.startswith("clusters.0.name: ")
    assert found.endswith("is not a string that matches ^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")


def test_directories_and_gateway_ids_of_two_clusters_differ(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)

    def text(name: str, port: int, folder: Path) -> str:
        store = f'[clusters.quota_store]\ndata_dir = "{folder}/s"\n'
        usage = f'[clusters.usage]\nkind = "files"\ndirectory = "{folder}/x/../u"\ngateway_id = "g"\n'
        return cluster(name, port, store + usage)

    same = faults(text("a", 2000, tmp_path) + text("b", 3000, tmp_path / "link"))
    assert same == [
        f'clusters.b.quota_store.data_dir: "{tmp_path}/s" is that of clusters.a.quota_store.data_dir too',
        f'clusters.b.usage.directory: "{tmp_path}/u" is that of clusters.a.usage.directory too',
        'clusters.b.usage.gateway_id: "g" is that of clusters.a.usage.gateway_id too',
    ]


def test_finding_names_its_cluster_and_what_is_shared_is_found_once() -> None:
    admin = '[admin]\nbind = "0.0.0.0:9644"\nremote_changes = true\n'
    unused = "[clusters.usage]\nmax_rows = 5\n"
    found = config.cluster_findings(read(admin + cluster("a", 2000, unused) + cluster("b", 3000, unused)))
    assert [each.key for each in found] == [
        "admin.remote_changes",
        "clusters.a.usage.max_rows",
        "clusters.b.usage.max_rows",
    ]


def test_one_cluster_is_chosen_by_its_name() -> None:
    clusters, single = (
        read(cluster("a", 2000) + cluster("b", 3000)),
        config.default_config(config.parse_bootstrap("k:1")),
    )
    assert config.one_of(clusters, "f", "b") is clusters.by_name["b"]
    assert config.one_of(single, "f", None) is single
    for found, name, text in (
        (clusters, None, "f: has several clusters: a, b; choose one with --cluster NAME"),
        (clusters, "c", 'f: has no cluster "c"; it has a, b'),
        (single, "a", "f: has no [[clusters]]; leave --cluster out"),
    ):
        with pytest.raises(config.ConfigError) as caught:
            config.one_of(found, "f", name)
        assert caught.value.lines == [text]
