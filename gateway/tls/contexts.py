"""TLS contexts: created from the configured files, and again when the files change (hazard H21).

If a set of files does not fit together, the previous set stays in force, and the log and the metrics report it.
Open connections stay, and new ones get the new certificate. A session is not resumed in another context, so the next
handshake already applies the removal of an authority.

At least TLS 1.2, no compression, no renegotiation (hazard H23).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import structlog
from cryptography import x509

from config import ConfigError, read_at_once
from config.sections.listeners import ListenerTls
from config.sections.upstream import UpstreamTls

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_MOST_FILE_BYTES: Final = 16 * 1024 * 1024

_log = structlog.get_logger("gateway.tls")

Stamp: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]
"""Attributes of files that differ after a change."""


def stamp_of(paths: Iterable[str]) -> Stamp:
    """The current attributes of these files."""

    def stamp(path: str) -> tuple[int, int, int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        # st_ctime too: only it shows that a file has become readable.
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)

    return tuple(stamp(path) for path in paths)


class FileUser(Protocol):
    """Uses contents of files that can be reloaded."""

    def reload(self, *, only_if_changed: bool, by: str) -> bool:
        """See `TlsIdentity.reload`."""


class TlsFileFault(Exception):
    """A file cannot be used.

    Attributes:
        key: the key in the section.
        text: continues the key: the fault, with the path and without the content.
    """

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key = key
        self.text = text


@dataclass(frozen=True, slots=True)
class Loaded:
    """A context in force.

    Attributes:
        context: for new handshakes.
        expires_s: end of validity of the gateway's certificate, seconds since 1970; None without one.
        hosts: names in the gateway's certificate, in lower case.
        texts: contents of an upstream's files, by their keys, for libraries that take no context.
    """

    context: ssl.SSLContext
    expires_s: float | None
    hosts: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)


def server_context(section: ListenerTls) -> Loaded:
    """The context of a listener.

    Raises:
        TlsFileFault: a file can't be used.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, section)
    expires_s, hosts = _load_own(context, section.certificate, section.key, section.key_password_file)
    context.verify_mode = _CLIENT_AUTH[section.client_auth]
    # One, as in Java: a client can resume more than once with a ticket, and each ticket costs 1/20 of a handshake.
    context.num_tickets = 1
    if section.client_ca is not None:
        _trust(context, "client_ca", section.client_ca)
        # A resumed session would not verify the certificate again.
        context.num_tickets = 0
    if section.client_crl is not None:
        _trust(context, "client_crl", section.client_crl)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    return Loaded(context, expires_s, hosts)


def client_context(section: UpstreamTls) -> Loaded:
    """The context of connections to brokers. Unless `verify = false`, their certificate and name are verified.

    Raises:
        TlsFileFault: a file can't be used.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, section)
    if not section.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif section.ca is not None:
        _trust(context, "ca", section.ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    expires_s = None
    if section.certificate is not None and section.key is not None:
        expires_s, _ = _load_own(context, section.certificate, section.key, section.key_password_file)
    # These files may be newer than the loaded ones; then the next reload loads them.
    keys = ("ca", "certificate", "key", "key_password_file")
    texts = {key: _read(key, path) for key in keys if (path := getattr(section, key)) is not None}
    return Loaded(
        context, expires_s, texts={key: text.decode("utf-8", "replace") for key, text in texts.items()}
    )


def _context(protocol: int, section: ListenerTls | UpstreamTls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = _VERSIONS[section.minimum_version]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if section.ciphers is not None:
        try:
            context.set_ciphers(section.ciphers)
        except ssl.SSLError:
            raise TlsFileFault("ciphers", f'"{section.ciphers}" names no cipher that OpenSSL knows') from None
    return context


def _load_own(
    context: ssl.SSLContext, certificate: str, key: str, password_file: str | None
) -> tuple[float, frozenset[str]]:
    """Load the gateway's certificate. Returns when it expires, and the hosts that it names."""
    chain = _read("certificate", certificate)
    _read("key", key)
    password = b"" if password_file is None else _read("key_password_file", password_file).rstrip(b"\r\n")
    try:
        own = x509.load_pem_x509_certificates(chain)[0]
        expires_s, hosts = own.not_valid_after_utc.timestamp(), _hosts(own)
    except (ValueError, x509.InvalidVersion):
        raise TlsFileFault("certificate", f'"{certificate}" holds no PEM certificate') from None
    try:
        # Always with a password: without one OpenSSL would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise TlsFileFault("key", f'"{key}" does not belong to "{certificate}"') from None
        why = exc.reason or "no PEM key, or another password"
        raise TlsFileFault("key", f'"{key}" cannot be used: {why}') from None
    except (OSError, ValueError) as exc:
        raise TlsFileFault("key", f'"{key}" cannot be used: {type(exc).__name__}') from None
    return expires_s, hosts


