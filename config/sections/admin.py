"""[admin]: the port of /metrics, /healthz, /readyz and the kill switch, and the keys for it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, model_validator

from config.host_port import BindAddress, HostPort, is_loopback, valid_host
from config.section_base import Key, NonEmpty, Section, ShortName, faults_error
from config.sections.listeners import ListenerTls

_ANY_BELOW = "*."


def _host(text: str) -> str:
    if not valid_host(text.removeprefix(_ANY_BELOW)):
        raise ValueError("must be a host name, without a port; *. before it stands for all names below it")
    return text.lower()


class AdminRole(StrEnum):
    """What the holder of a key may do. No role includes another one."""

    READ = "read"
    OPERATE = "operate"
    QUOTAS = "quotas"


class AdminKey(Section, frozen=True):
    """A key of the admin port: a bearer token, or a client certificate.

    With at least one key, every request needs one, also on loopback. Only /healthz and /readyz need none.
    A key has one of `token_file`, `token` and `certificate`. To renew a token without an interruption, put the new
    one on a second line of the file, change the clients, and remove the first line.

    Attributes:
        name: who has the key, such as the name of a pipeline. Unique. It is in the log, the audit and the history of
            quotas.
        roles: read: see metrics, status and quotas. operate: reload, change groups and the enforcement. quotas:
            change quotas. No role includes another one.
        token_file: file with up to 8 tokens, one per line. A token has at least 32 characters. The gateway reads the
            file again when it changes. A file without lines has no token.
        token: the token itself, only as a variable or from a file: `token = "${NAME}"`,
            `token = "${file:/PATH}"`.
        certificate: name in a client's certificate, after `principal_mapping_rules`. Needs `[admin.tls]` with
            client_auth.
    """

    name: ShortName
    roles: Annotated[tuple[Annotated[AdminRole, Field(strict=False)], ...], Field(strict=False, min_length=1)]
    token_file: NonEmpty | None = None
    token: SecretStr | None = None
    certificate: NonEmpty | None = None

    @model_validator(mode="after")
    def _check(self) -> AdminKey:
        ways = ("token_file", "token", "certificate")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) != 1:
            text = f"needs one of {', '.join(ways)}" + (f", and has {' and '.join(given)}" if given else "")
            raise faults_error([((), text)])
        return self


class AdminSettings(Section, frozen=True):
    """The admin port: /metrics, /healthz, /readyz, the status page and the kill switch.

    Without keys every machine that reaches the port may read, so it listens on loopback by default.

    Attributes:
        bind: address and port. Port 0 takes any free port.
        tls: certificate of the port, and the authorities of client certificates. Not set: plain HTTP.
        keys: tokens and client certificates, and what they may do. Empty: no key is needed.
        remote_changes: whether other machines may change something through this port without a key. They must also
            be able to reach `bind`. With keys, their roles decide.
        allowed_hosts: further host names under which the port answers. `*.example` is every name below it. It
            always answers to localhost, to the host of `bind` and to every IP address; in a pod of Kubernetes
            also to names that end in .svc or .svc.cluster.local. It refuses all other names, because a web page
            could let its own name point here.
        max_entity_series: how many users and clients have metric series of their own, per quota. The others
            share one series. 250 keep a scrape with all quotas below 10,000 series.
    """

    bind: BindAddress = HostPort("127.0.0.1", 9644)
    tls: ListenerTls | None = None
    keys: Annotated[tuple[AdminKey, ...], Field(strict=False, max_length=64)] = ()
    remote_changes: bool = False
    allowed_hosts: Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], Field(strict=False)] = ()
    max_entity_series: Annotated[int, Field(ge=0, le=100_000)] = 250

    @property
    def url(self) -> str:
        """The port's URL, without a path."""
        return f"{'http' if self.tls is None else 'https'}://{self.bind}"

    @property
    def open_to_others(self) -> bool:
        """Whether other machines may reach it and need no key."""
        return not self.keys and not is_loopback(self.bind.host)

    @model_validator(mode="after")
    def _check(self) -> AdminSettings:
        faults: list[tuple[Key, str]] = []
        seen: dict[str, int] = {}
        certified: dict[str, int] = {}
        by_certificate = self.tls is not None and self.tls.client_auth != "none"
        for at, key in enumerate(self.keys):
            if (first := seen.setdefault(key.name, at)) != at:
                faults.append((("keys", at, "name"), f'"{key.name}" is the name of admin.keys.{first} too'))
            if key.certificate is None:
                continue
            if (first := certified.setdefault(key.certificate, at)) != at:
                faults.append((("keys", at, "certificate"), f"is the certificate of admin.keys.{first} too"))
            if not by_certificate:
                text = 'needs [admin.tls] with client_auth = "requested" or "required", and client_ca'
                faults.append((("keys", at, "certificate"), text))
        if self.tls is not None and self.tls.certificates:
            faults.append((("tls", "certificates"), "the admin port has one certificate, for all its names"))
        if faults:
            raise faults_error(faults)
        return self
