"""Nothing outside the folder of the page is named, read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.ui.folder import UiFolder

TRICKS = ["..", "../secret.yaml", "/etc/passwd", "a/b.yaml", "a\\b.yaml", "..\\x.yaml", "", ".hidden.yaml", "x\0.yaml"]
TRICKS += ["%2e%2e%2fsecret.yaml", "x" * 500 + ".yaml", "line\nbreak.yaml", "link.yaml", "linked"]


@pytest.fixture
def folder(tmp_path: Path) -> UiFolder:
    """A folder with a link to a file outside, and one to a folder outside among the results."""
    (tmp_path / "secret.yaml").write_text("secret: 1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "summary.json").write_text("{}")
    home = tmp_path / "home"
    (home / "runs" / "real").mkdir(parents=True)
    (home / "chat.yaml").write_text("model: x")
    (home / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (home / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    (home / "runs" / "real" / "summary.json").symlink_to(tmp_path / "secret.yaml")
    return UiFolder(home)


@pytest.mark.parametrize("name", TRICKS)
def test_tricks_with_paths_are_refused(folder: UiFolder, name: str) -> None:
    for named in (folder.scenario, folder.run, lambda each: folder.file_of("real", each)):
        with pytest.raises(UserError):
            named(name)
    if name != "%2e%2e%2fsecret.yaml":  # which is a name like any other, once it has been decoded
        with pytest.raises(UserError):
            folder.new_scenario(name)


def test_links_are_not_listed_or_followed(folder: UiFolder) -> None:
    assert [each.name for each in folder.scenarios()] == ["chat.yaml"]
    assert [each.name for each in folder.runs()] == ["real"]
    with pytest.raises(UserError):
        folder.file_of("real", "summary.json")
    assert folder.scenario("chat.yaml") == folder.root / "chat.yaml"


def test_a_folder_of_results_that_is_a_link_has_none(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "runs").symlink_to(tmp_path / "elsewhere")
    folder = UiFolder(tmp_path / "home")
    assert folder.runs() == []
    with pytest.raises(UserError):
        folder.run("run")


def test_a_run_gets_the_next_number_that_nobody_has(folder: UiFolder) -> None:
    (folder.root / "runs" / "chat-3").mkdir()
    (folder.root / "runs" / "chat-x").mkdir()
    assert folder.next_run("chat", set()) == "chat-4"
    assert folder.next_run("chat", {"chat-4"}) == "chat-5"


def test_files_outside_that_a_scenario_names_are_found(folder: UiFolder) -> None:
    written = {"model": "../secret.yaml", "trace": ["/etc/passwd", "chat.yaml"], "cost": {"profile": "nothing-there"}}
    found = dict(folder.named_outside(written, folder.root))
    assert found == {("model",): "../secret.yaml", ("trace", 0): "/etc/passwd"}
