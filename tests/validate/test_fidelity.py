"""The fidelity page: every run at hand is on it, with the figures that validation gives."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard.cli import main
from steelyard.report.validation import signed_percent
from steelyard.validate.compare import validate
from steelyard.validate.repeats import compare_repeats
from support.captures import LONE, SLOW, capture, chat


def test_the_page_has_every_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = capture(tmp_path / "captures" / "own", {"chat": chat(120, 3, 0.06), "lone": LONE})
    meta = json.loads((folder / "meta.json").read_text())
    meta["kw"]["swap_space"] = "4"
    (folder / "meta.json").write_text(json.dumps(meta))
    out = tmp_path / "fidelity.md"
    monkeypatch.setattr(sys, "argv", ["steelyard", "fidelity", str(tmp_path / "captures"), "--out", str(out)])
    monkeypatch.setattr("steelyard.validate.survey.sample_file", lambda: None)
    monkeypatch.setattr("steelyard.validate.coverage.transfer_errors", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    page = out.read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| analytic |")]
    assert row.startswith("| analytic | – |")  # no run, but operators
    assert page.count("| own/chat |") >= 2 and page.count("| own/lone |") >= 2
    found = validate(folder, given_cache=True)
    (line,) = [row for row in page.splitlines() if row.startswith("| own/chat |")][:1]
    for each in found.workloads:
        if each.name == "chat":
            assert signed_percent(each.latency["tpot"]["mean"].error) in line
    inside, of = found.coverage
    assert f"{inside} of {of} figures" in page
    assert "\n\n- own: kw.swap_space=4 is not simulated\n\n" in page, "once for all runs"
    assert "| h200 | gemm | all |" in page
    capsys.readouterr()


def test_the_page_has_the_noise_floor_where_captures_repeat_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = {"lone": LONE[:8]}
    for name, terms in (("one", SLOW), ("other", replace(SLOW, step=2 * SLOW.step, eager=1.2 * SLOW.eager))):
        capture(tmp_path / "captures" / name, work, terms)
    out = tmp_path / "fidelity.md"
    monkeypatch.setattr(sys, "argv", ["steelyard", "fidelity", str(tmp_path / "captures"), "--out", str(out)])
    monkeypatch.setattr("steelyard.validate.survey.sample_file", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    (row,) = [line for line in out.read_text().splitlines() if line.startswith("| one/lone | other/lone |")]
    repeats = compare_repeats(tmp_path / "captures" / "one", tmp_path / "captures" / "other")
    floor = repeats.runs[0].floor("ttft.mean")
    assert floor and f"| {floor * 100:.1f} % (" in row and row.endswith("| whether on one host is not recorded |")
    capsys.readouterr()


def test_a_folder_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["steelyard", "fidelity", str(tmp_path / "none"), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "no such folder" in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_without_captures_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if another folder has some, and if something in it looks like half of one."""
    out = tmp_path / "page.md"
    capture(tmp_path / "own", {"lone": LONE[:8]})
    half = tmp_path / "half"
    half.mkdir()
    (half / "meta.json").write_text("{}")
    for folders in (["half"], ["own", "half"]):
        asked = ["steelyard", "fidelity", *(str(tmp_path / each) for each in folders), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", asked)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2 and not out.exists()
        said = capsys.readouterr().err
        assert said.startswith(f"error: {half}: no capture in it (a folder with meta.json, config.json")
        assert said.count("\n") == 1


def test_a_bench_need_not_lie_below_three_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "requests.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["steelyard", "fidelity", ".", "--out", "page.md"])
    monkeypatch.setattr("steelyard.validate.survey.sample_file", lambda: None)
    monkeypatch.setattr("steelyard.validate.survey.gpu_names", list)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 0 and "left out: vllm/meta.json: no such file" in said
