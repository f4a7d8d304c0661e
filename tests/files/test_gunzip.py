"""Gzip files: what the standard library reads, in less time and never without end."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.files import gunzip, limits
from steelyard.files.gunzip import unpacked
from steelyard.files.reading import text_lines

EMPTY = gzip.compress(b"", mtime=0)


def named(member: bytes, name: bytes) -> bytes:
    """The member with a file name in its header."""
    return member[:3] + bytes([member[3] | 8]) + member[4:10] + name + b"\0" + member[10:]


def outcome(read: Callable[[bytes], bytes], data: bytes) -> bytes | None:
    try:
        return read(data)
    except (OSError, EOFError, zlib.error):
        return None


MEMBERS = st.builds(lambda data, level: gzip.compress(data, level, mtime=0), st.binary(max_size=200), st.integers(0, 9))
PARTS = st.one_of(
    MEMBERS,
    st.builds(named, MEMBERS, st.binary(max_size=50).map(lambda name: name.replace(b"\0", b""))),
    st.just(b"\0" * 40),
)


@given(st.lists(PARTS, max_size=6), st.integers(0, 30), st.integers(1, 400), st.integers(1, 50))
def test_it_reads_what_the_standard_library_reads(parts: list[bytes], cut: int, block: int, piece: int) -> None:
    """Members with and without names, zeros between them, an end that is missing, at any sizes of what is read."""
    data = EMPTY + b"".join(parts)
    data = data[: len(data) - cut] or EMPTY
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gunzip, "_PIECE", piece)
        found = outcome(lambda packed: b"".join(unpacked(io.BytesIO(packed), block)), data)
    assert found == outcome(gzip.decompress, data)


@given(st.integers(0, 400), st.integers(0, 255))
def test_damage_is_seen(at: int, byte: int) -> None:
    text = random.Random(0).randbytes(300)
    data = bytearray(gzip.compress(text, mtime=0))
    data[at % len(data)] = byte
    assert outcome(lambda packed: b"".join(unpacked(io.BytesIO(packed), 100)), bytes(data)) in (text, None)


def test_blocks_are_of_the_size_asked_for() -> None:
    data = gzip.compress(b"a" * 100_000) + gzip.compress(b"b") * 5000
    sizes = [len(each) for each in unpacked(io.BytesIO(data), 1000)]
    assert sum(sizes) == 105_000 and max(sizes) < 2000 and min(sizes[:-1]) >= 1000


def test_many_members_are_refused_after_bounded_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million empty members took 5 seconds, and there could be 50 million of them."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(EMPTY * 3 * limits.MOST_MEMBERS)
    begun, made = 0, zlib.decompressobj

    def counted(*arguments: Any) -> Any:
        nonlocal begun
        begun += 1
        return made(*arguments)

    monkeypatch.setattr(zlib, "decompressobj", counted)
    with pytest.raises(UserError, match=r"bomb\.gz: cannot be read: more than 100,000 gzip members; pack it in one go"):
        list(text_lines(path))
    assert begun == limits.MOST_MEMBERS


def test_names_in_headers_are_not_read_byte_by_byte() -> None:
    """A name of a gigabyte took minutes."""
    reads = 0

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal reads
            reads += 1
            return super().read(size)

    data = named(gzip.compress(b"text"), b"x" * (10 << 20))
    assert b"".join(unpacked(Counted(data), 1 << 20)) == b"text"
    assert reads <= len(data) // gunzip._PIECE + 3


def test_a_packed_file_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gz"
    path.write_bytes(EMPTY)
    with path.open("r+b") as file:
        file.truncate(limits.MOST_BYTES + 1)
    with pytest.raises(UserError, match=r"sparse\.gz: more than 1,073,741,824 bytes, packed"):
        list(text_lines(path))