def _hosts(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # noqa: BLE001  (the library knows not all that OpenSSL takes, and has no class for its errors)
        return frozenset()
    return frozenset(name.lower() for name in names.get_values_for_type(x509.DNSName))


def _trust(context: ssl.SSLContext, key: str, path: str) -> None:
    _read(key, path)
    try:
        context.load_verify_locations(path)
    except OSError as exc:  # includes OpenSSL's errors
        what = "revocation list" if key.endswith("crl") else "certificate"
        why = getattr(exc, "reason", None) or exc.strerror
        raise TlsFileFault(key, f'"{path}" holds no PEM {what}: {why}') from None


def _read(key: str, path: str) -> bytes:
    try:
        return read_at_once(path, _MOST_FILE_BYTES)
    except OSError as exc:
        raise TlsFileFault(key, f'"{path}" cannot be read: {exc.strerror}') from None
    except ValueError as exc:
        raise TlsFileFault(key, f'"{path}" {exc}') from None


def _unreadable(files: Mapping[str, str]) -> list[TlsFileFault]:
    found = []
    for key, path in files.items():
        try:
            _read(key, path)
        except TlsFileFault as exc:
            found.append(exc)
    return found


class TlsIdentity:
    """The context of one listener or upstream, and its files.

    Attributes:
        owner: its name in logs and metrics, such as ``listeners.clients.tls``.
        reloads, failed_reloads: how often files were read again, with and without success. The same failure with
            unchanged files is counted once.
        last_reload_failed: whether the context in force is older than the files.
    """

    def __init__(self, owner: str, section: ListenerTls | UpstreamTls) -> None:
        """Read the files.

        Args:
            owner: see the class.
            section: names the files.

        Raises:
            ConfigError: a file cannot be used; names all files that cannot be read.
        """
        self.owner = owner
        self.reloads = self.failed_reloads = 0
        self.last_reload_failed = False
        self._fault = ""
        self._load: Callable[[], Loaded] = (
            (lambda: server_context(section))
            if isinstance(section, ListenerTls)
            else (lambda: client_context(section))
        )
        names = ("certificate", "key", "key_password_file", "client_ca", "client_crl", "ca")
        self._files = {name: path for name in names if (path := getattr(section, name, None)) is not None}
        self._stamp = stamp_of(self._files.values())
        try:
            self._loaded = self._load()
        except TlsFileFault as exc:
            raise ConfigError([f"{owner}.{each}" for each in _unreadable(self._files) or [exc]]) from None

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next handshake."""
        return self._loaded.context

    @property
    def expires_s(self) -> float | None:
        """See `Loaded`."""
        return self._loaded.expires_s

    @property
    def hosts(self) -> frozenset[str]:
        """See `Loaded`."""
        return self._loaded.hosts

    @property
    def texts(self) -> Mapping[str, str]:
        """See `Loaded`."""
        return self._loaded.texts

    def reload(self, *, only_if_changed: bool, by: str) -> bool:
        """Read the files again. May block on the file system.

        Args:
            only_if_changed: read only if the files have changed, or if the last reload failed. A failure may have a
                cause that the files do not show, such as a folder's permission or the network. The same fault is not
                reported again.
            by: the reason, for the log.

        Returns:
            Whether the files, as far as they were read, could be used.
        """
        # Before the files are read: the next call detects a change that happens meanwhile.
        stamp = stamp_of(self._files.values())
        again = only_if_changed and stamp == self._stamp
        if again and not self.last_reload_failed:
            return True
        self._stamp = stamp
        try:
            loaded = self._load()
        except Exception as exc:  # noqa: BLE001  (whatever a library raises, the other files are reloaded too)
            known = isinstance(exc, TlsFileFault)
            fault = str(exc) if known else type(exc).__name__
            if not again or fault != self._fault:
                self.failed_reloads += 1
                _log.error(
                    "certificate_not_reloaded", owner=self.owner, by=by, fault=fault, exc_info=not known
                )
            self._fault = fault
            self.last_reload_failed = True
            return False
        self._loaded = loaded
        self.reloads += 1
        self.last_reload_failed = False
        _log.info("certificate_reloaded", owner=self.owner, by=by, expires_s=int(loaded.expires_s or 0))
        return True


class Certificates:
    """The certificates of one listener, and the selection for a client.

    Attributes:
        identities: the certificates. The first is for clients that name no host, or a host that no certificate has.
    """

    def __init__(self, identities: Sequence[TlsIdentity]) -> None:
        self.identities = identities

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the first certificate."""
        return self.identities[0].context

    def of(self, host: str) -> TlsIdentity | None:
        """The certificate for a host name in lower case; None without one. Exact names come before wildcards."""
        # A wildcard matches one label.
        wildcard = "*." + host.partition(".")[2]
        for name in (host, wildcard):
            for each in self.identities:
                if name in each.hosts:
                    return each
        return None


def reload_all(users: Iterable[FileUser], *, only_if_changed: bool, by: str) -> bool:
    """Reload all users. Returns whether all reloads succeeded."""
    # A list, not a generator: all are reloaded, even if one fails.
    results = [each.reload(only_if_changed=only_if_changed, by=by) for each in users]
    return all(results)
