"""Everything that README and docs show works: commands are run, code is executed, scenarios are checked.

Full runs would take hours, so commands get `SMALLER` options, and words that stand for a reader's own files are
replaced by `STAND_INS`. What cannot be run here is in `NOT_RUN`, with the reason: nothing else is left out.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from steelyard import load_scenario, posttrain_from_dict, scenario_from_dict, simulate
from steelyard.balance.log import Journal
from steelyard.cli import COMMANDS, app
from steelyard.cost import HostTerms
from steelyard.posttrain.run import posttrain
from steelyard.scenario.checking import checked
from steelyard.scenario.search import SearchScenario
from support.snippets import PAGES, ROOT, Block, Command, blocks, commands

GIVEN = "../shared/data"  # measured elsewhere, and not part of the repository
NOT_RUN = {
    "steelyard --install-completion": "changes the shell of whoever runs it",
    "steelyard validate --silicon": "needs steelyard[silicon]",
    "steelyard profile points.jsonl": "needs a GPU",
    "steelyard profile OUT": "needs a GPU",
    "steelyard gateway": "serves until it is interrupted; tests/live does",
    "steelyard control": "starts a cluster of processes; tests/live does",
    "steelyard ui": "serves until it is interrupted; tests/ui does",
    "steelyard emulate": "serves until it is interrupted; tests/emulate does",
    f"steelyard advise {GIVEN}": "needs data that is not in the repository",
    "steelyard compare examples/posttrain/search-48.yaml examples/posttrain/math-48.yaml": "takes hours",
    f"steelyard estimator-eval {GIVEN}": "needs data that is not in the repository",
    f"steelyard fidelity {GIVEN}": "needs data that is not in the repository",
    "python -m timeit": "measures time",
}
NOT_EXECUTED = {
    "estimators.md": "evaluates estimators on data that is not in the repository",
}
SMALL_BATCH = ["--set", "trajectories={preset: search, prompts: 8, group: 4}", "--set", "steps=2"]
OURS_ALONE = "--steps 1 --no-rivals --modes asynchronous --routers sticky --estimators suffix --planners given"
SMALLER = {
    "simulate": ["--set", "workload.requests=20"],
    "advise": ["--policies", "none,reactive"],
    "capacity": ["--set", "workload.requests=30"],
    "search": ["--set", "search.seconds=1", "--set", "search.requests=30", "--no-sure"],
    "sweep": ["--set", "workload.requests=20"],
    "posttrain": SMALL_BATCH,
    "plan": [*SMALL_BATCH, "--set", "planner=search"],
    "compare": ["--seeds", "2"],
    "compare post-training": f"{OURS_ALONE} --tails none --pools none".split(),
}
STAND_INS = {
    "CAPTURE_DIR": "capture",
    "OTHER_CAPTURE": "other",
    "FOLDER": "other",
    **{f"tests/data/h200-recorded/{name}": "capture" for name in ("qwen3-30b-a3b", "qwen3-8b")},
    "tests/data/h200-recorded/moe-64-experts": "other",
    "TRACE": "trace.csv",
    "SCENARIO": "tiny.yaml",
    "SCENARIO.yaml": "tiny.yaml",
    "GOLDEN.jsonl.gz": "tests/data/vllm-0.32-decisions.jsonl.gz",
    "TRAJECTORIES.jsonl": "trajectories.jsonl",
    "DIR/NAME.jsonl": "trajectories.jsonl",
    "planner=...": "planner=search",
    "runs/NAME/events.jsonl": "events.jsonl",
    "EVENTS.jsonl": "events.jsonl",
}
FILES = {"parity": "tests/data/vllm-0.32-decisions.jsonl.gz", "estimator-eval": "trajectories.jsonl"}  # what FILE means
TINY: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "rollout": [{"tp": 1, "replicas": 2}, {"tp": 2, "replicas": 1}],
    "training": {"dp": 4},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader might be: the repository's examples and test data, and files of their own."""
    here = tmp_path_factory.mktemp("reader")
    for name in ("examples", "tests", "bench", "docs"):
        (here / name).symlink_to(ROOT / name)
    recorded = ROOT / "tests/data/h200-recorded/llama-3.1-8b-short"
    shutil.copytree(recorded, here / "capture", ignore=shutil.ignore_patterns("poisson.*"))
    shutil.copytree(recorded, here / "other", ignore=shutil.ignore_patterns("poisson.*", "burst.*"))
    (here / "scenario.yaml").write_text(_smaller_readme_scenario())
    (here / "other.yaml").write_text(_smaller_readme_scenario().replace("tp: 1", "tp: 2"))
    for name in ("round-robin", "sticky"):
        simulate(load_scenario(here / "scenario.yaml", [f"fleet.router={name}"])).save(here / "runs" / name)
    (here / "tiny.yaml").write_text(json.dumps(TINY))
    stamps = (f"2024-05-10 10:{i // 60:02}:{i % 60:02}.5,{100 + 7 * i},{10 + i % 90}\n" for i in range(300))
    (here / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(stamps))
    with (here / "events.jsonl").open("w", encoding="utf-8") as file:
        posttrain(posttrain_from_dict({**TINY, "steps": 1}), journal=Journal(file))
    for name in ("host.json", "own.json"):
        (here / name).write_text(json.dumps({"terms": asdict(HostTerms())}))
    turn = {"generated": 79, "tool": "search", "latency": 0.8, "outcome": "ok", "returned": 640}
    lines = [
        {"id": f"a{i}", "prompt": f"p{i}", "task": f"t{i % 7}", "prompt_tokens": 900, "turns": [turn] * (1 + i % 5)}
        for i in range(40)
    ]
    (here / "trajectories.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return here


def _smaller_readme_scenario() -> str:
    (shown,) = [block for block in blocks("yaml") if block.page.name == "README.md"]
    return re.sub(r"requests: \d+", "requests: 50", shown.text)


def _reason(command: Command) -> str | None:
    line = " ".join(command.words)
    return next((reason for start, reason in NOT_RUN.items() if line.startswith(start)), None)


ALL = commands()
OURS = [each for each in ALL if each.words[0] == "steelyard" and _reason(each) is None]


def _mentioned_only(words: tuple[str, ...]) -> bool:
    """A command that the text talks about, without what it needs to run: `steelyard calibrate`, `posttrain --log`."""
    needs_none = ("schema", "models", "gpus", "--help")
    return words[1] not in needs_none and all(word.startswith("-") for word in words[2:])


@pytest.mark.parametrize("command", [each for each in OURS if not _mentioned_only(each.words)], ids=str)
def test_a_command_runs(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *words = command.words[1:]
    stand_ins = {**STAND_INS, "FILE": FILES.get(name, "out.json")}
    words = [stand_ins.get(word.removesuffix("...") if word[0].isupper() else word, word) for word in words]
    if name in ("simulate", "posttrain") and "--out" not in words:
        words += ["--out", "runs/here"]
    words += ["--overwrite"] if name in ("simulate", "posttrain") else []
    monkeypatch.chdir(folder)
    after = name == "compare" and any("posttrain" in word or word == "tiny.yaml" for word in words)
    smaller = SMALLER.get("compare post-training" if after else name, [])
    ran = CliRunner().invoke(app, [name, *words, *smaller], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert ran.output


@pytest.mark.parametrize("command", [each for each in OURS if _mentioned_only(each.words)], ids=str)
def test_a_command_that_is_mentioned_exists(command: Command) -> None:
    name, *options = command.words[1:]
    assert name in COMMANDS
    shown = CliRunner().invoke(app, [name, "--help"]).output
    assert all(option in shown for option in options)


@pytest.mark.parametrize("command", [each for each in ALL if each.words[0] == "make"], ids=str)
def test_a_target_of_make_exists(command: Command) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(command.words[1:]) <= set(targets)


@pytest.mark.parametrize(
    "command", [each for each in ALL if each.words[0] == "python" and _reason(each) is None], ids=str
)
def test_a_module_that_is_run_exists(command: Command) -> None:
    """Benches, studies and tools take minutes, and have tests of their own."""
    found = find_spec(command.words[2])
    assert found is not None
    assert found.submodule_search_locations is None or find_spec(f"{command.words[2]}.__main__") is not None


def test_nothing_is_left_out_without_need() -> None:
    used = {_reason(each) for each in ALL}
    assert set(NOT_RUN.values()) <= used
    assert len([each for each in ALL if _reason(each)]) == 47
    assert set(NOT_EXECUTED) <= {block.page.name for block in blocks("python")}
    languages = set(re.findall(r"^```(\w+)$", "\n".join(page.read_text() for page in PAGES), re.MULTILINE))
    assert languages <= {"python", "yaml", "json", "text", "sh"}, "a block in another language would not be looked at"


def _by_page(*languages: str) -> list[list[Block]]:
    pages: dict[str, list[Block]] = {}
    for block in blocks(*languages):
        pages.setdefault(block.page.name, []).append(block)
    return list(pages.values())


EXECUTED = [page for page in _by_page("python") if page[0].page.name not in NOT_EXECUTED]


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: str(page[0]))
def test_code_runs(page: list[Block], folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Blocks of one page follow each other: what one defines, the next may use."""
    monkeypatch.chdir(folder)
    script = tmp_path / f"{page[0].page.stem}.py"
    script.write_text("\n".join(block.text for block in page))
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    runpy.run_path(str(script))


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_a_scenario_is_valid(block: Block) -> None:
    shown: dict[str, Any] = yaml.safe_load(block.text)
    workload = {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 10, "prompt": 100, "output": 10}
    if block.page.name in ("posttrain.md", "trajectories.md"):
        whole = shown if "gpu" in shown else {**TINY, "trajectories": {"preset": "search", **shown}}
        posttrain_from_dict(whole)
    elif "search" in shown:
        checked(SearchScenario, shown, lambda _: block.page.name)
    else:
        scenario_from_dict({"model": "llama-3.1-8b", "fleet": {"gpu": "h100"}, "workload": workload, **shown})


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_can_be_read(block: Block) -> None:
    try:
        json.loads(block.text)
    except json.JSONDecodeError:
        assert all(json.loads(line) for line in block.text.splitlines())
