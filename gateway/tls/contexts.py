"""TLS contexts: created from the configured files, and again when the files change (hazard H21).

A set of files that does not fit together keeps the one before in force, and says so in the log and in the metrics.
Open connections stay; new ones get the new certificate. Sessions are not resumed from one
context to the next, so an authority that is no longer trusted is so from the next handshake on.

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
"""How files look from outside: what differs once they were changed."""


def stamp_of(paths: Iterable[str]) -> Stamp:
    """How these files look now."""

    def stamp(path: str) -> tuple[int, int, int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        # The time of change too: nothing else shows that a file can be read now.
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)

    return tuple(stamp(path) for path in paths)


class FileUser(Protocol):
    """Has something in force that comes from files."""

    def reload(self, *, only_if_changed: bool, by: str) -> bool:
        """See `TlsIdentity.reload`."""


class TlsFileFault(Exception):
    """A file can't be used.

    Attributes:
        key: of the section.
        text: continues the key: what is wrong, with the path and without the content.
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
        expires_s: end of validity of our own certificate, seconds since 1970; None without one.
        hosts: names in our own certificate, in lower case.
        texts: of the files of an upstream, by their keys, for libraries that take no context.
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
    # One, as Java's: a client can resume with it more than once, and each costs a twentieth of a handshake.
    context.num_tickets = 1
    if section.client_ca is not None:
        _trust(context, "client_ca", section.client_ca)
        # A resumed session would not look at the certificate again.
        context.num_tickets = 0
    if section.client_crl is not None:
        _trust(context, "client_crl", section.client_crl)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    return Loaded(context, expires_s, hosts)


def client_context(section: UpstreamTls) -> Loaded:
    """The context of connections to brokers; without `verify = false` their certificate and name must be right.

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
    # What changes since they were loaded is loaded soon.
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
    """When the certificate expires, and the hosts that it names."""
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
    except OSError as exc:  # OpenSSL's errors among them
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
    """The context of one listener or upstream, and the files it comes from.

    Attributes:
        owner: in logs and metrics, such as ``listeners.clients.tls``.
        reloads, failed_reloads: how often files were read again, with and without success; one that fails as the
            last one did, on files that look the same, is not counted again.
        last_reload_failed: whether what is in force is older than the files.
    """

    def __init__(self, owner: str, section: ListenerTls | UpstreamTls) -> None:
        """Read the files.

        Args:
            owner: see above.
            section: names the files.

        Raises:
            ConfigError: a file can't be used; names all that can't be read.
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
        """For the next handshake."""
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
            only_if_changed: since they were last read, or while the last set can't be used: what was wrong may be a
                folder's permission or a network's fault, which no file shows. What is still wrong is not reported
                again.
            by: the reason, for the log.

        Returns:
            Whether the files, as far as they were read, could be used.
        """
        # Looked at before they are read: what changes meanwhile is seen next time.
        stamp = stamp_of(self._files.values())
        again = only_if_changed and stamp == self._stamp
        if again and not self.last_reload_failed:
            return True
        self._stamp = stamp
        try:
            loaded = self._load()
        except Exception as exc:  # noqa: BLE001  (whatever a library makes of a file, others are looked at too)
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
    """Those of one listener, and which of them a client gets.

    Attributes:
        identities: the first one is for clients that ask for no host, or for one that no certificate has.
    """

    def __init__(self, identities: Sequence[TlsIdentity]) -> None:
        self.identities = identities

    @property
    def context(self) -> ssl.SSLContext:
        """Of the first one."""
        return self.identities[0].context

    def of(self, host: str) -> TlsIdentity | None:
        """The certificate for a host name in lower case: exact names come before wildcards; None: there is none."""
        # A wildcard stands for one label.
        wildcard = "*." + host.partition(".")[2]
        for name in (host, wildcard):
            for each in self.identities:
                if name in each.hosts:
                    return each
        return None


def reload_all(users: Iterable[FileUser], *, only_if_changed: bool, by: str) -> bool:
    """Reload each of them; returns whether all could be."""
    # Each of them, whatever came of the one before.
    results = [each.reload(only_if_changed=only_if_changed, by=by) for each in users]
    return all(results)
