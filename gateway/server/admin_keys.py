"""Keys of the admin port in force: the digests of tokens, the names in certificates, and the roles of each.

Only SHA-256 digests of tokens are kept, and a presented token is compared with all of them in constant time. Token
files are read at the start, at each reload, and when they change. A file that cannot be used at a reload refuses the
reload; one that changes into something that cannot be used leaves its earlier tokens in force.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from config import ConfigError
from config.sections.admin import AdminKey, AdminRole
from gateway.tls.contexts import Stamp, stamp_of

MIN_TOKEN_CHARS: Final = 32
"""As many as 16 random bytes have in hexadecimal."""
_MAX_TOKEN_CHARS: Final = 1_024
_LEAST_DIFFERENT: Final = 8
"""Characters of a token that differ: "aaaa..." is no secret."""
_MAX_TOKENS: Final = 8
_MAX_FILE_BYTES: Final = 16 * 1024
# What a header can carry as a token (RFC 6750).
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_FORM: Final = (
    f"a token has {MIN_TOKEN_CHARS} to {_MAX_TOKEN_CHARS} letters, digits or -._~+/=, at least {_LEAST_DIFFERENT} of "
    "them different; make one with: openssl rand -hex 32"
)

_log = structlog.get_logger("gateway.admin")


@dataclass(frozen=True, slots=True)
class Holder:
    """What is known of a request with a valid key.

    Attributes:
        name: of the key.
        roles: of the key.
    """

    name: str
    roles: frozenset[AdminRole]


@dataclass(frozen=True, slots=True)
class _Loaded:
    key: AdminKey
    digests: tuple[bytes, ...]
    stamp: Stamp | None

    @property
    def holder(self) -> Holder:
        return Holder(self.key.name, frozenset(self.key.roles))


_Keys: TypeAlias = tuple[_Loaded, ...]


class AdminKeys:
    """See the module.

    Attributes:
        last_reload_failed: whether a changed token file could not be used.
    """

    def __init__(self, keys: tuple[AdminKey, ...]) -> None:
        """Read the token files.

        Args:
            keys: of the configuration.

        Raises:
            ConfigError: a file or a token can't be used; names all of them, and shows no token.
        """
        self.last_reload_failed = False
        self._keys = _load_all(keys)
        self._prepared: tuple[tuple[AdminKey, ...], _Keys] = (keys, self._keys)
        self._faults: dict[str, str] = {}
        # Files are looked at in a thread, and must not bring keys back that a reload has just taken away.
        self._exchange = threading.Lock()

    def __bool__(self) -> bool:
        """Whether requests need a key."""
        return bool(self._keys)

    @property
    def by_certificate(self) -> bool:
        """Whether a key is a certificate."""
        return any(each.key.certificate is not None for each in self._keys)

    def of_token(self, token: bytes) -> Holder | None:
        """The holder of a token; None: it is no key. The time that it takes does not depend on which byte differs."""
        presented = _digest(token)
        found = None
        for each in self._keys:
            for digest in each.digests:
                if hmac.compare_digest(digest, presented):
                    found = each.holder
        return found

    def of_certificate(self, name: str) -> Holder | None:
        """The holder of a verified certificate with this name; None: it is no key."""
        return next((each.holder for each in self._keys if each.key.certificate == name), None)

    def prepare(self, keys: tuple[AdminKey, ...]) -> None:
        """Read the files of other keys, for `use`. May block on the file system.

        Raises:
            ConfigError: as at the start; nothing changes.
        """
        self._prepared = (keys, _load_all(keys))

    def use(self, keys: tuple[AdminKey, ...]) -> None:
        """Put keys in force that were prepared."""
        prepared, loaded = self._prepared
        if prepared == keys:
            with self._exchange:
                self._keys = loaded
                self.last_reload_failed = False
                self._faults = {}

    def reload(self, *, only_if_changed: bool, by: str) -> bool:
        """Read token files again. May block on the file system.

        Args:
            only_if_changed: leave out files that look as when they were last read.
            by: the reason, for the log.

        Returns:
            Whether all files that were read could be used.
        """
        before = self._keys
        after = tuple(self._again(each, only_if_changed, by) for each in before)
        with self._exchange:
            if self._keys is not before:
                return True
            self._keys = after
            self.last_reload_failed = bool(self._faults)
            return not self.last_reload_failed

    def _again(self, loaded: _Loaded, only_if_changed: bool, by: str) -> _Loaded:
        key = loaded.key
        if key.token_file is None:
            return loaded
        same = stamp_of((key.token_file,)) == loaded.stamp
        if only_if_changed and same and key.name not in self._faults:
            return loaded
        try:
            found = _load(key)
        except ValueError as exc:
            fault = str(exc)
            if self._faults.get(key.name) != fault:
                _log.error("admin_key_not_reloaded", key=key.name, by=by, fault=fault)
            self._faults[key.name] = fault
            return loaded
        self._faults.pop(key.name, None)
        if found.digests != loaded.digests:
            _log.info("admin_key_reloaded", key=key.name, by=by, tokens=len(found.digests))
        return found


def _load_all(keys: tuple[AdminKey, ...]) -> _Keys:
    loaded: list[_Loaded] = []
    faults: list[str] = []
    owners: dict[bytes, int] = {}
    for at, key in enumerate(keys):
        field = "token" if key.token is not None else "token_file"
        try:
            loaded.append(_load(key))
        except ValueError as exc:
            faults.append(f"admin.keys.{at}.{field}: {exc}")
            continue
        for digest in loaded[-1].digests:
            if (first := owners.setdefault(digest, at)) != at:
                faults.append(f"admin.keys.{at}.{field}: has the same token as admin.keys.{first}")
    if faults:
        raise ConfigError(faults)
    return tuple(loaded)


def _load(key: AdminKey) -> _Loaded:
    """A key with its tokens.

    Raises:
        ValueError: they can't be used; the text has no token.
    """
    if key.token is not None:
        return _Loaded(key, tuple(_digests([key.token.get_secret_value().encode()])), None)
    if key.token_file is None:
        return _Loaded(key, (), None)
    # Looked at before it is read: what changes meanwhile is seen next time.
    stamp = stamp_of((key.token_file,))
    return _Loaded(key, tuple(_digests(read_tokens(key.token_file))), stamp)


def read_tokens(file: str) -> list[bytes]:
    """The tokens of a file, one per line.

    Raises:
        ValueError: it can't be read, or has none or too many lines; the text has no token.
    """
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ValueError(f"{file}: {exc.strerror}") from None
    lines = [line for each in text.splitlines() if (line := each.strip())]
    if not 1 <= len(lines) <= _MAX_TOKENS or len(text) > _MAX_FILE_BYTES:
        raise ValueError(f"{file}: must have 1 to {_MAX_TOKENS} lines with a token each")
    return lines


def _digests(tokens: Iterable[bytes]) -> Iterator[bytes]:
    for token in tokens:
        fits = MIN_TOKEN_CHARS <= len(token) <= _MAX_TOKEN_CHARS and len(set(token)) >= _LEAST_DIFFERENT
        if not fits or _TOKEN.fullmatch(token) is None:
            raise ValueError(_FORM)
        yield _digest(token)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
