"""The line that says what made a page."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from steelyard.report.made import commit_of, made_by

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    package = tmp_path / "src" / "steelyard"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "a")
    return package


def test_a_checkout_has_its_commit_and_says_if_it_was_changed(package: Path) -> None:
    commit = git(package, "rev-parse", "HEAD")[:12]
    assert commit_of(package) == commit
    (package / "a.py").write_text("a = 2\n")
    assert commit_of(package) == f"{commit} with changes"


def test_a_package_installed_inside_another_checkout_has_none(package: Path) -> None:
    inside = package.parents[1] / "venv" / "steelyard"
    inside.mkdir(parents=True)
    assert commit_of(inside) == ""


def test_without_git_the_version_and_the_day_remain(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit_of(package) == ""
    assert made_by().startswith("Steelyard ") and "commit" not in made_by()
