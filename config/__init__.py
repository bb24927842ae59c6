"""The configuration file, read and checked: its models, and the quota objects made from it.

`sections/` has a module for each section of the file. `model.py` has the rules between sections, `clusters.py`
several clusters in one file, `loader.py` reads the file, `environment.py` inserts values from variables and files,
`faults.py` writes the error lines, `findings.py` finds settings that are valid but hardly intended. The configuration
is valid before a socket is opened. This package imports `quotas`, but neither the gateway nor the protocol.
"""

from config.clusters import Clusters, cluster_findings
from config.findings import (
    NO_SUCH_GROUP,
    WITHOUT_BYTE_RATE,
    Finding,
    Severity,
    any_authenticates,
    findings,
    name_notes,
)
from config.host_port import HostPort
from config.loader import (
    ConfigError,
    Source,
    default_config,
    load,
    load_file,
    one_of,
    parse,
    parse_bootstrap,
    parse_file,
    replace_upstream,
)
from config.model import Config
from config.regular_file import read_at_once
from config.secret_file import read_secret
from config.sections.listeners import ListenerSettings
from config.sections.quotas import ENFORCED_KEYS, QuotaRule

__all__ = [
    "NO_SUCH_GROUP",
    "WITHOUT_BYTE_RATE",
    "Clusters",
    "Config",
    "ConfigError",
    "ENFORCED_KEYS",
    "Finding",
    "HostPort",
    "ListenerSettings",
    "QuotaRule",
    "Severity",
    "Source",
    "cluster_findings",
    "default_config",
    "any_authenticates",
    "findings",
    "load",
    "load_file",
    "one_of",
    "name_notes",
    "parse",
    "parse_bootstrap",
    "parse_file",
    "read_at_once",
    "read_secret",
    "replace_upstream",
]
