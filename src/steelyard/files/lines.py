"""Files of lines that a run adds to as it goes, and that the next run reads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from steelyard.files.writing import appending, writing_to


class LineFile:
    """A file of lines that one process at a time adds to.

    Half a line that a killed process left is removed. So is a file that is still empty at the end, with the folders
    that were made for it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made = [each for each in path.parents if not os.path.lexists(each)]
        self._file = appending(path, alone=True)
        with writing_to(path):
            self._remove_half_line()

    def add(self, line: str) -> None:
        """Add a line. It is on its way to the disk when this returns."""
        with writing_to(self._path):
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Leave the file to others."""
        with suppress(OSError):
            if os.fstat(self._file.fileno()).st_size == 0:
                self._path.unlink()
                for each in self._made:
                    each.rmdir()
        with writing_to(self._path):
            self._file.close()

    def _remove_half_line(self) -> None:
        size = end = os.fstat(self._file.fileno()).st_size
        with open(self._path, "rb") as file:
            while end:
                begin = max(0, end - (1 << 16))
                file.seek(begin)
                newline = file.read(end - begin).rfind(b"\n")
                end = begin + newline + 1 if newline >= 0 else begin
                if newline >= 0:
                    break
        if end < size:
            self._file.truncate(end)
