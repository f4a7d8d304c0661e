"""Private names for files and folders that are not complete yet.

They are hidden, lie in the folder of the result, and are locked while their process lives. What a killed process left
has no lock any more, and is removed by the next one that writes to the same folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PREFIX = ".steelyard-partial-"
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def partial_file(home: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file in a folder, open for writing. It is removed at the end unless it was renamed."""
    _remove_abandoned(home)
    while True:
        path = _private(home)
        handle = os.open(path, os.O_RDWR | _NEW, 0o666)
        with os.fdopen(handle, "wb") as file:
            if not _locked(handle, path):
                continue
            try:
                yield path, file
            finally:
                with suppress(OSError):
                    _unlink_same(path, handle)
        return


@contextmanager
def partial_folder(home: Path) -> Iterator[Path]:
    """A new folder in a folder. It is removed with all its files at the end unless it was renamed."""
    _remove_abandoned(home)
    with ExitStack() as stack:
        while True:
            path = _private(home)
            path.mkdir()
            with suppress(FileNotFoundError):  # taken for abandoned in the moment before it was locked
                handle = _opened(path)
                stack.callback(os.close, handle)
                if _locked(handle, path):
                    break
        try:
            yield path
        finally:
            if _is_same(path, handle):
                shutil.rmtree(path, ignore_errors=True)


def _opened(new: Path) -> int:
    """A new folder, open to be locked. It is removed if a strange umask forbids that."""
    try:
        return os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        new.rmdir()
        raise


def discard(folder: Path) -> None:
    """Remove a folder with all its files. Its name is free at once, whatever happens to the files."""
    private = _private(folder.parent)
    os.rename(folder, private)
    shutil.rmtree(private, ignore_errors=True)


def new_file(path: Path) -> BinaryIO:
    """A new file, open for writing; one that exists is an OSError, even a link or a device."""
    return os.fdopen(os.open(path, os.O_WRONLY | _NEW, 0o666), "wb")


def sync(file: BinaryIO) -> None:
    """Have the disk hold what was written."""
    file.flush()
    _sync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the disk hold the names of a folder's files."""
    with suppress(OSError):  # some file systems cannot
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(handle)
        finally:
            os.close(handle)


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has nothing to sync
            raise


def _private(home: Path) -> Path:
    return home / f"{PREFIX}{os.urandom(8).hex()}"


def _locked(handle: int, path: Path) -> bool:
    """Lock what was just made. False if another process has taken it for abandoned in between."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks, so nothing is taken for abandoned either
    return _is_same(path, handle)


def _is_same(path: Path, handle: int) -> bool:
    """Whether a name still is that of an open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except OSError:
        return False


def _unlink_same(path: Path, handle: int) -> None:
    if _is_same(path, handle):
        path.unlink()


def _remove_abandoned(home: Path) -> None:
    """Remove what killed processes left. Nothing here may fail a run."""
    with suppress(OSError):
        for name in os.listdir(home):
            if name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_if_abandoned(home / name)


def _remove_if_abandoned(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(found.st_mode):
            path.unlink()
    finally:
        os.close(handle)
