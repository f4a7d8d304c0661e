"""A result folder: its files appear together, in place of those of an earlier result, or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.partial import PREFIX, partial_folder, sync_folder
from steelyard.files.swap import RESULT_FILES, SUMMARY, finish_swap, locked, swap
from steelyard.files.writing import check_name, check_target, folders_above, nearest_folder

__all__ = ["RESULT_FILES", "SUMMARY", "check_folder", "result_folder"]


def check_folder(out: Path, fresh: bool) -> None:
    """Raise UserError unless a result can be written to this folder; leaves nothing behind.

    A ``fresh`` folder is new or empty. In others only the files of an earlier result will be replaced.
    """
    with _results_to(out):
        home = nearest_folder(out)
        _check_link(home)
        if home == out:
            finish_swap(out)
            if fresh and _content(out):
                raise UserError(f"{out} is not empty: choose another folder or pass --overwrite")
            for name in RESULT_FILES:
                check_target(out / name)
        # Try to write: permissions say nothing about read-only and special file systems.
        with partial_folder(home) as trial:
            if home != out:
                trial.joinpath(out.relative_to(home)).mkdir(parents=True, exist_ok=True)


@contextmanager
def result_folder(
    out: Path,
    fresh: bool = False,
    names: Sequence[str] = RESULT_FILES,
    another: Callable[[], Path] | None = None,
) -> Iterator[Path]:
    """A private folder for the files of a result, which are put in place at the end of the block.

    It lies beside the folder of the result, or inside it where that exists, so that a mounted volume works too. Files
    of an earlier result with any of these ``names`` are replaced, or removed if the new one has none: all or none, even
    if the process is killed (`swap`). A ``fresh`` folder must have stayed empty, or there is ``another``, new one.
    """
    with _results_to(out):
        home = nearest_folder(out)
        _check_link(home)
        with partial_folder(home) as stage:
            yield stage
            sync_folder(stage)
            placed = home != out and _become(stage, out)
            while not placed and another is not None:
                out = another()
                placed = _become(stage, out)
            if not placed:
                with locked(out):
                    if fresh and _content(out):
                        raise _taken(out)
                    swap(stage, out, names)
        sync_folder(out)


def _become(stage: Path, out: Path) -> bool:
    """Make the private folder the result folder. False if that exists by now and has something in it."""
    with folders_above(out):
        try:
            os.rename(stage, out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
    sync_folder(out.parent)
    return True


def _content(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(PREFIX)]


def _taken(out: Path) -> UserError:
    return UserError(f"{out}: another run has written to it since this one began; choose another folder")


def _check_link(folder: Path) -> None:
    """Links to folders are followed if the user, or the system, has placed them."""
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
        raise UserError(f"{folder}: is a symbolic link of another user; give the folder's own path")


@contextmanager
def _results_to(out: Path) -> Iterator[None]:
    check_name(out)
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write results to {out}: {error.strerror or error}") from None
