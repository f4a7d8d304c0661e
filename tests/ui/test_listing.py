"""Past results: what the list says of each, also of those that cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from steelyard import load_scenario, simulate
from steelyard.ui import listing
from steelyard.ui.checking import ScenarioList
from steelyard.ui.folder import UiFolder
from steelyard.ui.listing import Listing
from support.page import CHAT, POSTTRAIN, SEARCH


@pytest.fixture
def folder(tmp_path: Path) -> UiFolder:
    (tmp_path / "chat.yaml").write_text(CHAT)
    simulate(load_scenario(tmp_path / "chat.yaml", ["workload.requests=20"])).save(tmp_path / "runs" / "chat-1")
    return UiFolder(tmp_path)


def test_a_row_has_the_figures_of_the_summary(folder: UiFolder) -> None:
    (row,) = Listing(folder).rows()
    summary = json.loads((folder.root / "runs" / "chat-1" / "summary.json").read_text())
    assert (row["name"], row["kind"], row["met"]) == ("chat-1", "serving", True)
    assert row["ttft_p95"] == summary["ttft"]["p95"] and row["gpus"] == 4
    assert row["tokens_per_s"] == summary["throughput"]["output_tokens_per_s"]


def test_what_cannot_be_read_is_listed_with_the_reason_and_what_is_no_result_is_not(folder: UiFolder) -> None:
    for name, text in (("broken", "{"), ("strange", '{"ttft": 1}'), ("list", "[]"), ("deep", "[" * 10_000)):
        (folder.root / "runs" / name).mkdir()
        (folder.root / "runs" / name / "summary.json").write_text(text)
    (folder.root / "runs" / "empty").mkdir()
    rows = {row["name"]: row for row in Listing(folder).rows()}
    assert set(rows) == {"chat-1", "broken", "strange", "list", "deep"}
    assert all(
        row["kind"] == "unknown" and "cannot be read" in row["problem"]
        for row in rows.values()
        if row["name"] != "chat-1"
    )


def test_a_folder_is_read_again_only_where_it_has_changed(folder: UiFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    row_of = listing.row_of

    def counted(path: Path) -> listing.Row:
        read.append(path)
        return row_of(path)

    monkeypatch.setattr(listing, "row_of", counted)
    found = Listing(folder)
    assert found.rows() == found.rows() and len(read) == 1
    summary = folder.root / "runs" / "chat-1" / "summary.json"
    summary.write_text(summary.read_text().replace('"seed": 1', '"seed": 2'))
    os.utime(summary, (1, 1))
    found.rows()
    assert len(read) == 2


def test_scenarios_are_listed_with_their_kinds(folder: UiFolder) -> None:
    (folder.root / "s.json").write_text(json.dumps(SEARCH))
    (folder.root / "p.json").write_text(json.dumps(POSTTRAIN))
    (folder.root / "wrong.yaml").write_text("a: [")
    (folder.root / "notes.txt").write_text("no scenario")
    rows = [(name, kind) for name, kind, _ in ScenarioList(folder).rows()]
    assert rows == [("chat.yaml", "serving"), ("p.json", "posttrain"), ("s.json", "search"), ("wrong.yaml", None)]
