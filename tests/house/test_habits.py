"""Files that a project's visitors and tools look for are there, can be read, and name things that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from support.paths import ROOT

FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", [each for each in FORMS if each.stem != "config"], ids=lambda path: path.stem)
def test_an_issue_form_has_questions(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert ids and len(ids) == len(set(ids))
    assert all(part["attributes"].get("label") for part in form["body"] if part["type"] != "markdown")


def test_hooks_run_what_is_installed() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repo["repo"] == "local", "hooks from elsewhere would have other versions than constraints.txt"
    for hook in repo["hooks"]:
        program, *words = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        if words[:1] == ["-m"]:
            path = ROOT / words[1].replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_the_devcontainer_sets_up_what_make_does() -> None:
    written = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    assert written["postCreateCommand"].split()[0] == "make"
    assert re.search(r"python:3\.1[123]", written["image"])


def test_the_citation_has_what_is_needed() -> None:
    written = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "license"} <= set(written)
    assert written["license"] == "Apache-2.0"


def test_the_changelog_begins_with_what_is_not_released() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", each) for each in sections[1:])


@pytest.mark.parametrize("name", ["CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "README.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert re.match(r"https?://", link) or (ROOT / link).exists(), link
