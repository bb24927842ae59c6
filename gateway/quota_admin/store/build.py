"""Creates the quota store that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from config import Config, read_secret
from config.sections.quota_store import QuotaStoreSettings
from gateway.quota_admin.store.interface import QuotaStore
from gateway.quota_admin.store.memory_store import MemoryStore
from gateway.quota_admin.store.sqlite_store import SqliteStore
from gateway.runtime.clock import wall_clock_ms
from quotas.record_signature import RecordSigner


def build_store(config: Config, client: Mapping[str, Any], *, gateway: str | None = None) -> QuotaStore:
    """The configured store, not open yet.

    Args:
        config: valid.
        client: librdkafka's settings for reaching the cluster; only the topic store uses them.
        gateway: see `TopicStoreSettings`.

    Raises:
        ConfigError: a file with a secret can't be read.
    """
    section = config.quota_store
    if section.kind == "sqlite":
        return SqliteStore(
            Path(section.data_dir),
            now_ms=wall_clock_ms,
            max_quotas=section.max_quotas,
            max_history=section.max_history,
        )
    if section.kind == "topic":
        # Imported here so that librdkafka is loaded only if it is used.
        from gateway.quota_admin.store.topic_store import TopicStore, TopicStoreSettings

        settings = TopicStoreSettings(
            topic=section.topic,
            replication_factor=section.replication_factor,
            max_quotas=section.max_quotas,
            max_history=section.max_history,
            write_timeout_ms=section.write_timeout_ms,
            client=client,
            signer=_signer(section),
            accept_unsigned=section.accept_unsigned,
            gateway=gateway,
        )
        return TopicStore(settings, now_ms=wall_clock_ms)
    return MemoryStore(now_ms=wall_clock_ms, max_quotas=section.max_quotas, max_history=section.max_history)


def _signer(section: QuotaStoreSettings) -> RecordSigner | None:
    files = {"secret_file": section.secret_file, "previous_secret_file": section.previous_secret_file}
    secrets = [read_secret(f"quota_store.{key}", file) for key, file in files.items() if file is not None]
    return RecordSigner(section.topic, secrets) if secrets else None
