"""The files of a result change places with those of an earlier one, all or none, even if the process is killed.

New files lie in a private folder. It gets the name `UNFINISHED` in the result's own folder, and with this one step the
new result counts. What remains can be done by any process, and more than once: move the new files over the old ones,
and remove those that the new result does not have. All readers and writers of results do it first if they find the
folder (`finish_swap`).
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from steelyard.errors import UserError, shown
from steelyard.files.partial import discard, sync_folder
from steelyard.files.writing import check_target, written_text

SUMMARY = "summary.json"
RESULT_FILES = (
    *("requests.parquet", "trajectories.parquet", "steps.parquet", "events.jsonl", "trace.json.gz"),
    *("timeline.svg", "report.html", "scenario.json", SUMMARY),
)
"""All files that a result may have, in the order in which they are put in place."""

UNFINISHED = "steelyard-unfinished"  # not hidden: with it in a folder, the files there may be of two results
_REMOVED = "remove.txt"  # names of files that the new result does not have
_MOST_REMOVED = 1000  # characters of that list, which has all names at most
_PATIENCE = 10.0  # seconds for which another run may be putting its files in place


def swap(stage: Path, out: Path, names: Sequence[str]) -> None:
    """Put the files of a private folder in place, as the only ones with these names. The folder must be locked."""
    _finish(out)
    for name in names:
        check_target(out / name)
    with written_text(stage / _REMOVED) as file:
        file.writelines(f"{name}\n" for name in names if not os.path.lexists(stage / name))
    sync_folder(stage)
    os.rename(stage, out / UNFINISHED)
    try:
        _finish(out)
    except KeyboardInterrupt:
        _finish(out)
        raise


def finish_swap(folder: Path) -> None:
    """Finish what a killed process has begun, or wait for a living one. Nearly always there is nothing to do."""
    if os.path.lexists(folder / UNFINISHED):
        try:
            with locked(folder):
                _finish(folder)
        except OSError as error:
            told = f"a run was ended while it replaced the result, which {UNFINISHED} has the rest of"
            raise UserError(f"{shown(folder)}: {told}; it cannot be moved: {error.strerror or error}") from None


def _finish(out: Path) -> None:
    """Move and remove what is left to. It may be ended at any point, and is then done again."""
    rest = out / UNFINISHED
    if not os.path.lexists(rest):
        return
    _check_rest(rest)
    removed = _removed_by(rest)
    sync_folder(out)
    for name in RESULT_FILES:
        with suppress(FileNotFoundError):
            if name in removed:
                os.unlink(out / name)
            else:
                os.rename(rest / name, out / name)
    sync_folder(out)
    discard(rest)


def _check_rest(rest: Path) -> None:
    """Nobody else may place files through us, and a folder that a user has given this name is not touched."""
    found, listed = os.lstat(rest), rest / _REMOVED
    if not (stat.S_ISDIR(found.st_mode) and os.path.lexists(listed) and stat.S_ISREG(os.lstat(listed).st_mode)):
        raise UserError(f"{shown(rest)}: was not left by a run, but has this name; give it another")
    if found.st_uid != os.geteuid():
        raise UserError(f"{shown(rest)}: was left by a run of another user, who has to read or write the result first")


def _removed_by(rest: Path) -> list[str]:
    """Names of files that the new result does not have."""
    with open(rest / _REMOVED, encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_REMOVED).split("\n")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """One run at a time puts its files in place."""
    handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError(f"{out}: another run is writing to it; choose another folder") from None
                time.sleep(0.02)
            except OSError:  # the file system has no locks
                break
        yield
    finally:
        os.close(handle)
