"""A result replaces an earlier one as a whole, at whatever step its process fails or is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.files.folder import RESULT_FILES, SUMMARY, check_folder, result_folder
from steelyard.files.partial import PREFIX
from steelyard.files.reading import read_text
from steelyard.files.swap import UNFINISHED, finish_swap, locked, swap
from steelyard.files.writing import written_text

OLD = dict.fromkeys((*RESULT_FILES[::2], SUMMARY), "old")
NEW = dict.fromkeys((*RESULT_FILES[1::2], SUMMARY), "new")
CHANGING = ("rename", "replace", "unlink", "rmdir", "mkdir", "link", "symlink", "open", "fsync", "ftruncate")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with an old result, and a file of the user's own."""
    folder = tmp_path / "run"
    with result_folder(folder) as stage:
        write(stage, OLD)
    (folder / "notes.txt").write_text("mine")
    return folder


def write(stage: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        with written_text(stage / name) as file:
            file.write(text)


def overwrite(out: Path) -> None:
    with result_folder(out) as stage:
        write(stage, NEW)


def found_by_a_reader(out: Path) -> dict[str, str]:
    """As loading does: the summary first, then all that is there."""
    found = {SUMMARY: read_text(out / SUMMARY)}
    return found | {name: read_text(out / name) for name in RESULT_FILES if (out / name).exists()}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Whether a process that does the work is killed before it changes a folder or a file for the so manieth time."""
    child = os.fork()
    if not child:
        try:
            _kill_self_at(step)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return os.WIFSIGNALED(status)


def _kill_self_at(step: int) -> None:
    left = step

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def one(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*arguments, **more)

        return one

    for name in CHANGING:
        setattr(os, name, counted(getattr(os, name)))


def prepared(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / f"run-{number}"
    folder.mkdir()
    write(folder, {**OLD, "notes.txt": "mine"})
    return folder


def test_a_kill_at_any_step_leaves_the_old_result_or_the_new_one(tmp_path: Path) -> None:
    results, step = [], 0
    while True:
        out = prepared(tmp_path, step)
        killed = killed_at(step, partial(overwrite, out))
        assert SUMMARY in names(out)
        mixed = {name: (out / name).read_text() for name in RESULT_FILES if (out / name).exists()} not in (OLD, NEW)
        assert not mixed or UNFINISHED in names(out)
        results.append(found_by_a_reader(out))
        assert results[-1] in (OLD, NEW) and UNFINISHED not in names(out)
        assert (out / "notes.txt").read_text() == "mine"
        overwrite(out)
        assert found_by_a_reader(out) == NEW and names(out) == {*NEW, "notes.txt"}
        if not killed:
            break
        step += 1
    assert results == sorted(results, key=NEW.__eq__)  # the old one up to one step, the new one from there on
    assert results[0] == OLD and results[-1] == NEW and step > 2 * len(RESULT_FILES)


def committed(tmp_path: Path, number: int, moved: int = 3) -> Path:
    """A folder whose run was killed after some files were moved."""
    out = prepared(tmp_path, number)
    rename, left = os.rename, moved + 1

    def work() -> None:
        def move(*arguments: Any) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            rename(*arguments)

        os.rename = move  # type: ignore[assignment]
        overwrite(out)

    assert killed_at(-1, work) and UNFINISHED in names(out)
    return out


@pytest.mark.parametrize("moved", [0, 2, len(NEW)])
def test_who_finishes_may_be_killed_too(tmp_path: Path, moved: int) -> None:
    step, killed = 0, True
    while killed:
        out = committed(tmp_path, step, moved)
        killed = killed_at(step, partial(finish_swap, out))
        assert found_by_a_reader(out) == NEW
        assert {name for name in names(out) if not name.startswith(PREFIX)} == {*NEW, "notes.txt"}
        step += 1
    assert step > 5


@pytest.mark.parametrize("failing", range(len(NEW) + 2))
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "Input/output error")])
def test_a_failure_at_any_move_leaves_the_old_result_or_the_new_one(
    out: Path, monkeypatch: pytest.MonkeyPatch, failing: int, error: type[BaseException] | BaseException
) -> None:
    moves, rename = iter(range(100)), os.rename

    def rename_or_fail(one: Path, other: Path) -> None:
        if next(moves) == failing:
            raise error
        rename(one, other)

    monkeypatch.setattr(os, "rename", rename_or_fail)
    with pytest.raises((KeyboardInterrupt, UserError)):
        overwrite(out)
    assert error is not KeyboardInterrupt or UNFINISHED not in names(out)
    wanted = NEW if failing else OLD
    assert found_by_a_reader(out) == wanted and names(out) == {*wanted, "notes.txt"}


def test_the_next_writer_finishes_first(tmp_path: Path) -> None:
    out = committed(tmp_path, 0)
    with pytest.raises(UserError, match="not empty"):
        check_folder(out, fresh=True)
    assert names(out) == {*NEW, "notes.txt"}
    out = committed(tmp_path, 1)
    with result_folder(out, names=("report.html", SUMMARY)) as stage:
        write(stage, {SUMMARY: "newer"})
    assert found_by_a_reader(out) == {**{name: "new" for name in NEW if name != "report.html"}, SUMMARY: "newer"}


def test_a_reader_waits_for_a_living_writer(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, begun = os.rename, threading.Event()

    def slow(one: Path, other: Path) -> None:
        rename(one, other)
        begun.set()
        threading.Event().wait(0.01)

    monkeypatch.setattr(os, "rename", slow)
    writer = threading.Thread(target=overwrite, args=(out,))
    writer.start()
    begun.wait(10)
    found = found_by_a_reader(out)
    writer.join()
    assert found == NEW


def test_other_things_of_that_name_stay(out: Path) -> None:
    """A folder of the user's own is neither emptied nor removed."""
    mine = out / UNFINISHED / SUMMARY
    mine.parent.mkdir()
    mine.write_text("mine")
    for work in (lambda: read_text(out / SUMMARY), lambda: check_folder(out, fresh=False), lambda: overwrite(out)):
        with pytest.raises(UserError, match=f"{UNFINISHED}: was not left by a run"):
            work()
    assert mine.read_text() == "mine" and read_text(out / "notes.txt") == "mine"


@pytest.mark.parametrize("kind", ["nothing", "folder", "pipe", "link"])
def test_a_list_that_is_no_file_is_not_read(out: Path, kind: str) -> None:
    """A result may come from an archive, and a pipe would be waited for."""
    path = out / UNFINISHED / "remove.txt"
    path.parent.mkdir()
    made: dict[str, Callable[[Path], None]] = {
        "folder": Path.mkdir,
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to("../notes.txt"),
    }
    if kind != "nothing":
        made[kind](path)
    with pytest.raises(UserError, match=f"{UNFINISHED}: was not left by a run"):
        read_text(out / SUMMARY)


def test_a_list_that_is_no_text_names_nothing(out: Path) -> None:
    (out / UNFINISHED).mkdir()
    (out / UNFINISHED / "remove.txt").write_bytes(b"\xff\xfe\0\nsummary.json\n")
    assert read_text(out / "report.html") == "old" and SUMMARY not in names(out)


def test_a_list_of_names_leads_nowhere_else(tmp_path: Path, out: Path) -> None:
    """Only files of a result are moved or removed, whatever the list says."""
    (out / UNFINISHED).mkdir()
    write(out / UNFINISHED, {"remove.txt": "notes.txt\n../run\n../victim\n/\n" + "x" * 5000, SUMMARY: "new"})
    (tmp_path / "victim").write_text("mine")
    assert read_text(out / SUMMARY) == "new"
    assert names(out) == {*OLD, "notes.txt"} and (tmp_path / "victim").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of other users")
def test_what_another_user_left_is_not_moved(out: Path) -> None:
    (out / UNFINISHED).mkdir()
    write(out / UNFINISHED, {"remove.txt": SUMMARY})
    os.chown(out / UNFINISHED, 65534, 65534)
    with pytest.raises(UserError, match="another user"):
        read_text(out / SUMMARY)
    assert (out / SUMMARY).read_text() == "old"


def test_a_result_that_cannot_be_finished_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixture is never read."""
    (out / UNFINISHED).mkdir()
    write(out / UNFINISHED, {"remove.txt": "", **NEW})

    def refuse(one: Path, other: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(UserError, match=r"a run was ended while .* cannot be moved: Read-only file system"):
        read_text(out / SUMMARY)


def test_files_of_other_names_are_read_as_they_are(out: Path) -> None:
    (out / UNFINISHED).mkdir()
    assert read_text(out / "notes.txt") == "mine" and UNFINISHED in names(out)


def test_a_second_run_is_told_if_the_first_does_not_end(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.files.swap._PATIENCE", 0.0)
    with locked(out), pytest.raises(UserError, match="another run is writing to it"), locked(out):
        pass


def test_a_swap_replaces_only_the_names_it_is_given(out: Path, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    write(stage, {SUMMARY: "new"})
    swap(stage, out, (SUMMARY, "events.jsonl"))
    assert found_by_a_reader(out) == {**OLD, SUMMARY: "new"} and not stage.exists()
