"""The command line as a user meets it: what it prints, what it writes, and what it says when something is wrong."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from steelyard.cli import main
from steelyard.hardware import gpu_names
from steelyard.model import model_names
from steelyard.validate.parity import replay

PROGRAM = str(Path(sys.executable).parent / "steelyard")
FILES = ["report.html", "requests.parquet", "scenario.json", "steps.parquet", "summary.json"]
SCENARIO: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h100"},
    "workload": {"arrivals": {"kind": "poisson", "rate": 5}, "requests": 20, "prompt": 100, "output": 10},
}
SLOW: dict[str, Any] = {
    **SCENARIO,
    "engine": {"num_speculative_tokens": 2, "acceptance": [1, 0]},
    "workload": {"arrivals": {"kind": "burst"}, "requests": 20_000, "prompt": 100, "output": 2000},
}


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one good scenario in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(yaml.safe_dump(SCENARIO))
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program's own entry point, in this process."""

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["steelyard", *arguments])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return Outcome(int(code), printed.out, printed.err)

    return call


def program(folder: Path, *arguments: str, **env: str) -> Outcome:
    """The installed program, in a process of its own."""
    done = subprocess.run(
        [PROGRAM, *arguments], cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that lies under a folder, hidden things too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


# -- simulate -----------------------------------------------------------------------------------------------------


def test_simulate_writes_the_folder_and_prints(run: Run, folder: Path) -> None:
    done = run("simulate", "good.yaml", "--out", "here/result")
    assert done.code == 0 and done.err == ""
    assert sorted(path.name for path in (folder / "here" / "result").iterdir()) == FILES
    assert sorted(path.name for path in folder.iterdir()) == ["good.yaml", "here"]
    assert "here/result" in done.out and "TTFT" in done.out and "llama-3.1-8b" in done.out
    summary = json.loads((folder / "here" / "result" / "summary.json").read_text())
    assert summary["requests"] == 20 and summary["outcomes"] == {"finished": 20, "rejected": 0, "aborted": 0}
    assert summary["name"] == "good"
    assert pq.read_table(folder / "here/result/requests.parquet").num_rows == 20
    assert pq.read_table(folder / "here/result/steps.parquet").num_rows == summary["steps"]


def test_json_is_the_summary_file_and_nothing_else(folder: Path) -> None:
    done = program(folder, "simulate", "good.yaml", "--out", "result", "--json")
    assert done.code == 0 and done.err == ""
    assert done.out == (folder / "result" / "summary.json").read_text()
    assert {"steps", "requests", "ttft", "tpot", "e2e"} <= set(json.loads(done.out))


def test_the_program_does_what_the_entry_point_does(run: Run, folder: Path) -> None:
    run("simulate", "good.yaml", "--out", "inside", "--trace")
    done = program(folder, "simulate", "good.yaml", "--out", "outside", "--trace", PYTHONHASHSEED="7")
    assert done.code == 0
    assert tree(folder / "inside") == tree(folder / "outside")
    assert sorted(tree(folder / "inside")) == sorted([*FILES, "trace.json.gz"])


def test_set_overrides_keys(run: Run) -> None:
    sets = ["engine.max_num_seqs=2", "workload.requests=7", "seed=5", "name=other"]
    done = run("simulate", "good.yaml", "--json", "--out", "x", *(part for each in sets for part in ("--set", each)))
    summary = json.loads(done.out)
    assert (summary["requests"], summary["seed"], summary["name"]) == (7, 5, "other")


def test_a_json_scenario_is_as_good(run: Run, folder: Path) -> None:
    (folder / "same.json").write_text(json.dumps({**SCENARIO, "name": "good"}))
    one = run("simulate", "good.yaml", "--json", "--out", "one").out
    assert one and run("simulate", "same.json", "--json", "--out", "two").out == one


def test_runs_are_numbered(run: Run, folder: Path) -> None:
    for _ in range(2):
        assert run("simulate", "good.yaml").code == 0
    (folder / "runs" / "good-7").mkdir()
    (folder / "runs" / "good-x").mkdir()
    last = run("simulate", "good.yaml")
    assert "runs/good-8" in last.out
    assert sorted(path.name for path in (folder / "runs").iterdir()) == [
        "good-1",
        "good-2",
        "good-7",
        "good-8",
        "good-x",
    ]


def test_overwrite_replaces_a_result_and_spares_the_rest(run: Run, folder: Path) -> None:
    run("simulate", "good.yaml", "--out", "result", "--trace")
    (folder / "result" / "notes.txt").write_text("mine")
    done = run("simulate", "good.yaml", "--out", "result", "--overwrite", "--set", "seed=9")
    assert done.code == 0
    assert sorted(path.name for path in (folder / "result").iterdir()) == sorted([*FILES, "notes.txt"])
    assert json.loads((folder / "result" / "summary.json").read_text())["seed"] == 9


def test_an_empty_folder_may_be_filled(run: Run, folder: Path) -> None:
    (folder / "result").mkdir()
    assert run("simulate", "good.yaml", "--out", "result").code == 0
    assert sorted(path.name for path in (folder / "result").iterdir()) == FILES


# -- the catalogs and the schema ----------------------------------------------------------------------------------


def test_schema_is_json_schema_for_scenarios(run: Run) -> None:
    schema = json.loads(run("schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    known = {"model", "fleet", "engine", "workload", "dynamics", "slo", "seed", "name", "cost", "steady"}
    assert known == set(schema["properties"])
    assert set(schema["required"]) == {"model", "fleet", "workload"}
    text = json.dumps(schema)
    for reference in re.findall(r'"#/\$defs/([^"]+)"', text):
        assert reference in schema["$defs"]


def test_schema_of_post_training_on_demand(run: Run) -> None:
    schema = json.loads(run("schema", "--posttrain").out)
    assert schema["title"] == "Steelyard post-training scenario"
    assert {"trajectories", "rollout", "training", "mode"} <= set(schema["properties"])


def test_models_and_gpus_list_the_catalogs(run: Run) -> None:
    models, gpus = run("models"), run("gpus")
    assert models.code == gpus.code == 0
    assert all(re.search(rf"^{re.escape(name)}\s", models.out, re.MULTILINE) for name in model_names())
    assert all(re.search(rf"^{re.escape(name)}\s", gpus.out, re.MULTILINE) for name in gpu_names())


@pytest.mark.parametrize("command", [["gpus"], ["models"], ["schema"], ["--help"]])
def test_plain_terminals_can_show_it(folder: Path, command: list[str]) -> None:
    done = program(folder, *command, PYTHONIOENCODING="ascii", TERM="dumb")
    assert done.code == 0 and done.err == ""


def test_names_beyond_ascii_survive_a_plain_terminal(folder: Path) -> None:
    done = program(
        folder, "simulate", "good.yaml", "--set", "name=büro", "--out", "ö", "--json", PYTHONIOENCODING="ascii"
    )
    assert done.code == 0 and "Traceback" not in done.err
    assert json.loads(done.out)["name"] == "büro"
    done = program(folder, "simulate", "good.yaml", "--out", "ü", PYTHONIOENCODING="ascii")
    assert done.code == 0 and "Traceback" not in done.err


# -- mistakes -----------------------------------------------------------------------------------------------------

Prepare = Callable[[Path], None]


def nothing(folder: Path) -> None:
    """The good scenario is enough."""


def text(name: str, content: str) -> Prepare:
    def prepare(folder: Path) -> None:
        (folder / name).write_text(content)

    return prepare


def trace(content: str | None) -> Prepare:
    def prepare(folder: Path) -> None:
        spec = {**SCENARIO, "workload": {"trace": {"file": "asked.jsonl"}}}
        (folder / "good.yaml").write_text(yaml.safe_dump(spec))
        if content is not None:
            (folder / "asked.jsonl").write_text(content)

    return prepare


LINE = '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'


def setting(*pairs: str) -> list[str]:
    return [part for pair in pairs for part in ("--set", pair)]


MISTAKES: dict[str, tuple[Prepare, list[str], list[str]]] = {
    # name: (what to prepare, arguments after `simulate good.yaml --out result`, what the message must name)
    "unknown key": (
        text("good.yaml", yaml.safe_dump({**SCENARIO, "engine": {"max_num_seq": 4}})),
        [],
        ["good.yaml:", "engine.max_num_seq", "max_num_seqs"],
    ),
    "unknown top key": (
        text("good.yaml", yaml.safe_dump({**SCENARIO, "sedd": 4})),
        [],
        ["good.yaml:", "sedd", "'seed'"],
    ),
    "negative rate": (
        nothing,
        setting("workload.arrivals.rate=-3"),
        ["good.yaml", "workload.arrivals.rate", "-3", "at least 1e-06"],
    ),
    "too large a model": (
        nothing,
        setting("model=llama-3.1-70b"),
        ["llama-3.1-70b", "H100", "GiB", "fleet.tp=4"],
    ),
    "unknown model": (nothing, setting("model=lama-3.1-8b"), ["'lama-3.1-8b'", "'llama-3.1-8b'"]),
    "unknown gpu": (nothing, setting("fleet.gpu=h10"), ["gpu", "'h10'", "'h100'"]),
    "tp that does not divide": (nothing, setting("fleet.tp=3"), ["tp", "3", "32 attention heads", "1, 2, 4, 8"]),
    "tp beyond a node": (nothing, setting("fleet.tp=16"), ["tp", "16", "8"]),
    "tp of nothing": (nothing, setting("fleet.tp=0"), ["fleet.tp", "0", "at least 1"]),
    "bad trace line": (trace(LINE + LINE + '{"timestamp": 1, "input\n'), [], ["asked.jsonl:3"]),
    "trace line without a length": (trace(LINE + '{"timestamp": 1, "hash_ids": [2]}\n'), [], ["asked.jsonl:2"]),
    "missing trace": (trace(None), [], ["asked.jsonl", "no such"]),
    "empty trace": (trace(""), [], ["asked.jsonl", "no requests"]),
    "no requests": (nothing, setting("workload.requests=0"), ["workload.requests", "0", "at least 1"]),
    "no time for requests": (
        nothing,
        setting("workload.requests=null", "workload.duration=1e-9"),
        ["no requests", "duration"],
    ),
    "a file in the way": (text("result", "mine"), [], ["result", "not a folder"]),
    "a file above": (nothing, ["--out", "good.yaml/a/b"], ["good.yaml/a/b", "not a folder"]),
    "no place to write": (nothing, ["--out", "/proc/result"], ["/proc/result", "cannot write"]),
    "YAML that does not parse": (
        text("good.yaml", "model: x\nfleet: {gpu\nworkload: 3\n"),
        [],
        ["good.yaml:3", "YAML"],
    ),
    "a key given twice": (text("good.yaml", "seed: 1\nmodel: x\nseed: 2\n"), [], ["good.yaml:3", "'seed'", "line 1"]),
    "an empty file": (text("good.yaml", ""), [], ["good.yaml", "empty"]),
    "set without a value": (nothing, ["--set", "engine.max_num_seqs"], ["--set engine.max_num_seqs", "KEY.PATH=VALUE"]),
    "set of an unknown key": (nothing, setting("engine.max_seqs=3"), ["engine.max_seqs=3", "max_num_seqs"]),
    "set into a number": (nothing, setting("workload.requests.x=3"), ["workload.requests", "20"]),
    "blocks that do not fit": (
        nothing,
        setting("engine.num_gpu_blocks=10000000"),
        ["engine.num_gpu_blocks", "10000000", "GiB"],
    ),
    "speculation without acceptance": (
        nothing,
        setting("engine.num_speculative_tokens=2"),
        ["engine.acceptance", "missing"],
    ),
}


def assert_one_message(done: Outcome, named: list[str]) -> None:
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert done.err.startswith("error: ") and done.err.count("error:") == 1
    assert done.err.count("\n") == 1, "one line"
    for part in named:
        assert part in done.err, f"{part!r} is not in {done.err!r}"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_and_no_files(run: Run, folder: Path, mistake: str) -> None:
    prepare, arguments, named = MISTAKES[mistake]
    prepare(folder)
    before = tree(folder)
    out = [] if "--out" in arguments else ["--out", "result"]
    assert_one_message(run("simulate", "good.yaml", *out, *arguments), named)
    assert tree(folder) == before


@pytest.mark.parametrize("mistake", ["unknown model", "too large a model", "unknown gpu", "tp that does not divide"])
def test_a_mistake_found_late_still_names_file_and_key(run: Run, mistake: str) -> None:
    """Models and GPUs are looked up after the file was checked; the user need not know that."""
    _, arguments, _ = MISTAKES[mistake]
    done = run("simulate", "good.yaml", "--out", "result", *arguments)
    key = {"unknown gpu": "fleet.gpu", "tp that does not divide": "fleet.tp"}.get(mistake, "model")
    assert "good.yaml" in done.err and key in done.err, done.err


def test_a_missing_scenario_is_named(run: Run, folder: Path) -> None:
    before = tree(folder)
    assert_one_message(run("simulate", "absent.yaml", "--out", "result"), ["absent.yaml", "no such file"])
    assert_one_message(run("simulate", ".", "--out", "result"), ["folder"])
    assert tree(folder) == before


def test_an_earlier_result_is_not_overwritten_unasked(run: Run, folder: Path) -> None:
    run("simulate", "good.yaml", "--out", "result")
    before = tree(folder)
    assert_one_message(run("simulate", "good.yaml", "--out", "result"), ["result", "--overwrite"])
    assert tree(folder) == before


def test_a_mistake_with_overwrite_leaves_the_earlier_result(run: Run, folder: Path) -> None:
    run("simulate", "good.yaml", "--out", "result")
    before = tree(folder)
    done = run("simulate", "good.yaml", "--out", "result", "--overwrite", *setting("model=llama-3.1-405b"))
    assert_one_message(done, ["llama-3.1-405b"])
    assert tree(folder) == before


def test_the_program_exits_with_two(folder: Path) -> None:
    before = tree(folder)
    done = program(folder, "simulate", "good.yaml", "--out", "result", *setting("fleet.gpu=h10"))
    assert_one_message(done, ["'h10'", "'h100'"])
    assert tree(folder) == before


def test_many_mistakes_are_all_told(run: Run) -> None:
    done = run("simulate", "good.yaml", *setting("fleet.tp=0", "workload.requests=-1", "engine.block_size=x"))
    assert done.code == 2 and "Traceback" not in done.err
    assert all(key in done.err for key in ("fleet.tp", "workload.requests", "engine.block_size"))


def test_a_read_only_place_is_found_before_the_run(folder: Path) -> None:
    """The slow scenario would take minutes: the answer comes at once because the folder is tried first."""
    (folder / "slow.yaml").write_text(yaml.safe_dump(SLOW))
    began = time.monotonic()
    done = program(folder, "simulate", "slow.yaml", "--out", "/proc/result")
    assert_one_message(done, ["/proc/result"])
    assert time.monotonic() - began < 20


# -- interruptions ------------------------------------------------------------------------------------------------


# What a shell starts in the background has Ctrl-C ignored, and so have its children: tests may run there.
WITH_INTERRUPTS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` has ignored
"""
SAY_WHEN_RUNNING = (
    WITH_INTERRUPTS
    + """
import sys
import steelyard.cli.simulate as command
from steelyard.cli import main
run = command.simulate
def told(*given, **more):
    print("running", file=sys.stderr, flush=True)
    return run(*given, **more)
command.simulate = told
main()
"""
)


def interrupted(folder: Path, number: int) -> subprocess.CompletedProcess[str]:
    """Send a signal into a run that is under way."""
    (folder / "slow.yaml").write_text(yaml.safe_dump(SLOW))
    process = subprocess.Popen(
        [sys.executable, "-c", SAY_WHEN_RUNNING, "simulate", "slow.yaml", "--out", "there/result"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "running\n"
        time.sleep(1.0)
        assert process.poll() is None, "the run was over too soon"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing_behind(folder: Path, number: int) -> None:
    done = interrupted(folder, number)
    assert done.returncode == 130
    assert done.stdout == "" and done.stderr == ""
    assert sorted(path.name for path in folder.rglob("*")) == ["good.yaml", "slow.yaml"]


REPEAT_FOR_EVER = (
    WITH_INTERRUPTS
    + """
import sys, time
import steelyard.sim.intervals as intervals
from steelyard.cli import main
intervals.simulate = lambda *_, **__: time.sleep(60)
sys.argv[1:] = ["simulate", "good.yaml", "--out", "there", "--intervals", *sys.argv[1:]]
main()
"""
)


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("json_", [False, True])
def test_an_interrupt_of_the_intervals_leaves_the_result(folder: Path, workers: str, json_: bool) -> None:
    command = [sys.executable, "-c", REPEAT_FOR_EVER, "--workers", workers, *(["--json"] if json_ else [])]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        written = folder / "there" / "summary.json"
        for _ in range(300):
            if written.exists():
                break
            time.sleep(0.1)
        time.sleep(0.3)
        assert process.poll() is None, "there was nothing to wait for"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)  # ends when no worker holds the pipe any more
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "interrupted: there holds the result without its intervals\n"
    assert sorted(path.name for path in (folder / "there").iterdir()) == FILES
    assert json.loads(written.read_text())["intervals"] is None
    assert out == written.read_text() if json_ else "TTFT" in out and "% sure" not in out


def test_intervals_are_added_to_what_was_written_without(run: Run, folder: Path) -> None:
    run("simulate", "good.yaml", "--out", "without", "--no-intervals", "--trace")
    said = run("simulate", "good.yaml", "--out", "both", "--trace").out
    assert said.index("result folder: both") < said.index("90% sure")
    without, both = tree(folder / "without"), tree(folder / "both")
    same = {name for name, data in both.items() if without.pop(name) == data}
    assert not without and same == {"requests.parquet", "scenario.json", "steps.parquet", "trace.json.gz"}
    summary = json.loads((folder / "both" / "summary.json").read_text())
    assert summary.pop("intervals")["ttft"]["p95"][0] > 0
    first = json.loads((folder / "without" / "summary.json").read_text())
    assert first.pop("intervals") is None and first == summary
    assert "% sure" in (folder / "both" / "report.html").read_text()


def test_a_killed_run_leaves_no_result(folder: Path) -> None:
    done = interrupted(folder, signal.SIGKILL)
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "there").exists()


KILL_WHILE_WRITING = """
import os, signal, sys
import steelyard.report.folder as folder
from steelyard.cli import main
folder.render_page = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sys.argv[1:] = ["simulate", "good.yaml", "--out", "there/result", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("earlier", [False, True])
def test_killed_while_writing_no_half_result_shows(folder: Path, run: Run, earlier: bool) -> None:
    """The tables are written by then. What is left is hidden, and the next run is not hindered by it."""
    if earlier:
        assert run("simulate", "good.yaml", "--out", "there/result").code == 0
    visible = {name: data for name, data in tree(folder).items() if "/." not in f"/{name}"}
    command = [sys.executable, "-c", KILL_WHILE_WRITING, *(["--overwrite"] if earlier else []), "--set", "seed=8"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert {name: data for name, data in tree(folder).items() if "/." not in f"/{name}"} == visible
    assert run("simulate", "good.yaml", "--out", "there/result", *(["--overwrite"] if earlier else [])).code == 0
    assert [name for name in FILES if (folder / "there" / "result" / name).exists()] == FILES


# -- parity -------------------------------------------------------------------------------------------------------


def golden(name: str, **config: Any) -> dict[str, Any]:
    """A golden scenario as our own engine plays it: identical by construction until somebody tampers with it."""
    scenario: dict[str, Any] = {
        "name": name,
        "config": {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "block_size": 16,
            "enable_prefix_caching": True,
            "enable_chunked_prefill": True,
            "policy": "fcfs",
            "async_scheduling": True,
            "long_prefill_token_threshold": 0,
            "latency": {"base": 0.004, "per_token": 2e-5, "per_kv_token": 3e-8},
            **config,
        },
        "usable_blocks": 15,
        "requests": [
            {
                "id": f"r{i}",
                "arrival_time": 0.01 * i,
                "prompt_len": 30 + 9 * i,
                "output_len": 20 + i,
                "prefix": [["s", 20]],
            }
            for i in range(6)
        ],
        "steps": [],
    }
    seen = replay(scenario, plain=True)

    def ids(values: dict[int, Any]) -> dict[str, Any]:
        return {f"r{i}": value for i, value in values.items()}

    scenario["steps"] = [
        [start, end, ids(tokens), [f"r{i}" for i in preempted], free]
        for start, end, tokens, preempted, free in seen.steps
    ]
    scenario |= {"first_token": ids(seen.first_token), "finish": ids(seen.finish), "cached": ids(seen.cached)}
    assert any(preempted for _, _, _, preempted, _ in seen.steps)
    return scenario


def write_golden(path: Path, scenarios: list[Any]) -> str:
    lines = "".join(json.dumps(each) + "\n" for each in scenarios)
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path.name


@pytest.mark.parametrize("name", ["golden.jsonl", "golden.jsonl.gz"])
@pytest.mark.parametrize("plain", [[], ["--plain"]])
def test_parity_with_itself(run: Run, folder: Path, name: str, plain: list[str]) -> None:
    file = write_golden(folder / name, [golden("one"), golden("two", async_scheduling=False)])
    done = run("parity", file, *plain)
    assert (done.code, done.out, done.err) == (0, "2/2 scenarios identical\n", "")


def tampered(where: str) -> dict[str, Any]:
    scenario = golden("two")
    step = scenario["steps"][3]
    match where:
        case "tokens":
            step[2] = {**step[2], "r0": step[2].get("r0", 0) + 1}
        case "preempted":
            step[3] = [*step[3], "r1"]
        case "free":
            step[4] += 1
        case "start":
            step[0] += 2e-6
        case "end":
            step[1] += 2e-6
        case "missing":
            del scenario["steps"][-1]
        case "extra":
            scenario["steps"].append(scenario["steps"][-1])
        case "first_token" | "finish":
            scenario[where]["r2"] += 2e-6
        case "cached":
            scenario["cached"]["r2"] += 16
        case _:
            raise AssertionError(where)
    return scenario


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("tokens", ["step 3", "scheduled tokens"]),
        ("preempted", ["step 3", "preempted", "r1"]),
        ("free", ["step 3", "free blocks"]),
        ("start", ["step 3", "scheduled at"]),
        ("end", ["step 3", "ends at"]),
        ("missing", ["ours goes on"]),
        ("extra", ["vLLM goes on"]),
        ("first_token", ["r2", "first_token"]),
        ("finish", ["r2", "finish"]),
        ("cached", ["r2", "cached"]),
    ],
)
def test_parity_names_the_first_difference(run: Run, folder: Path, where: str, named: list[str]) -> None:
    file = write_golden(folder / "golden.jsonl", [golden("one"), tampered(where), golden("three")])
    done = run("parity", file)
    assert done.code == 1
    first, last = done.out.splitlines()
    assert last == "2/3 scenarios identical"
    assert first.startswith("two: ") and all(part in first for part in named), first


def test_parity_forgives_what_lies_within_its_tolerance(run: Run, folder: Path) -> None:
    scenario = golden("one")
    for step in scenario["steps"]:
        step[1] += 5e-7
    assert run("parity", write_golden(folder / "golden.jsonl", [scenario])).code == 0


def test_the_program_tells_parity_by_its_exit_code(folder: Path) -> None:
    file = write_golden(folder / "golden.jsonl.gz", [tampered("free")])
    done = program(folder, "parity", file)
    assert done.code == 1 and done.out.endswith("0/1 scenarios identical\n")


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in golden("one").items() if name != key}


def broken_gzip() -> bytes:
    data = bytearray(gzip.compress(json.dumps(golden("one")).encode(), mtime=0))
    middle = len(data) // 2
    data[middle : middle + 8] = b"\xff" * 8
    return bytes(data)


UNREADABLE: dict[str, Callable[[], Any]] = {
    "a list": lambda: [1, 2],
    "a number": lambda: 3,
    "no requests": lambda: {**golden("one"), "requests": []},
    "requests that are none": lambda: {**golden("one"), "requests": [3]},
    "no name": lambda: without("name"),
    "no config": lambda: without("config"),
    "no steps": lambda: without("steps"),
    "no finish": lambda: without("finish"),
    "no usable_blocks": lambda: without("usable_blocks"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_line_that_is_no_golden_scenario_is_one_message(run: Run, folder: Path, kind: str) -> None:
    write_golden(folder / "golden.jsonl", [UNREADABLE[kind]()])
    done = run("parity", "golden.jsonl")
    assert_one_message(done, [f"'{kind[3:]}'"] if kind.startswith("no ") and kind != "no requests" else [])


@pytest.mark.parametrize(("content", "named"), [("", "no scenario"), ('\n{"name": "one"\n', "golden.jsonl:2")])
def test_a_file_that_holds_no_json_is_one_message(run: Run, folder: Path, content: str, named: str) -> None:
    (folder / "golden.jsonl").write_text(content)
    assert_one_message(run("parity", "golden.jsonl"), ["golden.jsonl", named])


@pytest.mark.parametrize("spoil", ["none", "spoilt", "cut"])
def test_a_spoilt_archive_is_one_message(run: Run, folder: Path, spoil: str) -> None:
    content = {"none": b"text", "spoilt": broken_gzip(), "cut": broken_gzip()[:60]}[spoil]
    (folder / "golden.jsonl.gz").write_bytes(content)
    assert_one_message(run("parity", "golden.jsonl.gz"), ["golden.jsonl.gz"])


def test_a_missing_golden_file_is_named(run: Run) -> None:
    assert_one_message(run("parity", "absent.jsonl.gz"), ["absent.jsonl.gz"])


def test_profiling_without_torch_is_one_message(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed here")
    done = program(tmp_path, "profile", "points.jsonl")
    assert_one_message(done, ["torch", "steelyard[profile]"])
    assert list(tmp_path.iterdir()) == []
