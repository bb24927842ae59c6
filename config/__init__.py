"""What an operator writes, read and checked: the TOML file, its models, and the quota objects made from it.

Nothing else happens before a configuration is valid. This room knows `quotas` and neither the gateway nor the
protocol.
"""

from config.address import HostPort
from config.loader import ConfigError, default_config, load, parse, parse_bootstrap, replace_upstream
from config.model import Config
from config.sections import CLIENT_KEYS, ENFORCED_KEYS, ListenerSettings, QuotaRule

__all__ = [
    "CLIENT_KEYS",
    "Config",
    "ConfigError",
    "ENFORCED_KEYS",
    "HostPort",
    "ListenerSettings",
    "QuotaRule",
    "default_config",
    "load",
    "parse",
    "parse_bootstrap",
    "replace_upstream",
]
