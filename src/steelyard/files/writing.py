"""Safe writers: everything that is written passes through here.

A file is made under a private name in its own folder, synced to disk and renamed, so that it is there whole or not at
all. Only new names and regular files are written to: never a device, a FIFO or a socket, and never a link that somebody
has placed. What goes wrong is a `UserError` that names the path.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from steelyard.errors import UserError
from steelyard.files.partial import new_file, partial_file, partial_folder, sync, sync_folder

_KINDS = (
    (stat.S_ISDIR, "is a folder; give the name of a file"),
    (stat.S_ISLNK, "is a symbolic link, which is not followed; give the file's own path"),
    (stat.S_ISREG, ""),
)


def write_text(path: Path, text: str) -> None:
    """Write a file whole, in UTF-8; folders above it are made."""
    with replacing_text(path) as file:
        file.write(text)


def write_secret(path: Path, text: str) -> None:
    """The same for what only its owner may read."""
    with replacing(path) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text.encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to. It takes its place at the end of the block, and is gone if that fails."""
    with writing_to(path):
        check_target(path)
        with folders_above(path), partial_file(path.parent) as (part, file):
            yield file
            sync(file)
            check_target(path)
            os.rename(part, path)
        sync_folder(path.parent)


@contextmanager
def replacing_text(path: Path) -> Iterator[TextIO]:
    """The same for text in UTF-8."""
    with replacing(path) as file, _as_text(file) as text:
        yield text


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A new file of a folder that is private already (`partial_folder`), synced at the end of the block."""
    with new_file(path) as file:
        yield file
        sync(file)


@contextmanager
def written_text(path: Path) -> Iterator[TextIO]:
    """The same for text in UTF-8."""
    with written(path) as file, _as_text(file) as text:
        yield text


def appending(path: Path, alone: bool = False) -> TextIO:
    """A file to add lines to, made if it is missing. With ``alone`` no other process may add to it meanwhile."""
    with writing_to(path):
        check_target(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with folders_above(path):
            handle = os.open(path, flags, 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):  # it has become another thing since it was checked
            os.close(handle)
            raise UserError(f"{path}: is not a regular file; give another name")
        if alone:
            _lock(handle, path)
        return os.fdopen(handle, "a", encoding="utf-8", newline="\n")


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(f"{path}: another run is writing to it; wait for its end, or choose another folder") from None
    except OSError:
        return  # the file system has no locks


def check_file(path: Path) -> None:
    """Raise UserError unless a file can be written at this path. Leaves nothing behind."""
    with writing_to(path):
        check_target(path)
        home = nearest_folder(path.parent)
        if home == path.parent:
            with partial_file(home):
                return
        with partial_folder(home) as trial:
            trial.joinpath(path.parent.relative_to(home)).mkdir(parents=True, exist_ok=True)


def check_target(path: Path) -> None:
    """Raise UserError unless a path is that of a regular file that may be replaced, or nothing is there."""
    check_name(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    mode = found.st_mode
    told = next((told for is_kind, told in _KINDS if is_kind(mode)), "is a device, a FIFO or a socket; give a file")
    if not told and _is_kept(found, os.stat(path.parent)):
        told = "belongs to another user, and its folder is one where only the owner may replace it; give another name"
    if told:
        raise UserError(f"{path}: {told}")


def _is_kept(file: os.stat_result, folder: os.stat_result) -> bool:
    """Whether a file is another user's in a folder like /tmp, which everybody may write to."""
    return bool(folder.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, file.st_uid, folder.st_uid)


def check_name(path: Path) -> None:
    """Raise UserError for a path that no file system has."""
    if "\0" in str(path):
        raise UserError(f"{path}: a path cannot have a NUL character in it")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UserError(f"{path}: cannot be a path in the encoding of this system's file names") from None


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn the system's refusals into messages that name what was to be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


@contextmanager
def folders_above(path: Path) -> Iterator[None]:
    """The folders above a path, made if they are missing; those that were made are removed if the block fails."""
    above = list(path.parents)
    missing = above[: above.index(nearest_folder(path.parent))]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in missing:
            try:
                each.rmdir()
            except OSError:
                break
        raise


def nearest_folder(path: Path) -> Path:
    """The path itself or the first folder above it that exists. A file or a dead link in the way is an error."""
    for each in (path, *path.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(each)
            if not each.is_dir():
                raise OSError(errno.EEXIST, f"{each} is not a folder")
            return each
    raise OSError(errno.ENOENT, "there is no working directory")


@contextmanager
def _as_text(file: BinaryIO) -> Iterator[TextIO]:
    """A file for text. Halves of characters, which UTF-8 does not have, are escaped."""
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="\n")
    yield text
    text.detach()
