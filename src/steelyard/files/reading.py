"""Bytes and text of files: regular files only, of bounded size, in UTF-8, unpacked if they are gzipped."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from steelyard.errors import UserError, shown
from steelyard.files.gunzip import unpacked
from steelyard.files.limits import MOST_BYTES, MOST_DOCUMENT_BYTES, MOST_LINE_BYTES, MOST_LINES, MOST_RATIO, SMALL_BYTES
from steelyard.files.swap import RESULT_FILES, finish_swap
from steelyard.quoting import shortened

_GZIP = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_BLOCK = 1 << 20  # bytes that are read and checked at a time
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


class LineBlock(NamedTuple):
    """Some whole lines of a file, and the number of the first."""

    first: int
    data: bytes


@contextmanager
def opened(path: Path, wanted: str = "") -> Iterator[BinaryIO]:
    """A regular file, open for reading. What goes wrong meanwhile is a `UserError`, which says what is ``wanted``.

    A file of a result belongs with the others there: what a killed run left to do is done first.
    """
    hint = f"; give {wanted}" if wanted else ""
    where = shown(path)
    if path.name in RESULT_FILES:
        finish_swap(path.parent)
    try:
        mode = _mode(path)
        if not stat.S_ISREG(mode):
            raise UserError(f"{where}: is {_KINDS.get(stat.S_IFMT(mode), 'no file')}, not a regular file{hint}")
        with open(path, "rb", opener=_without_waiting) as file:
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{where}: no such file{hint}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"{where}: cannot be read: {shortened(reason)}") from None


def _mode(path: Path) -> int:
    """What kind of file it is. Opening it would tell too, but that waits for ever at a pipe."""
    try:
        return os.stat(path).st_mode
    except ValueError as error:  # a NUL in the name
        raise UserError(f"{shown(path)}: not the name of a file: {error}") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file. Some of the system's own wait for what is to come, and so does a pipe that was a file before."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_bytes(path: Path, most: int = MOST_BYTES, wanted: str = "") -> bytes:
    """All of a file, as it is."""
    with opened(path, wanted) as file:
        return b"".join(_bounded(file, path, most))


def read_text(path: Path, most: int = MOST_DOCUMENT_BYTES, wanted: str = "") -> str:
    """All of a text file, unpacked if it is gzipped."""
    return decoded(b"".join(_unpacked(path, most, wanted)), path, 1)


def text_lines(path: Path, wanted: str = "") -> Iterator[tuple[int, str]]:
    """LineBlock that are not blank, with their numbers, as they are read."""
    for first, data in line_blocks(path, wanted):
        for number, line in enumerate(decoded(data, path, first).split("\n"), first):
            text = line.strip()
            if text:
                yield number, text


def line_blocks(path: Path, wanted: str = "") -> Iterator[LineBlock]:
    """A file of lines, about a megabyte at a time. Blocks of blank lines are left out."""
    first, rest = 1, b""
    for block in _unpacked(path, MOST_BYTES, wanted):
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            yield from _filled(LineBlock(first, rest + whole))
            first, rest = first + whole.count(b"\n") + 1, tail
        else:
            rest += tail
        if len(rest) > MOST_LINE_BYTES:
            raise UserError(f"{shown(path)}:{first}: a line of more than {MOST_LINE_BYTES:,} bytes; give shorter ones")
        if first > MOST_LINES:
            raise UserError(f"{shown(path)}: more than {MOST_LINES:,} lines; give fewer")
    yield from _filled(LineBlock(first, rest))


def decoded(data: bytes, path: Path, first: int) -> str:
    """The text of bytes of a file, the first of them in line ``first``."""
    bad, what = data.find(b"\0"), "a NUL byte; give UTF-8 text"
    if bad < 0:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            bad, what = error.start, f"not UTF-8 text (byte 0x{data[error.start]:02x})"
    line = first + data.count(b"\n", 0, bad)
    raise UserError(f"{shown(path)}:{line}: {what}")


def _filled(lines: LineBlock) -> Iterator[LineBlock]:
    if lines.data and not lines.data.isspace():
        yield lines


def _unpacked(path: Path, most: int, wanted: str) -> Iterator[bytes]:
    """The text in a file by blocks, without a byte order mark."""
    with opened(path, wanted) as file:
        packed = file.read(len(_GZIP)) == _GZIP
        if packed:
            blocks = _gunzipped(file, path, most)
        else:
            file.seek(0)
            blocks = _bounded(file, path, most)
        first = next(blocks, b"")
        if first.startswith(_UTF16_MARKS):
            raise UserError(f"{shown(path)}: not UTF-8 text but UTF-16; save it as UTF-8")
        yield first.removeprefix(_UTF8_MARK)
        yield from blocks


def _bounded(file: BinaryIO, path: Path, most: int) -> Iterator[bytes]:
    """A file by blocks. Its size is read before its bytes, which some have without end."""
    if os.fstat(file.fileno()).st_size > most:
        raise _too_large(path, most)
    yield from _at_most(_blocks(file), path, most)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _gunzipped(file: BinaryIO, path: Path, most: int) -> Iterator[bytes]:
    """A packed file by blocks. Its last bytes tell how much was packed, up to 4 GiB, if it was packed in one go."""
    packed = file.seek(0, os.SEEK_END)
    if packed > most:
        raise _too_large(path, most, "packed")
    file.seek(max(0, packed - 4))
    told = int.from_bytes(file.read(4), "little")
    most = min(most, max(SMALL_BYTES, MOST_RATIO * packed))
    if told > most:
        raise UserError(f"{shown(path)}: cannot be read: damaged, or more than {most:,} bytes when unpacked")
    file.seek(0)
    yield from _at_most(unpacked(file, _BLOCK), path, most)


def _at_most(blocks: Iterator[bytes], path: Path, most: int) -> Iterator[bytes]:
    read = 0
    for block in blocks:
        read += len(block)
        if read > most:
            raise _too_large(path, most)
        yield block


def _too_large(path: Path, most: int, state: str = "unpacked") -> UserError:
    return UserError(f"{shown(path)}: more than {most:,} bytes, {state}; give a smaller file")
