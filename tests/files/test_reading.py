"""The boundary: whatever a file holds, reading ends soon, in bounded memory, with its text or with one message."""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.files import limits, reading
from steelyard.files.reading import line_blocks, read_bytes, read_text, text_lines


def refusal(path: Path) -> str:
    """What both ways to read a text say; they must agree that it is refused."""
    with pytest.raises(UserError) as whole:
        read_text(path)
    with pytest.raises(UserError) as by_line:
        list(text_lines(path))
    assert str(path.name) in str(whole.value)
    return f"{whole.value}\n{by_line.value}"


def test_text_is_read_whole_and_by_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\n  two é \nthree".encode())
    assert read_text(path) == "one\r\n\n  two é \nthree"
    assert list(text_lines(path)) == [(1, "one"), (3, "two é"), (4, "three")]


@given(st.binary(max_size=300).map(lambda data: data.replace(b"\0", b"")), st.integers(3, 20), st.booleans())
def test_lines_do_not_depend_on_where_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, block: int, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "a.txt"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_BLOCK", block)
        found = _outcome(path)
    assert found == _outcome(path)


def _outcome(path: Path) -> list[tuple[int, str]] | str:
    try:
        return list(text_lines(path))
    except UserError as error:
        return str(error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfea\0b\0", "UTF-16"),
        ("\ufeffab".encode("utf-16-be"), "UTF-16"),
        ("ab\ncd".encode("utf-16-le"), "NUL"),
        (b"a\nb\0c", "a.txt:2: a NUL byte"),
        (b"a\nb\xffc", "a.txt:2: not UTF-8 text (byte 0xff)"),
        (gzip.compress(b"a" * 9999, mtime=0)[:-9], "cannot be read"),
        (gzip.compress(b"a" * 9999, mtime=0)[:6], "cannot be read"),
        (b"\x1f\x8b", "cannot be read"),
        (b"\x1f\x8bnonsense", "cannot be read"),
        (gzip.compress(b"a", mtime=0) + b"more", "cannot be read"),
    ],
)
def test_bytes_that_are_no_text(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    assert refusal(path).count(message) == 2


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """None of these may be waited for: a pipe has no end until somebody writes, and a device may have none at all."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        assert refusal(tmp_path / "socket").count("is a socket") == 2
    assert refusal(tmp_path / "pipe").count("is a pipe") == 2
    assert refusal(tmp_path / "folder").count("is a folder") == 2
    assert refusal(tmp_path / "zero").count("is a device") == 2
    assert refusal(tmp_path / "loop").count("cannot be read") == 2
    assert refusal(tmp_path / "absent").count("no such file") == 2
    assert refusal(tmp_path / "absent" / "x").count("no such file") == 2
    with pytest.raises(UserError, match="not the name of a file"):
        read_text(Path("a\0b"))
    with pytest.raises(UserError) as long:
        read_text(tmp_path / ("x" * 5000))
    assert len(str(long.value)) < 300


def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/kmsg, which says that it is a regular file and has no end."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(reading, "_mode", lambda path: stat.S_IFREG)
    for read in (read_text, read_bytes, lambda path: list(text_lines(path))):
        with contextlib.suppress(UserError):
            assert not read(tmp_path / "pipe")


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_text(tmp_path / "b") == "text"


def test_a_large_file_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "sparse.txt"
    with path.open("wb") as file:
        file.truncate(limits.MOST_BYTES + 1)
    assert refusal(path).count("more than") == 2
    with pytest.raises(UserError, match="more than"):
        read_bytes(path)


@pytest.mark.parametrize("unit", [b"\n", b" ", b"a", b"{}\n", b" \n"])
def test_what_unpacks_to_far_more_is_refused_early(
    tmp_path: Path, unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bombs of one member say how large they are. Those of several are measured as they unpack."""
    monkeypatch.setattr(reading, "SMALL_BYTES", 1 << 20)
    member = gzip.compress(unit * ((1 << 20) // len(unit)))
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(unit * (4 << 20)))
    (tmp_path / "bombs.gz").write_bytes(member * 12)
    for name in ("bomb.gz", "bombs.gz"):
        assert refusal(tmp_path / name)


def test_lines_are_bounded_in_length_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_LINE_BYTES", 100)
    monkeypatch.setattr(reading, "MOST_LINES", 10)
    monkeypatch.setattr(reading, "_BLOCK", 16)
    path = tmp_path / "a.txt"
    path.write_text("a\n" * 9 + "b" * 99)
    assert len(list(text_lines(path))) == 10
    path.write_text("a\n" * 9 + "b" * 130)
    with pytest.raises(UserError, match=r"a\.txt:10: a line of more than 100 bytes"):
        list(text_lines(path))
    path.write_text("\n" * 30)
    with pytest.raises(UserError, match="more than 10 lines"):
        list(text_lines(path))


def test_blank_blocks_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n" * (3 << 20) + b"end")
    assert [block.first for block in line_blocks(path)] == [(3 << 20) + 1]
