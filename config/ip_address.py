"""IP addresses and blocks as operators write them, normalised to one spelling."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator

from quotas.addresses import address_spelling, one_spelling

_DOTS: Final = 3


def check_address(text: str) -> str:
    """The one spelling of an address.

    Raises:
        ValueError: its text continues a sentence that begins with the value: "is not ...".
    """
    try:
        return address_spelling(text)
    except ValueError:
        raise ValueError("is not an IP address") from None


def check_address_or_block(text: str) -> str:
    """The one spelling of an address, or of a block in CIDR form.

    Raises:
        ValueError: as `check_address`.
    """
    try:
        return one_spelling(text)
    except ValueError:
        fault = "is not an IP address or a block such as 10.0.0.0/8"
        if "/" in text:
            fault = "is not a block such as 10.0.0.0/8, with nothing set behind its length"
        raise ValueError(fault) from None


def check_peer(text: str) -> str:
    """As `check_address_or_block`, for a trusted peer: without short forms, and without zones.

    With a forgotten byte the gateway would trust another peer, and with a dropped zone more peers.

    Raises:
        ValueError: as `check_address`.
    """
    if "%" in text:
        raise ValueError("has a zone, which only this machine would know")
    spelled = check_address_or_block(text)
    if ":" not in text and text.partition("/")[0].count(".") != _DOTS:
        raise ValueError("is not an IP address or a block such as 10.0.0.0/8")
    return spelled


Address: TypeAlias = Annotated[str, AfterValidator(check_address)]
AddressOrBlock: TypeAlias = Annotated[str, AfterValidator(check_address_or_block)]
PeerOrBlock: TypeAlias = Annotated[str, AfterValidator(check_peer)]
