"""Sections about SASL: how the clients of a listener are named, and how the gateway itself logs in to the brokers.

Which mechanisms there are, and who knows which password, is the brokers' business. A password of the gateway's own is
in a file by itself, so that no secret is in this one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.section import NonEmpty, Section


class ListenerSasl(Section, frozen=True):
    """Names of clients of a listener with SASL, where the exchange alone does not tell them.

    Attributes:
        unknown_principal: user name of clients by GSSAPI, by mechanisms that are not known here, and by OAuth tokens
            that cannot be read.
        delegation_token_principal: of clients that log in by a delegation token, whose owner only the brokers know.
        oauthbearer_principal_claim: the brokers' sasl.oauthbearer.sub.claim.name.
    """

    unknown_principal: NonEmpty = "unknown"
    delegation_token_principal: NonEmpty = "unknown"
    oauthbearer_principal_claim: NonEmpty = "sub"


class UpstreamSasl(Section, frozen=True):
    """The gateway's own user, for what it asks the brokers itself; clients' connections never use it.

    Attributes:
        mechanism: one of those that the brokers' listener has.
        username: whose it is.
        password_file: holds the password, and perhaps a line end; read at each login, so a new one needs no restart.
    """

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: Annotated[str, Field(min_length=1, max_length=1024)]
    password_file: NonEmpty
