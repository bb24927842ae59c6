"""Sections about TLS: of listeners ([listeners.tls]) and to the brokers ([upstream.tls]).

Files are PEM, as OpenSSL reads them. Passwords are in files of their own, so that no secret is in this one. The files
themselves are only read when the gateway starts, and again when they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from config.mapping_rules import MappingRules
from config.section import Key, Milliseconds, NonEmpty, Section, faults_error

TlsVersion: TypeAlias = Literal["TLSv1.2", "TLSv1.3"]


def _rules(text: str) -> str:
    MappingRules.parse(text)
    return text


class ListenerTls(Section, frozen=True):
    """How clients of a listener are met; Kafka's ssl.* settings of a listener.

    Attributes:
        certificate: the server's certificate, and those of intermediate authorities behind it.
        key: its private key; may be the same file.
        key_password_file: holds the key's password, where it has one.
        client_auth: whether clients show certificates of their own; Kafka's ssl.client.auth.
        client_ca: the authorities that may have signed them.
        client_crl: revocation lists of these authorities; every one of them needs one then.
        minimum_version: older clients are refused.
        ciphers: OpenSSL's list for TLS 1.2; None: its own. Those of TLS 1.3 are all good and can't be chosen.
        handshake_timeout_ms: from accept to the end of the handshake, waiting for its turn included.
        principal_mapping_rules: Kafka's ssl.principal.mapping.rules.
        certificate_texts: how texts in clients' names are read. by_kind: as brokers do whose Java has the security
            updates of 2026; utf8: as older ones do. Only letters beyond ASCII and wide strings differ.
    """

    certificate: NonEmpty
    key: NonEmpty
    key_password_file: NonEmpty | None = None
    client_auth: Literal["none", "requested", "required"] = "none"
    client_ca: NonEmpty | None = None
    client_crl: NonEmpty | None = None
    minimum_version: TlsVersion = "TLSv1.2"
    ciphers: NonEmpty | None = None
    handshake_timeout_ms: Milliseconds = 10_000
    principal_mapping_rules: Annotated[str, AfterValidator(_rules)] = "DEFAULT"
    certificate_texts: Literal["by_kind", "utf8"] = "by_kind"

    @model_validator(mode="after")
    def _check(self) -> ListenerTls:
        faults: list[tuple[Key, str]] = []
        if self.client_auth != "none" and self.client_ca is None:
            faults.append((("client_ca",), f'required, since client_auth is "{self.client_auth}"'))
        if self.client_auth == "none":
            given = [name for name in ("client_ca", "client_crl") if getattr(self, name) is not None]
            faults.extend(((name,), 'without effect, since client_auth is "none"') for name in given)
        if faults:
            raise faults_error(faults)
        return self


class UpstreamTls(Section, frozen=True):
    """How brokers are met.

    Attributes:
        ca: the authorities that may have signed the brokers' certificates; None: those the system trusts.
        certificate, key, key_password_file: the gateway's own, where brokers ask for one.
        verify: whether a broker's certificate and name are looked at. False lets anybody pose as the cluster.
        server_name: the name to expect in every broker's certificate; None: the host that is connected to.
        minimum_version: older brokers are refused.
        ciphers: as of listeners.
    """

    ca: NonEmpty | None = None
    certificate: NonEmpty | None = None
    key: NonEmpty | None = None
    key_password_file: NonEmpty | None = None
    verify: bool = True
    server_name: NonEmpty | None = None
    minimum_version: TlsVersion = "TLSv1.2"
    ciphers: NonEmpty | None = None

    @model_validator(mode="after")
    def _check(self) -> UpstreamTls:
        faults: list[tuple[Key, str]] = []
        for name, other in (("certificate", "key"), ("key", "certificate")):
            if getattr(self, name) is None and getattr(self, other) is not None:
                faults.append(((name,), f"required, since {other} is given"))
        if self.key_password_file is not None and self.key is None:
            faults.append((("key_password_file",), "without effect, since there is no key"))
        if not self.verify:
            given = [name for name in ("ca", "server_name") if getattr(self, name) is not None]
            faults.extend(((name,), "without effect, since verify is false") for name in given)
        if faults:
            raise faults_error(faults)
        return self


MaxHandshakes: TypeAlias = Annotated[int, Field(ge=1, le=100_000)]


def listener_faults(tls: bool, section: ListenerTls | None, protocol: str) -> Iterator[tuple[Key, str]]:
    """What is wrong between a listener's protocol and its [listeners.tls].

    Args:
        tls: whether the protocol has TLS.
        section: None when there is none.
        protocol: its name.
    """
    if tls and section is None:
        yield ("tls",), f"required, since security_protocol is {protocol}"
    if not tls and section is not None:
        yield ("tls",), f"without effect, since security_protocol is {protocol}"
