"""The directory of a quota store: created once, locked by one gateway, and marked once it has had a store.

quotas.db     the quotas (see `gateway.quota_admin.store.sqlite_file`)
quotas.id     the id of that store; if it exists and quotas.db does not, quotas were lost
quotas.lock   locked while a gateway runs; the kernel releases the lock however that gateway ends
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from gateway.quota_admin.store.interface import StoreError
from gateway.runtime.durable import sync_directory

_NOT_WRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class DataDirectory:
    """See the module. All methods block.

    Attributes:
        path: the directory.
        read_only: why the directory can't be written; None: it can.
    """

    def __init__(self, path: Path) -> None:
        """Does not access the directory yet."""
        self.path = path
        self.read_only: str | None = None
        self._lock_fd: int | None = None

    @property
    def database(self) -> Path:
        """The file with the quotas."""
        return self.path / "quotas.db"

    @property
    def _id_file(self) -> Path:
        return self.path / "quotas.id"

    def acquire(self) -> None:
        """Create the directory if it is missing, and lock it.

        Raises:
            StoreError: another gateway has locked it, or it can be neither used nor read.
        """
        try:
            self._make()
            self._lock_fd = os.open(self.path / "quotas.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            if exc.errno not in _NOT_WRITABLE:
                raise StoreError(f"{self.path}: {exc.strerror}") from exc
            self.read_only = f"the quota store can't be written: {self.path}: {exc.strerror}"
            # Without a lock file no gateway ever wrote here, and none can write now.
            try:
                self._lock_fd = os.open(self.path / "quotas.lock", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
        try:
            fcntl.flock(self._lock_fd, (fcntl.LOCK_SH if self.read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(self._lock_fd, 32, 0).decode("ascii", "replace").strip()
            self.release()
            raise StoreError(
                f"{self.path} is in use by another gateway{f' (process {holder})' if holder else ''}; "
                'each gateway needs a quota_store.data_dir of its own, or all of them kind = "topic"'
            ) from exc
        if self.read_only is None:
            # The content of the lock file is used only for the text above.
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock_fd, 0)
                os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)

    def store_id(self) -> str | None:
        """The id of the store that was created here; None: none yet.

        Raises:
            StoreError: the id can't be read.
        """
        try:
            return self._id_file.read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise StoreError(f"{self._id_file} can't be read: {exc}") from exc

    def set_store_id(self, store_id: str) -> None:
        """Record the id of the new store.

        Raises:
            OSError: the id can't be written.
        """
        new = self._id_file.with_suffix(".id.new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{store_id}\n".encode("ascii"))
            os.fsync(fd)
        finally:
            os.close(fd)
        new.rename(self._id_file)
        sync_directory(self.path)

    def release(self) -> None:
        """Unlock the directory."""
        fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            os.close(fd)

    def _make(self) -> None:
        missing = [self.path, *self.path.parents]
        missing = [path for path in missing if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            sync_directory(path.parent)
