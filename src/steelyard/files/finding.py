"""Looks for files. A name that no file can have, or that may not be looked at, is a name that is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from steelyard.errors import UserError, shown
from steelyard.files.limits import MOST_FOLDERS


def is_file(path: Path) -> bool:
    """Whether it is a regular file, or a link to one."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name of thousands of letters, a folder that may not be read, a NUL
        return False


def is_folder(path: Path) -> bool:
    """Whether it is a folder, or a link to one."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_there(path: Path) -> bool:
    """Whether anything has this name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def walked(root: Path, wanted: str) -> Iterator[tuple[Path, list[str]]]:
    """Every folder at or below a root, and the names of its files. Links to folders are not followed."""
    for count, (folder, _, names) in enumerate(os.walk(root), 1):
        if count > MOST_FOLDERS:
            raise UserError(f"{shown(root)}: more than {MOST_FOLDERS:,} folders in it; give {wanted}")
        yield Path(folder), names


def files_below(root: Path, pattern: str, wanted: str) -> list[Path]:
    """Files below a root whose path ends like the pattern, sorted."""
    return sorted(
        path for folder, names in walked(root, wanted) for path in map(folder.joinpath, names) if path.match(pattern)
    )
