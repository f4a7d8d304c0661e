"""Two captures of one engine: what they differ in, and captures that are not of one."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steelyard import UserError
from steelyard.cli import app
from steelyard.validate.repeats import Repeats, compare_repeats
from support.captures import LONE, capture, chat
from support.paths import DATA

CHAT = chat(60, 3, 0.06)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("first") / "own", {"chat": CHAT, "lone": LONE})


def again(first: Path, folder: Path, slower: float = 1.0, **meta: Any) -> Path:
    """The same capture with all its times but those of the client longer, and some settings changed."""
    shutil.copytree(first, folder)
    known = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**known, **meta}))
    for path in folder.glob("*.jsonl.gz"):
        rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        for row in rows:
            for key in ("t_schedule", "t_update"):
                if key in row:
                    row[key] *= slower
            if "tokens" in row:
                row["tokens"] = [second * slower for second in row["tokens"]]
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return folder


def test_a_capture_does_not_differ_from_itself(first: Path) -> None:
    found = compare_repeats(first, first)
    assert {run.names for run in found.runs} == {("lone", "lone"), ("chat", "chat")}
    for run in found.runs:
        assert all(each.relative in (0.0, None) for each in run.figures.values())
        assert set(run.by_request.values()) == {0.0} and run.one_pace
    assert not found.unmatched


def test_a_slower_engine_is_as_much_slower_in_every_figure(first: Path, tmp_path: Path) -> None:
    found = compare_repeats(first, again(first, tmp_path / "again", 1.1))
    for run in found.runs:
        for name in ("ttft.mean", "ttft.p99", "tpot.mean", "e2e.mean", "e2e.p99", "decode_steps", "prompt_steps"):
            if run.figures[name].first is not None:
                assert run.figures[name].relative == pytest.approx(0.1, abs=0.001), (run.name, name)
                assert run.floor(name) == pytest.approx(0.1, abs=0.001)
        assert run.by_request["ttft"] == pytest.approx(0.1 / 1.05, abs=1e-6)
        throughput = run.figures["throughput"].relative
        assert throughput is not None and -0.1 < throughput < 0
    steps = {name: each for run in found.runs for name, each in run.figures.items() if name.endswith("_steps")}
    assert steps["decode_steps"].first and steps["prompt_steps"].first


def test_requests_are_matched_whatever_order_they_ended_in(first: Path, tmp_path: Path) -> None:
    """A recorder has no workload file, and writes a request when it ends."""
    both = []
    for name, backwards in (("one", False), ("other", True)):
        folder = again(first, tmp_path / name)
        for kind in ("lone", "chat"):
            asked = json.loads((folder / f"{kind}.workload.json").read_text())["requests"]
            (folder / f"{kind}.workload.json").unlink()
            path = folder / f"{kind}.requests.jsonl.gz"
            rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
            rows = [{**row, "prompt": each["prompt"]} for row, each in zip(rows, asked, strict=True)]
            rows = rows[::-1] if backwards else rows
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
        both.append(folder)
    found = compare_repeats(both[0], both[1])
    assert len(found.runs) == 2 and all(set(run.by_request.values()) == {0.0} for run in found.runs)


@pytest.mark.parametrize(
    ("meta", "complaint"),
    [
        ({"max_num_seqs": 64}, "max_num_seqs is 64 there, not 128"),
        ({"gpu": "h100"}, "it ran on h100, not on h200"),
        ({"kw": {"quantization": "fp8"}}, "kw.quantization is 'fp8' there, not 'none'"),
        ({"vllm": "0.27.0"}, "vllm is '0.27.0' there, not '0.26.0'"),
    ],
)
def test_another_engine_is_refused(first: Path, tmp_path: Path, meta: dict[str, Any], complaint: str) -> None:
    one = again(first, tmp_path / "one", vllm="0.26.0", kw={"quantization": "none"})
    other = again(first, tmp_path / "other", **{"vllm": "0.26.0", **meta})
    with pytest.raises(UserError, match=f"other: not the engine of .*one: .*{complaint}; give two captures of one"):
        compare_repeats(one, other)


def test_another_workload_is_refused(first: Path, tmp_path: Path) -> None:
    other = capture(tmp_path / "other", {"chat": chat(60, 4, 0.06)})
    with pytest.raises(UserError, match="other: no run has the requests of one of"):
        compare_repeats(first, other)
    slow = [{**asked, "at": 2 * asked["at"]} for asked in CHAT]
    with pytest.raises(UserError, match="over as long a time"):
        compare_repeats(first, capture(tmp_path / "slow", {"chat": slow}))


def test_what_is_known_of_the_hosts_is_said(first: Path, tmp_path: Path) -> None:
    hosts = [{"name": "a1", "cpu": "EPYC"}, {"name": "b2", "cpu": "Xeon"}]
    one, same, other = (again(first, tmp_path / f"c{i}", host=hosts[i // 2]) for i in range(3))
    assert compare_repeats(first, one).hosts == "whether on one host is not recorded"
    assert compare_repeats(one, same).hosts == "on one host"
    assert compare_repeats(one, other).hosts == "on two hosts ('EPYC' and 'Xeon')"


def test_real_captures_of_two_hosts() -> None:
    """The same 48 lone prompts, on machines that `docs/calibration.md` tells apart."""
    recorded = DATA / "h200-recorded"
    found: Repeats = compare_repeats(recorded / "llama-3.1-8b", recorded / "llama-3.1-8b-short")
    (lone,) = found.runs
    assert lone.name == "lone" and found.unmatched == ("batches", "poisson", "burst")
    assert not lone.one_pace, "the clients waited for answers"
    assert 0.1 < lone.by_request["ttft"] < 0.2 and lone.floor("decode_steps") == pytest.approx(0.012, abs=0.002)


def test_the_command_prints_errors_beside_the_noise(first: Path, tmp_path: Path) -> None:
    other = again(first, tmp_path / "again", 1.1)
    ran = CliRunner().invoke(app, ["validate", str(first), "--against", str(other)])
    assert ran.exit_code == 0 and "+10.0 %" in ran.output and "simulated" in ran.output
    ran = CliRunner().invoke(app, ["validate", str(first), "--against", str(other), "--json"])
    figures = json.loads(ran.output)
    assert figures["against"]["runs"] and figures["workloads"]
