"""Result folders: whole, and never at the cost of what was there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.files.folder import RESULT_FILES, check_folder, result_folder
from steelyard.files.writing import written_text

SUMMARY = "summary.json"


def fill(out: Path, *files: str, fresh: bool = False, content: str = "new") -> None:
    with result_folder(out, fresh) as stage:
        for name in files:
            with written_text(stage / name) as file:
                file.write(content)


def tree(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_files_of_an_earlier_result_are_replaced_or_removed(tmp_path: Path) -> None:
    fill(tmp_path / "run", "requests.parquet", "events.jsonl", SUMMARY, content="old")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    fill(tmp_path / "run", "trajectories.parquet", SUMMARY)
    assert tree(tmp_path / "run") == {"notes.txt": "mine", "trajectories.parquet": "new", SUMMARY: "new"}


@pytest.mark.parametrize("name", RESULT_FILES)
@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_nothing_is_lost_when_a_name_is_taken(tmp_path: Path, name: str, kind: str) -> None:
    """The old summary was deleted before the move of another file failed."""
    out = tmp_path / "run"
    fill(out, *RESULT_FILES, content="old")
    (out / name).unlink()
    (tmp_path / "victim").write_text("mine")
    {"folder": Path.mkdir, "link": lambda path: path.symlink_to("../victim"), "pipe": os.mkfifo}[kind](out / name)
    before = {path.name: path.lstat().st_ino for path in out.iterdir()}
    with pytest.raises(UserError, match=name):
        check_folder(out, fresh=False)
    with pytest.raises(UserError, match=name):
        fill(out, *RESULT_FILES)
    assert {path.name: path.lstat().st_ino for path in out.iterdir()} == before
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("there", [False, True])
def test_one_of_two_runs_wins_a_fresh_folder_and_the_other_is_told(tmp_path: Path, there: bool) -> None:
    out = tmp_path / "run"
    if there:
        out.mkdir()
    together, told = threading.Barrier(2), []

    def run(name: str) -> None:
        check_folder(out, fresh=True)
        try:
            with result_folder(out, fresh=True) as stage:
                for file in ("requests.parquet", SUMMARY):
                    with written_text(stage / file) as text:
                        text.write(name)
                together.wait()
        except UserError as error:
            told.append(str(error))

    runs = [threading.Thread(target=run, args=(name,)) for name in ("one", "other")]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert len(told) == 1 and "another run has written to it" in told[0]
    found = tree(tmp_path)
    assert set(found) == {"run", "run/requests.parquet", f"run/{SUMMARY}"} and len(set(found.values())) == 2


def test_two_runs_that_overwrite_leave_one_of_two_whole_results(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fill(out, *RESULT_FILES, content="old")
    together = threading.Barrier(2)

    def run(name: str) -> None:
        with result_folder(out) as stage:
            for file in RESULT_FILES:
                with written_text(stage / file) as text:
                    text.write(name)
            together.wait()

    runs = [threading.Thread(target=run, args=(name,)) for name in ("one", "other")]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert len(set(tree(out).values())) == 1


@pytest.mark.parametrize("out", ["a\0b", "x" * 300, "x/" * 2500 + "y", "file", "file/deep/run", "dead", "dead/run"])
def test_impossible_folders_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    Path("dead").symlink_to("nowhere")
    for write in (check_folder, fill):
        with pytest.raises(UserError) as caught:
            write(Path(out), fresh=False)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert tree(tmp_path) == {"file": "mine", "dead": None}


def test_a_link_of_the_users_own_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    check_folder(tmp_path / "run", fresh=True)
    fill(tmp_path / "run", SUMMARY, fresh=True)
    assert tree(tmp_path / "disk") == {SUMMARY: "new"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of other users")
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    os.lchown(tmp_path / "run", 65534, 65534)
    for write in (check_folder, fill):
        with pytest.raises(UserError, match="symbolic link of another user"):
            write(tmp_path / "run", fresh=True)
    assert tree(tmp_path / "disk") == {}
