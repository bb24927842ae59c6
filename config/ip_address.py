"""IP addresses and blocks of them as operators write them. Each gets the one name that quotas know it by."""

from __future__ import annotations

import ipaddress
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from quotas.ip_limits import normalise


def check_address(text: str) -> str:
    """The one name of an address.

    Raises:
        ValueError: its text continues a sentence that begins with the value: "is not ...".
    """
    try:
        if "%" in text:
            raise ValueError
        return normalise(text)
    except ValueError:
        raise ValueError("is not an IP address") from None


def check_address_or_block(text: str) -> str:
    """The one name of an address, or of a block in CIDR form.

    Raises:
        ValueError: as `check_address`.
    """
    if "/" not in text:
        try:
            return check_address(text)
        except ValueError:
            raise ValueError("is not an IP address or a block such as 10.0.0.0/8") from None
    if "%" in text:
        raise ValueError("has a zone, which only this machine would know")
    try:
        block = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError("is not a block such as 10.0.0.0/8, with nothing set behind its length") from None
    if isinstance(block, ipaddress.IPv6Network) and block.network_address.ipv4_mapped is not None:
        raise ValueError("would never match: IPv4 addresses are IPv4 here, also when mapped into IPv6")
    return str(block)


Address: TypeAlias = Annotated[str, AfterValidator(check_address)]
AddressOrBlock: TypeAlias = Annotated[str, AfterValidator(check_address_or_block)]
