"""[quota_admin]: rights to see and change quotas, and limits of connections, with Kafka's own tools."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from config.section_base import Section


class Authorize(StrEnum):
    """What decides about a principal that is not on the list of admins."""

    DENY = "deny"
    ASK_CLUSTER = "ask_cluster"
    ANYONE = "anyone"


class LimitsBy(StrEnum):
    """Which side has a broker's dynamic connection limits (IncrementalAlterConfigs, DescribeConfigs)."""

    GATEWAY = "gateway"
    RELAY = "relay"


_PREFIX: Final = "User:"  # the only type of principal that Kafka's authentication makes


def _principal(text: str) -> str:
    if not text.startswith(_PREFIX) or text == _PREFIX:
        raise ValueError('must be a principal such as "User:alice"')
    return text


class QuotaAdminSettings(Section, frozen=True):
    """Rights of Kafka clients to see and change quotas. The admin port has rights of its own.

    Attributes:
        admins: principals that are always allowed, as Kafka writes them. "User:ANONYMOUS" stands for all
            clients without authentication.
        authorize: who else is allowed. deny: no other principal. ask_cluster: the broker decides; the gateway
            asks it on the client's own connection. anyone: every client, for development.
        broker_limits: what max.connections and similar settings of a broker apply to. gateway: they are the
            gateway's own connection limits. relay: they are the broker's, as without a gateway.
    """

    admins: Annotated[tuple[Annotated[str, AfterValidator(_principal)], ...], Field(strict=False)] = ()
    authorize: Annotated[Authorize, Field(strict=False)] = Authorize.DENY
    broker_limits: Annotated[LimitsBy, Field(strict=False)] = LimitsBy.GATEWAY

    def admin_names(self) -> frozenset[str]:
        """The names of the admins, without the type."""
        return frozenset(admin.removeprefix(_PREFIX) for admin in self.admins)
