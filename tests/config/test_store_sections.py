"""What [quota_store] allows."""

import pytest

from config.loader import ConfigError, parse
from config.store_sections import QuotaStoreSettings

HEAD = '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'


def read(text: str) -> QuotaStoreSettings:
    return parse(f"{HEAD}[quota_store]\n{text}", name="f").quota_store


def test_default_is_a_file_beside_where_the_gateway_is_started() -> None:
    found = read("")
    assert (found.kind, found.data_dir, found.topic) == ("sqlite", "sluice-data", "__sluice_quotas")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('kind = "etcd"', "quota_store.kind"),
        ('data_dir = ""', "quota_store.data_dir"),
        ('topic = "a topic"', "quota_store.topic"),
        ("replication_factor = 0", "quota_store.replication_factor"),
        ("max_quotas = 0", "quota_store.max_quotas"),
        ("max_history = 0", "quota_store.max_history"),
        ("write_timeout_ms = 0", "quota_store.write_timeout_ms"),
    ],
)
def test_fault_names_its_key(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        read(text)
