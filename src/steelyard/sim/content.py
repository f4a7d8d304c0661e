"""Digests of contents: equal contents have equal digests, in any process."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from steelyard.files.finding import is_file, walked

_PACKAGE = Path(__file__).parents[1]
_MATTERS = (
    "model",
    "hardware",
    "cost",
    "engine",
    "scenario",
    "sim",
)  # packages whose code or data change tables or memory plans
_NOT_CODE = {".pyc"}


def digest(*parts: object) -> str:
    """A name of 40 hexadecimal digits."""
    found = blake2b(digest_size=20)
    for each in parts:
        for piece in _pieces(each):
            found.update(piece)
            found.update(b"\0")
    return found.hexdigest()


def _pieces(part: object) -> Iterator[bytes]:
    if part is None or isinstance(part, bool | int | float | str | Path):
        yield f"{type(part).__name__} {part!r}".encode()
    elif isinstance(part, bytes):
        yield part
    elif isinstance(part, np.ndarray):
        yield f"array {part.dtype} {part.shape}".encode()
        yield part.tobytes()
    elif isinstance(part, BaseModel):
        yield from _named(type(part), part.model_dump())
    elif isinstance(part, Mapping):
        yield from _named(dict, part)
    elif is_dataclass(part):
        yield from _named(type(part), {each.name: getattr(part, each.name) for each in fields(part)})
    elif isinstance(part, Set):
        yield from _pieces(sorted(part))
    elif isinstance(part, list | tuple):
        yield f"sequence {len(part)}".encode()
        for each in part:
            yield from _pieces(each)
    else:
        raise TypeError(f"the contents of a {type(part).__name__} are not known")


def _named(kind: type, values: Mapping[Any, Any]) -> Iterator[bytes]:
    yield f"{kind.__name__} {len(values)}".encode()
    for name, value in values.items():
        yield from _pieces(name)
        yield from _pieces(value)


@cache
def package_fingerprint() -> str:
    """A digest that changes with the package's code and data: names, sizes and times of its files, and versions of
    Python and NumPy."""
    return digest(
        sys.version_info[:2], np.__version__, platform.machine(), [files_under(_PACKAGE / room) for room in _MATTERS]
    )


def files_under(path: Path) -> list[tuple[str, int, int]]:
    """(name, size, modification time) of a file, or of all files in a folder."""
    if is_file(path):
        stat = path.stat()
        return [(path.name, stat.st_size, stat.st_mtime_ns)]
    found = []
    for folder, names in walked(path, "the folder of a profile"):
        for name in names:
            file = folder / name
            if file.suffix not in _NOT_CODE:
                stat = file.lstat()
                found.append((file.relative_to(path).as_posix(), stat.st_size, stat.st_mtime_ns))
    return sorted(found)
