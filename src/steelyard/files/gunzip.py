"""Unpacks gzip files. A file may have many members, and members may be empty: their number is bounded, too.

The standard library's reader takes each header apart in Python, byte by byte where it has a name: a file that unpacks
to nothing can keep it busy for minutes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from steelyard.files.limits import MOST_MEMBERS

_WITH_HEADER = 16 + zlib.MAX_WBITS  # zlib's way to say that headers and checksums are those of gzip
_PIECE = 1 << 14  # packed bytes that are read at a time; what follows a member is copied, so not more


def unpacked(file: BinaryIO, block: int) -> Iterator[bytes]:
    """What a packed file holds, in blocks of about this size. Raises EOFError or zlib.error if it is damaged."""
    found, size = [], 0
    for piece in _pieces(file, block):
        found.append(piece)
        size += len(piece)
        if size >= block:
            yield b"".join(found)
            found, size = [], 0
    if found:
        yield b"".join(found)


def _pieces(file: BinaryIO, most: int) -> Iterator[bytes]:
    """The same in pieces of any size, all members one after the other. There may be zeros after each."""
    packed, members = file.read(_PIECE), 0
    while packed:
        members += 1
        if members > MOST_MEMBERS:
            raise zlib.error(f"more than {MOST_MEMBERS:,} gzip members; pack it in one go")
        member = zlib.decompressobj(_WITH_HEADER)
        while not member.eof:
            piece = member.decompress(packed, most)
            if piece:
                yield piece
            elif not packed:
                raise EOFError("its end is missing")
            packed = member.unconsumed_tail or (b"" if member.eof else file.read(_PIECE))
        packed = member.unused_data.lstrip(b"\0")
        while not packed and (more := file.read(_PIECE)):
            packed = more.lstrip(b"\0")
