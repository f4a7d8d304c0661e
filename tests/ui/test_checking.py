"""The editor's messages are those of the command line, at the line that they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard import load_scenario, set_up
from steelyard.errors import UserError
from steelyard.ui.checking import check_text, refused
from steelyard.ui.folder import UiFolder
from support.page import CHAT, POSTTRAIN, SEARCH


def test_kinds_are_told_by_their_keys(tmp_path: Path) -> None:
    import json

    folder = UiFolder(tmp_path)
    for text, kind in ((CHAT, "serving"), (json.dumps(SEARCH), "search"), (json.dumps(POSTTRAIN), "posttrain")):
        found = check_text(text, "x.yaml", folder)
        assert (found.kind, found.problems) == (kind, ())
    assert check_text("task: calculator\n", "x.yaml", folder).kind == "learning"


@pytest.mark.parametrize(
    ("change", "line", "key"),
    [
        (("replicas: 4", "replicas: -4"), 2, "fleet.replicas"),
        (("requests: 300", "request: 300"), 5, "workload.request"),
        (("gpu: h100, ", ""), 2, "fleet.gpu"),
        (("rate: 20", "rate: fast"), 4, "workload.arrivals.rate"),
        (("seed: 1", "seed: [1"), 10, ""),
        (("model: llama-3.1-8b", "model: llama-3.1-8b\nmodel: x"), 2, ""),
    ],
)
def test_a_mistake_is_at_its_line_in_the_words_of_the_command_line(
    tmp_path: Path, change: tuple[str, str], line: int, key: str
) -> None:
    text = CHAT.replace(*change)
    assert text != CHAT
    problem = check_text(text, "chat.yaml", UiFolder(tmp_path)).problems[0]
    (tmp_path / "chat.yaml").write_text(text)
    with pytest.raises(UserError) as told:
        load_scenario(tmp_path / "chat.yaml")
    assert str(told.value.args[0]) == f"{tmp_path / 'chat.yaml'}:{problem.line}: {problem.message}"
    assert (problem.line, problem.key) == (line, key)


@pytest.mark.parametrize("text", ["", "- 1", "3", "a: &x [*x]", "\t", "!!python/object:os.system {}"])
def test_what_is_no_scenario_is_said(tmp_path: Path, text: str) -> None:
    found = check_text(text, "x.yaml", UiFolder(tmp_path))
    assert len(found.problems) == 1 and found.scenario is None
    with pytest.raises(UserError, match="line 1"):
        _ = found.whole


def test_a_scenario_may_not_name_files_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "home").mkdir()
    text = CHAT.replace("llama-3.1-8b", "../secret.json")
    (problem,) = check_text(text, "x.yaml", UiFolder(tmp_path / "home")).problems
    assert problem.line == 1 and "lies outside the folder" in problem.message


def test_a_model_that_does_not_fit_is_told_at_its_key(tmp_path: Path) -> None:
    text = CHAT.replace("gpu: h100", "gpu: h101")
    found = check_text(text, "x.yaml", UiFolder(tmp_path))
    with pytest.raises(UserError) as told:
        set_up(found.whole)  # type: ignore[arg-type]
    (problem,) = refused(told.value, text, "x.yaml")
    assert (problem.line, problem.key) == (2, "fleet.gpu") and "h101" in problem.message
