"""Looking for files never fails, and never takes long."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.files import finding
from steelyard.files.finding import files_below, is_file, is_folder, is_there


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "absent", "file/below", "loop"])
def test_names_that_no_file_has(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert not any(looks(tmp_path / name) for looks in (is_file, is_folder, is_there))


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert is_file(tmp_path / "file") and is_there(tmp_path / "file") and not is_folder(tmp_path / "file")
    assert is_folder(tmp_path) and is_there(tmp_path) and not is_file(tmp_path)


def test_folders_are_searched_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/tp1", "a/tp2", "b/c/tp1", "b/other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "dense.csv").write_text("")
    (tmp_path / "b" / "round").symlink_to(tmp_path)
    found = files_below(tmp_path, "tp*/dense.csv", "the folder of a profile")
    assert [str(path.parent.relative_to(tmp_path)) for path in found] == ["a/tp1", "a/tp2", "b/c/tp1"]
    monkeypatch.setattr(finding, "MOST_FOLDERS", 3)
    with pytest.raises(UserError, match="more than 3 folders in it; give the folder of a profile"):
        files_below(tmp_path, "tp*/dense.csv", "the folder of a profile")
