"""The file with the settings of a connection to a cluster."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from quota_client.client import PROPERTIES, QuotaClientError

_CA: Final = "ssl_cafile, a PEM file"
_OWN: Final = "ssl_certfile and ssl_keyfile, PEM files"
_JAVAS_NAMES: Final = {
    "bootstrap_servers": "--bootstrap to the command",
    "sasl_jaas_config": "sasl_plain_username and sasl_plain_password",
    "ssl_endpoint_identification_algorithm": "ssl_check_hostname, true or false",
    "ssl_key_password": "ssl_password",
    "ssl_keystore_location": _OWN,
    "ssl_keystore_password": _OWN,
    "ssl_keystore_type": _OWN,
    "ssl_truststore_location": _CA,
    "ssl_truststore_password": _CA,
    "ssl_truststore_type": _CA,
}
"""Names that the clients of Java have for what kafka-python names otherwise, and what to give."""

_SECURITY: Final = ("ssl_", "sasl_", "security_")


def read_properties(path: Path | None) -> dict[str, Any]:
    """``name=value`` lines, # for comments; names as kafka-python writes them, dots are taken as underscores.

    Raises:
        QuotaClientError: the file can't be read, or a line has another form.
    """
    properties: dict[str, Any] = {}
    if path is None:
        return properties
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise QuotaClientError(f"{path}: cannot be read: {exc}") from exc
    for at, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            # The line itself may hold a password.
            raise QuotaClientError(f"{path}, line {at}: expected name=value")
        key = name.strip().replace(".", "_")
        if key not in PROPERTIES:
            raise QuotaClientError(f"{path}, line {at}: unknown {_unknown(key, name.strip())}")
        properties[key] = _typed(key, value.strip())
    return properties


def _unknown(key: str, written: str) -> str:
    """What is known instead of a name."""
    if key in _JAVAS_NAMES:
        return f"name {written}, of Java's clients; give {_JAVAS_NAMES[key]}"
    close = get_close_matches(key, PROPERTIES, n=1)
    if close:
        return f"{key}; did you mean {close[0]}?"
    # A name that is like none may be a password.
    shown = f"name {written}" if key.startswith(_SECURITY) else "name"
    return f"{shown}; known: {', '.join(sorted(PROPERTIES))}"


def _typed(key: str, text: str) -> str | bool | int:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    # Not everything that looks like a number is one: a password of digits stays text.
    return int(text) if key.endswith("_ms") and text.isdigit() else text
