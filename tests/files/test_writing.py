"""Safe writers: files are whole or not there, and nothing but regular files and new names is written to."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.files.partial import PREFIX, partial_file, partial_folder
from steelyard.files.writing import appending, check_file, replacing, write_text


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@contextmanager
def full_disk(bytes_left: int = 1000) -> Iterator[None]:
    """No file may grow beyond this: what a full disk does, to this process alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def a_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except OSError:
        pytest.skip("device nodes cannot be made here")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(path.parent)  # paths of sockets are short
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)


def a_link(path: Path) -> None:
    (path.parent / "victim").write_text("mine")
    path.symlink_to("victim")


def a_dead_link(path: Path) -> None:
    path.symlink_to("nowhere")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


OTHERS: list[tuple[Callable[[Path], None], str]] = [
    (a_device, "device"),
    (os.mkfifo, "FIFO"),
    (a_socket, "socket"),
    (Path.mkdir, "is a folder"),
    (a_link, "symbolic link"),
    (a_dead_link, "symbolic link"),
    (a_link_to_itself, "symbolic link"),
]


@pytest.mark.parametrize(("place", "told"), OTHERS, ids=lambda case: getattr(case, "__name__", ""))
def test_only_regular_files_are_written_to(tmp_path: Path, place: Callable[[Path], None], told: str) -> None:
    path = tmp_path / "out.md"
    place(path)
    before = {name: os.lstat(tmp_path / name) for name in names(tmp_path)}

    for write in (lambda: write_text(path, "new"), lambda: check_file(path), lambda: appending(path)):
        with pytest.raises(UserError, match=told):
            write()
    after = {name: os.lstat(tmp_path / name) for name in names(tmp_path)}
    assert {name: (each.st_ino, each.st_mode, each.st_size) for name, each in after.items()} == {
        name: (each.st_ino, each.st_mode, each.st_size) for name, each in before.items()
    }


def test_files_that_only_their_owner_may_replace_are_refused_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder like /tmp: it was found out at the end of the run."""
    write_text(tmp_path / "out.md", "old")
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    for write in (check_file, lambda path: write_text(path, "new")):
        with pytest.raises(UserError, match=r"out\.md: belongs to another user"):
            write(tmp_path / "out.md")
    check_file(tmp_path / "other.md")
    tmp_path.chmod(0o777)
    write_text(tmp_path / "out.md", "new")
    assert names(tmp_path) == {"out.md"} and (tmp_path / "out.md").read_text() == "new"


def test_what_appears_while_a_file_is_written_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.md"
    with pytest.raises(UserError, match="symbolic link"), replacing(path) as file:
        file.write(b"new")
        a_link(path)
    assert (tmp_path / "victim").read_text() == "mine" and names(tmp_path) == {"out.md", "victim"}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "out.md"
    write_text(path, "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    old = path.stat().st_ino
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == "ü\n".encode() and path.stat().st_ino == old
    write_text(path, "new")
    assert path.read_text() == "new" and names(tmp_path / "deep") == {"down", "down/out.md"}
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.md"
    write_text(path, "old")
    for target in (path, tmp_path / "made" / "above" / "new.md"):
        with full_disk(), pytest.raises(UserError, match=rf"{target.name}: cannot be written: File too large"):
            write_text(target, "x" * 5000)
    assert path.read_text() == "old" and names(tmp_path) == {"out.md"}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("a\0b", "NUL"),
        ("x" * 300, "too long"),
        ("x/" * 2500 + "y", "too long"),
        ("", "is a folder"),
        (".", "is a folder"),
        ("..", "is a folder"),
        ("file/below", "[Nn]ot a "),
        ("file/far/below", "[Nn]ot a "),
        ("dead/below", "dead is not a folder"),
    ],
)
def test_impossible_paths_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    Path("dead").symlink_to("nowhere")
    for write in (lambda: write_text(Path(path), "new"), lambda: check_file(Path(path)), lambda: appending(Path(path))):
        with pytest.raises(UserError, match=told) as caught:
            write()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert names(tmp_path) == {"file", "dead"}


@settings(max_examples=50)
@given(st.text(max_size=40).filter(lambda name: not name.startswith("/")))
def test_no_name_is_an_internal_error(name: str) -> None:
    """Checked only: nothing is written, so no folder is needed."""
    try:
        check_file(Path("/proc/self/nobody-writes-here") / name)
    except UserError as error:
        assert "\n" not in str(error) and str(error).encode()
    else:
        raise AssertionError("that was written")


def test_checking_leaves_nothing(tmp_path: Path) -> None:
    check_file(tmp_path / "new.md")
    check_file(tmp_path / "a" / "b" / "new.md")
    assert names(tmp_path) == set()


# -- private names ------------------------------------------------------------------------------------------------

ABANDON = """
import os, signal, sys
from pathlib import Path
from steelyard.files.partial import partial_file, partial_folder
home = Path(sys.argv[1])
with partial_file(home) as (_, file), partial_folder(home) as folder:
    file.write(b"half"); file.flush()
    (folder / "half.txt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ABANDON, str(tmp_path)], timeout=60)
    assert sum(name.startswith(PREFIX) for name in names(tmp_path)) == 3
    write_text(tmp_path / "new.md", "new")
    assert names(tmp_path) == {"new.md"}


def test_a_folder_that_cannot_be_opened_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a umask of 777."""

    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError), partial_folder(tmp_path):
        pass
    assert not names(tmp_path)


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    with partial_file(tmp_path) as (one, _), partial_folder(tmp_path) as other:
        write_text(tmp_path / "new.md", "new")
        assert names(tmp_path) == {"new.md", one.name, other.name}
    assert names(tmp_path) == {"new.md"}


def test_private_names_that_are_not_ours_stay(tmp_path: Path) -> None:
    """A link, a FIFO: never made here, so never removed, and never waited for."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "dear.txt").write_text("dear")
    (tmp_path / f"{PREFIX}link").symlink_to("mine")
    os.mkfifo(tmp_path / f"{PREFIX}pipe")
    write_text(tmp_path / "new.md", "new")
    assert names(tmp_path) == {"mine", "mine/dear.txt", f"{PREFIX}link", f"{PREFIX}pipe", "new.md"}


# -- lines that are added -----------------------------------------------------------------------------------------


def test_lines_are_added(tmp_path: Path) -> None:
    for line in ("one\n", "two\n"):
        with appending(tmp_path / "deep" / "lines.jsonl") as file:
            file.write(line)
    assert (tmp_path / "deep" / "lines.jsonl").read_text() == "one\ntwo\n"


def test_only_one_adds_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    with appending(path, alone=True), pytest.raises(UserError, match="another run is writing to it"):
        appending(path, alone=True)
    appending(path, alone=True).close()
