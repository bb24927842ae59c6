"""Keys of the admin port in force: digests of tokens, names in certificates, and the roles of each key.

Only SHA-256 digests of tokens are kept. A presented token is compared with all of them in constant time. Token files
are read at the start, at each reload, and when they change. If a file is unusable at a reload, the reload is refused.
If a file changes and becomes unusable, its earlier tokens stay in force.

A file without lines has no tokens, so removing the last line revokes the last token. So does removing a file that was
read before. At the start and at a reload a missing file is an error, since its path may be wrong.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from config import ConfigError, read_at_once
from config.sections.admin import AdminKey, AdminRole
from gateway.tls.contexts import Stamp, stamp_of

MIN_TOKEN_CHARS: Final = 32
"""As many as 16 random bytes have in hexadecimal."""
_MAX_TOKEN_CHARS: Final = 1_024
_LEAST_DIFFERENT: Final = 8
"""The least number of different characters in a token: "aaaa..." is no secret."""
_MAX_TOKENS: Final = 8
_MAX_FILE_BYTES: Final = 16 * 1024
# The characters of a token in a header (RFC 6750).
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_FORM: Final = (
    f"a token has {MIN_TOKEN_CHARS} to {_MAX_TOKEN_CHARS} letters, digits or -._~+/=, at least {_LEAST_DIFFERENT} of "
    "them different; make one with: openssl rand -hex 32"
)

_log = structlog.get_logger("gateway.admin")


@dataclass(frozen=True, slots=True)
class Holder:
    """The key of an authenticated request.

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
            ConfigError: files or tokens are unusable; the text names all of them, and shows no token.
        """
        self.last_reload_failed = False
        self._keys = _warned(load_all(keys))
        self._prepared: tuple[tuple[AdminKey, ...], _Keys] = (keys, self._keys)
        self._faults: dict[str, str] = {}
        # A thread checks the files. It must not bring back keys that a reload has just removed.
        self._exchange = threading.Lock()

    def __bool__(self) -> bool:
        """Whether requests need a key: the configuration has one."""
        return bool(self._keys)

    @property
    def by_certificate(self) -> bool:
        """Whether a key is a certificate."""
        return any(each.key.certificate is not None for each in self._keys)

    def of_token(self, token: bytes) -> Holder | None:
        """The holder of a token; None: no key has it. The time taken does not depend on which byte differs."""
        presented = _digest(token)
        found = None
        for each in self._keys:
            for digest in each.digests:
                if hmac.compare_digest(digest, presented):
                    found = each.holder
        return found

    def of_certificate(self, name: str) -> Holder | None:
        """The holder of a verified certificate with this name; None: no key has the name."""
        return next((each.holder for each in self._keys if each.key.certificate == name), None)

    def prepare(self, keys: tuple[AdminKey, ...]) -> None:
        """Read the files of new keys, for `use`. May block on the file system.

        Raises:
            ConfigError: as at the start; nothing changes.
        """
        self._prepared = (keys, _warned(load_all(keys)))

    def use(self, keys: tuple[AdminKey, ...]) -> None:
        """Put prepared keys in force."""
        prepared, loaded = self._prepared
        if prepared == keys:
            with self._exchange:
                self._keys = loaded
                self.last_reload_failed = False
                self._faults = {}

    def reload(self, *, only_if_changed: bool, by: str) -> bool:
        """Read token files again. May block on the file system.

        Args:
            only_if_changed: skip files that look as they did when last read.
            by: the reason, for the log.

        Returns:
            Whether all files that were read were usable.
        """
        before = self._keys
        after: list[_Loaded] = []
        faults: dict[str, str] = {}
        for each in before:
            try:
                after.append(self._again(each, only_if_changed))
            except ValueError as exc:
                faults[each.key.name] = str(exc)
                after.append(each)
        _undo_duplicates(before, after, faults)
        with self._exchange:
            if self._keys is not before:
                return True
            known, self._faults = self._faults, faults
            self._keys = tuple(after)
            self.last_reload_failed = bool(faults)
        for name, fault in faults.items():
            if known.get(name) != fault:
                _log.error("admin_key_not_reloaded", key=name, by=by, fault=fault)
        for old, new in zip(before, after, strict=True):
            if new.digests != old.digests:
                _log.info("admin_key_reloaded", key=new.key.name, by=by, tokens=len(new.digests))
        return not faults

    def _again(self, loaded: _Loaded, only_if_changed: bool) -> _Loaded:
        """A key with the present tokens of its file.

        Raises:
            ValueError: as `_load`.
        """
        key = loaded.key
        if key.token_file is None:
            return loaded
        same = stamp_of((key.token_file,)) == loaded.stamp
        if only_if_changed and same and key.name not in self._faults:
            return loaded
        try:
            return _load(key)
        except _FileIsGone:
            return _Loaded(key, (), None)


def _undo_duplicates(before: _Keys, after: list[_Loaded], faults: dict[str, str]) -> None:
    """Give a key its earlier tokens back if it now has a token of another key.

    This ends: each turn resets one key to `before`, which has no duplicates.
    """
    while True:
        owners: dict[bytes, int] = {}
        for at, each in enumerate(after):
            twice = next((digest for digest in each.digests if owners.setdefault(digest, at) != at), None)
            if twice is not None:
                break
        else:
            return
        first = owners[twice]
        brought, other = (first, at) if twice in before[at].digests else (at, first)
        faults[before[brought].key.name] = f"has the same token as the key {before[other].key.name}"
        after[brought] = before[brought]


def load_all(keys: tuple[AdminKey, ...]) -> _Keys:
    """Keys with their tokens.

    Raises:
        ConfigError: as `AdminKeys`.
    """
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


def _warned(loaded: _Keys) -> _Keys:
    """The same keys; logs a warning for each key without tokens."""
    for each in loaded:
        if each.key.token_file is not None and not each.digests:
            _log.warning("admin_key_without_tokens", key=each.key.name, file=each.key.token_file)
    return loaded


class _FileIsGone(ValueError):
    """The file does not exist."""


def _load(key: AdminKey) -> _Loaded:
    """A key with its tokens.

    Raises:
        ValueError: its tokens are unusable; the text has no token.
    """
    if key.token is not None:
        return _Loaded(key, tuple(_digests([key.token.get_secret_value().encode()])), None)
    if key.token_file is None:
        return _Loaded(key, (), None)
    # The stamp is taken before the file is read, so that a change meanwhile is found next time.
    stamp = stamp_of((key.token_file,))
    return _Loaded(key, tuple(_digests(read_tokens(key.token_file))), stamp)


def read_tokens(file: str) -> list[bytes]:
    """The tokens of a file, one per line; none, if it has no lines.

    Raises:
        ValueError: the file is unreadable or too large; the text has no token.
    """
    try:
        text = read_at_once(file, _MAX_FILE_BYTES)
    except FileNotFoundError as exc:
        raise _FileIsGone(f"{file}: {exc.strerror}") from None
    except OSError as exc:
        raise ValueError(f"{file}: {exc.strerror}") from None
    except ValueError as exc:
        raise ValueError(f"{file}: {exc}") from None
    lines = [line for each in text.splitlines() if (line := each.strip())]
    if len(lines) > _MAX_TOKENS:
        raise ValueError(f"{file}: must have at most {_MAX_TOKENS} lines with a token each")
    return lines


def _digests(tokens: Iterable[bytes]) -> Iterator[bytes]:
    for token in tokens:
        fits = MIN_TOKEN_CHARS <= len(token) <= _MAX_TOKEN_CHARS and len(set(token)) >= _LEAST_DIFFERENT
        if not fits or _TOKEN.fullmatch(token) is None:
            raise ValueError(_FORM)
        yield _digest(token)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
