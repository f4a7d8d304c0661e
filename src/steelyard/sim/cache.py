"""A cache keyed by content: in memory, and on disk for other processes.

An entry goes to disk only if it took longer to make than it takes to read. Entries are pickles, so they are only read
from a folder that belongs to the user and that nobody else can write to. An entry that cannot be read, or that has
another key, is made again. Several writers of one entry are safe: each writes its own file and moves it into place.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from steelyard.files.partial import partial_file
from steelyard.files.reading import opened

Thing = TypeVar("Thing")

FOLDER = "STEELYARD_CACHE"  # environment variable: the folder of all caches; empty for none
_WORTH_SECONDS = 0.05  # least CPU time to make an entry that goes to disk; reading takes milliseconds
_IN_MEMORY = 64  # entries
_ON_DISK = 200  # entries of a kind, a few megabytes each; the oldest are removed
_OTHERS_WRITE = 0o022


def cache_folder() -> Path | None:
    """The folder on disk: $STEELYARD_CACHE, or ``steelyard`` in the user's cache folder; None if there is none."""
    given = os.environ.get(FOLDER)
    if given is not None:
        return Path(given) if given else None
    home = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):  # the user has no home folder
        return (Path(home) if home else Path.home() / ".cache") / "steelyard"
    return None


class Cache(Generic[Thing]):
    """Entries of one kind, by the digest of their contents (`content.digest`)."""

    def __init__(
        self, kind: str, worth_seconds: float = _WORTH_SECONDS, weigh: Callable[[Thing], int] = lambda _: 1
    ) -> None:
        """``weigh`` says for how many entries a large one counts in memory."""
        self._kind = kind
        self._worth = worth_seconds
        self._weigh = weigh
        self._known: OrderedDict[str, Thing] = OrderedDict()

    def get(self, name: str, make: Callable[[], Thing]) -> Thing:
        """The entry of this name, made if it is missing."""
        found = self._known.get(name)
        if found is None:
            found = self._read(name)
            if found is None:
                found = self._make(name, make)
            self._known[name] = found
            while len(self._known) > 1 and sum(map(self._weigh, self._known.values())) > _IN_MEMORY:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return found

    def forget(self) -> None:
        """Drop all entries in memory."""
        self._known.clear()

    def _make(self, name: str, make: Callable[[], Thing]) -> Thing:
        begun = time.process_time()
        made = make()
        if time.process_time() - begun >= self._worth:
            self._write(name, made)
        return made

    def _file(self, name: str) -> Path | None:
        folder = cache_folder()
        return None if folder is None else folder / self._kind / f"{name}.pickle"

    def _read(self, name: str) -> Thing | None:
        file = self._file(name)
        if file is None:
            return None
        try:
            if not _is_private(file.parent):
                return None
            with opened(file) as entry:
                stored_name, found = pickle.load(entry)  # noqa: S301: from a folder that only the user can write to
        except Exception:  # an old, truncated or foreign file may raise anything
            return None
        known: Thing | None = found if stored_name == name else None
        return known

    def _write(self, name: str, made: Thing) -> None:
        """Write an entry. A cache that cannot be written is not an error."""
        file = self._file(name)
        if file is None:
            return
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(file.parent):
                return
            with partial_file(file.parent) as (part, entry):
                pickle.dump((name, made), entry, protocol=pickle.HIGHEST_PROTOCOL)
                entry.flush()
                os.replace(part, file)
            _drop_oldest(file.parent)


def _drop_oldest(folder: Path) -> None:
    """Remove the oldest entries. Another process may remove them at the same time."""
    with os.scandir(folder) as entries:
        files = sorted((entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.endswith(".pickle"))
    for _, path in files[: max(0, len(files) - _ON_DISK)]:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _is_private(folder: Path) -> bool:
    """Whether a folder belongs to the user and nobody else can write to it."""
    stat = folder.stat()
    return stat.st_uid == os.geteuid() and not stat.st_mode & _OTHERS_WRITE
