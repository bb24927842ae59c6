"""What ``sluice quotas --ip`` says: which connection rate an address has, and with whom it shares it (KIP-612)."""

from __future__ import annotations

import json
from typing import Any

import config
from gateway.cli.table import aligned, number
from quotas.addresses import UNLIMITED, IpLimits, normalise
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Enforcement, Limits
from quotas.rate_quotas import RateSettings

KEY = QuotaKey.CONNECTION_CREATION_RATE


def describe_address(
    limits: Limits, windows: RateSettings, ip: str, *, ipv6_prefix_bits: int
) -> dict[str, Any]:
    """What decides about the connections of an address.

    Args:
        limits: the quotas.
        windows: what the rate is averaged over.
        ip: as the operator wrote it.
        ipv6_prefix_bits: of [connections].

    Raises:
        config.ConfigError: it is no address.
    """
    try:
        address = normalise(ip)
    except ValueError:
        raise config.ConfigError([f"--ip: {json.dumps(ip)} is not an IP address"]) from None
    found = IpLimits(limits, ipv6_prefix_bits=ipv6_prefix_bits).limit(ip)
    limit = None if found.rate_per_s >= UNLIMITED else found.rate_per_s
    decided_by: QuotaEntity | None = None
    if limit is not None:
        # By the name that the quota was set by: a kept one may have another spelling.
        row = limits.find_address(address)
        decided_by = QuotaEntity(ip=DEFAULT if row is None else row[0])
    return {
        "ip": address,
        "enforcement": limits.mode,
        "quota": KEY,
        "limit": limit,
        "burst": None if limit is None else limit * (windows.window_num - 1) * windows.window_ms / 1000,
        "decided_by": None if decided_by is None else str(decided_by),
        "counted_by": found.tracker_key,
        "observe": found.observe,
    }


def address_text(told: dict[str, Any]) -> str:
    """`describe_address` for people."""
    if told["limit"] is None:
        limit = "unlimited"
    else:
        limit = f"{number(float(told['limit']))}/s, at once up to {number(told['burst'])} after a quiet while"
        if told["observe"]:
            limit += "; only observed"
    shared = told["counted_by"] != told["ip"]
    facts = [
        ("address", told["ip"]),
        ("quota", str(told["quota"])),
        ("limit", limit),
        ("decided by", told["decided_by"] or "nothing"),
        ("counted by", f"{told['counted_by']}, {'all its addresses together' if shared else 'alone'}"),
    ]
    if told["enforcement"] is not Enforcement.ENFORCE:
        facts.append(("enforcement", str(told["enforcement"])))
    return "\n".join(aligned(facts))
