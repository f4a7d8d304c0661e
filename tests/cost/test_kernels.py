"""Kernels that a fresh engine compiles on first use: which steps stall is known, and was seen on a real one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import Scenario, UserError, scenario_from_dict, simulate
from steelyard.cost import Bundle, CompiledCost, HostTerms, MeasuredSource, Roofline, compile_cost
from steelyard.hardware import find_gpu
from steelyard.model import load_model
from steelyard.scenario import EngineSpec
from steelyard.sim.cache import Cache
from steelyard.validate.calibrate import evidence
from steelyard.validate.capture import CapturedRun, read_capture_folder
from steelyard.validate.compare import Validation, validate
from steelyard.validate.steps import kernel_by_kernel, read_steps
from support.known import known
from support.paths import DATA, SHARED

CAPTURES = SHARED / "h200-vllm-0.26"
RECORDED = DATA / "h200-recorded"

# What vLLM 0.26 runs for 128 experts of 768 on an H200: tiles tuned for these numbers of tokens, the nearest is taken.
TUNED = {tokens: str(tokens) for tokens in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 4096)}
TUNED |= {2048: "1536", 3072: "1536"}
GRID = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    128,
    192,
    200,
    256,
    384,
    392,
    512,
    640,
    768,
    776,
    1024,
    1280,
    1288,
    1536,
    2048,
    3072,
    4096,
)
HELD_OUT = (768, 1288)
QWEN = {"experts": 128, "top_k": 8, "hidden": 2048, "inter": 768, "zipf": 0.0}
SIZES = [1, 2, 4, *range(8, 257, 8)]


def tuned(tokens: int) -> str:
    return TUNED[min(sorted(TUNED), key=lambda key: abs(key - tokens))]


def profile(*, named: bool = True) -> MeasuredSource:
    """A profile of nothing but the experts of Qwen3-30B-A3B, with the kernels that ran or without."""
    rows = [{**QWEN, "m": m, "us": 200.0 + 0.5 * m, **({"kernel": tuned(m)} if named else {})} for m in GRID]
    parts = [[row for row in rows if (row["m"] in HELD_OUT) == held_out] for held_out in (False, True)]
    return MeasuredSource(find_gpu("h200"), Bundle({"gpu": "h200"}, {"moe": parts[0]}, {"moe": parts[1]}))


def cost(model: str = "qwen3-30b-a3b", *, named: bool = True, **engine: Any) -> CompiledCost:
    spec = EngineSpec.model_validate({"max_num_batched_tokens": 2048, "fresh": True, **engine})
    return compile_cost(load_model(model), 1, spec, profile(named=named), Roofline(find_gpu("h200")))


def stalls(cost: CompiledCost, steps: Iterable[tuple[int, bool]]) -> list[int]:
    """Places of the steps, given as tokens and whether all decode, that compile a kernel."""
    uses = cost.first_uses()
    assert uses is not None
    return [place for place, (tokens, decode_only) in enumerate(steps) if uses.compile(tokens, decode_only)]


# -- which kernel -----------------------------------------------------------------------------------------------------


def test_between_points_the_nearest_one_tells_the_kernel() -> None:
    found = profile().experts.seconds((128, 8, 2048, 768), np.arange(4097.0)).kernels
    assert found is not None
    assert [found[m].name for m in GRID] == [tuned(m) for m in GRID]  # those held out as well
    wrong = [m for m in range(1, 4097) if found[m].name != tuned(m)]
    assert len([m for m in wrong if m > 256]) < 15  # around the ends of their ranges


def test_a_kernel_weighs_what_it_took_to_compile_and_others_what_is_usual() -> None:
    took = {"512": 1.0, "1024": 3.0}
    rows = [{**QWEN, "m": m, "us": 200.0, "kernel": tuned(m)} for m in GRID]
    first = {row["kernel"]: row for row in reversed(rows)}
    for name, seconds in took.items():
        first[name]["compile_s"] = seconds
    known = MeasuredSource(find_gpu("h200"), Bundle({"gpu": "h200"}, {"moe": rows}))
    found = known.experts.seconds((128, 8, 2048, 768), np.array([512.0, 640.0, 1024.0, 2048.0])).kernels
    assert found == [("512", 0.5), ("512", 0.5), ("1024", 1.5), ("1536", 1.0)]
    spec = EngineSpec.model_validate({"max_num_batched_tokens": 2048, "fresh": True})
    uses = compile_cost(load_model("qwen3-30b-a3b"), 1, spec, known, Roofline(find_gpu("h200"))).first_uses()
    assert uses is not None
    assert [uses.compile(tokens, False) for tokens in (521, 801, 801, 1501)] == [0.5, 1.5, 0.0, 1.0]
    assert uses.count == 3 and uses.waited == pytest.approx(3.0 * HostTerms().compile)


def test_where_nobody_knows_the_kernels_nothing_stalls() -> None:
    assert cost().first_uses() is not None
    assert cost(fresh=False).first_uses() is None
    assert cost(named=False).first_uses() is None
    assert cost("llama-3.1-8b").first_uses() is None
    assert cost("mixtral-8x7b").first_uses() is None  # experts of another shape


# -- which steps stall ------------------------------------------------------------------------------------------------


def test_lone_prompts_that_stalled_a_real_engine_are_those_predicted() -> None:
    """Seen on an H200 with vLLM 0.26 freshly started, graphs up to 512 tokens: the prompts that took a second more."""
    prompts = [520, 521, 530, 531, 700, 701, 760, 761, 800, 801, 1000, 1001, 1100, 1290, 1291, 1500, 1501, 1780, 2047]
    engine = cost(max_num_seqs=256)
    found = stalls(engine, [(tokens, False) for tokens in prompts])
    assert [prompts[i] for i in found] == [521, 800, 801, 1291]
    assert stalls(engine, [(tokens, True) for tokens in range(1, 257)]) == []


def test_a_mode_without_graphs_for_prompts_compiles_theirs() -> None:
    only_decodes = cost(cudagraph="full_decode_only", cudagraph_capture_sizes=[1, 2, 4, 8])
    assert stalls(only_decodes, [(7, True), (8, False), (7, False), (7, False)]) == [2]
    assert stalls(cost(enforce_eager=True, max_num_seqs=8), [(1, True), (1, False), (3, True), (8, True)]) == [0, 2]


def recorded_steps(run: CapturedRun) -> tuple[list[tuple[int, bool]], list[int]]:
    """What ran, and the places of the steps whose launch took half a second and more."""
    steps = read_steps(run.stepped)
    stalled = []
    for k, step in enumerate(steps):
        waited = steps[k - 1].updated if k and step.scheduled < steps[k - 1].updated else step.updated
        if k + 1 < len(steps) and waited == step.updated:
            waited = min(waited, steps[k + 1].scheduled)
        if waited - step.scheduled > 0.5:
            stalled.append(k)
    return [(step.tokens, not step.chunks) for step in steps], stalled


def test_every_stall_of_a_real_capture_is_predicted_and_no_other() -> None:
    """Six of 3,859 steps, over three workloads in one engine: each the first of its kind."""
    if not CAPTURES.is_dir():
        pytest.skip("the captures of a real engine are not here")
    read = read_capture_folder(CAPTURES / "qwen3-30b-a3b")
    assert [run.name for run in read.runs] == ["calib-prefill", "calib-decode", "sharegpt-12rps"]
    engine = cost(max_num_seqs=128, cudagraph_capture_sizes=SIZES).first_uses()
    assert engine is not None
    seen = []
    for run in read.runs:
        steps, stalled = recorded_steps(run)
        assert [k for k, step in enumerate(steps) if engine.compile(*step)] == stalled
        seen += [steps[k][0] for k in stalled]
    assert seen == [512, 1537, 467, 285, 807, 804]


def test_stalls_of_our_own_capture_are_predicted_from_the_shipped_profile() -> None:
    """Of eight experts, so that 16 may divide the places for rows where it does not divide the rows (292, 436): each
    such kernel is one more. 1795 is nearest to 2048 by three tokens, which the profile's own points cannot tell."""
    capture = read_capture_folder(RECORDED / "mixtral-8x7b")
    predicted, stalled = [], []
    for run in capture.runs:
        waits = [wait for wait, _ in evidence(capture, run, "h200", HostTerms()).waits]
        predicted += [wait.step.tokens for wait in waits if wait.kernels]
        steps, places = recorded_steps(run)
        stalled += [steps[k][0] for k in places]
    assert stalled == [319, 401, 292, 400, 1795, 436]
    assert predicted == [319, 401, 292, 400, 436, 1959]


def test_stalls_of_a_real_capture_are_alike_by_the_weight_of_their_kernels() -> None:
    """Another host's times to compile them explain most of what makes one stall longer than another."""
    if not CAPTURES.is_dir():
        pytest.skip("the captures of a real engine are not here")
    capture = read_capture_folder(CAPTURES / "qwen3-30b-a3b")
    waits = [wait for run in capture.runs for wait, _ in evidence(capture, run, "h200", HostTerms()).waits]
    stalls = [(wait.seconds - wait.predicted, wait.kernels) for wait in waits if wait.kernels]
    plain, weighed = np.array([seconds for seconds, _ in stalls]), np.array([took / by for took, by in stalls])
    assert len(stalls) == 6
    assert plain.std() > 0.2 * plain.mean()
    assert weighed.std() < 0.1 * weighed.mean()


def test_the_one_stall_of_our_own_capture_is_said_to_be_there() -> None:
    """Its experts are of a shape that no profile has, so that no stall is predicted."""
    found = {each.name: each.notes[1:] for each in validate(RECORDED / "moe-64-experts").workloads}  # first: routing
    (said,) = found.pop("batches")
    assert said.startswith("stalls in launches: 1 of 0.7 s in all in the capture, 0 of 0.0 s predicted")
    assert not any(found.values())


# -- from a scenario --------------------------------------------------------------------------------------------------


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile with kernels in place of the shipped one."""
    found = profile()
    monkeypatch.setattr("steelyard.sim.sources.shipped", lambda gpu: found)
    monkeypatch.setattr("steelyard.sim.prepared.KNOWN", Cache("engines"))


def prompts(*tokens: int, gap: float = 5.0) -> list[dict[str, Any]]:
    return [{"id": i, "at": gap * i, "prompt": count, "output": 20} for i, count in enumerate(tokens)]


def scenario(folder: Path, name: str, **engine: Any) -> Scenario:
    return scenario_from_dict(
        {
            "model": "qwen3-30b-a3b",
            "fleet": {"gpu": "h200"},
            "engine": {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "max_model_len": 8192, **engine},
            "workload": {"trace": {"file": f"{name}.workload.json", "format": "capture"}},
        },
        base_dir=folder,
    )


@pytest.mark.usefixtures("profiled")
def test_a_fresh_engine_makes_its_first_prompts_wait(tmp_path: Path) -> None:
    (tmp_path / "lone.workload.json").write_text(json.dumps({"requests": prompts(400, 401, 401, 801, 2000, 803)}))
    steady = simulate(scenario(tmp_path, "lone"))
    fresh = simulate(scenario(tmp_path, "lone", fresh=True))
    warm = simulate(scenario(tmp_path, "lone", fresh=True, warm_up=[491, 100]))
    waited = HostTerms().compile
    assert steady.summary.compiled_on_first_use is None
    compiled = known(fresh.summary.compiled_on_first_use)
    assert compiled.kernels == 3 and compiled.seconds == pytest.approx(3 * waited)
    for found, stalled in ((fresh, [0, 1, 0, 1, 0, 0]), (warm, [0, 0, 0, 1, 0, 0])):
        later = found.requests["ttft"] - steady.requests["ttft"]
        expected = np.array(stalled, dtype=float)
        expected[0] += 1.0  # even, and nearest to what was tuned for 512
        assert later == pytest.approx(waited * expected, abs=1e-6)
    plain = simulate(scenario(tmp_path, "lone", fresh=True), plain=True)
    assert plain.requests["finish"].tolist() == fresh.requests["finish"].tolist()


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"warm_up": [512]}, "engine.warm_up: only a fresh engine is warmed up"),
        ({"fresh": True, "warm_up": [4096]}, r"engine.warm_up: no step has 4096 tokens; at most .* \(2048\)"),
        ({"fresh": "very"}, "engine.fresh"),
    ],
)
def test_what_is_wrong_with_a_fresh_engine_is_said(tmp_path: Path, engine: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        scenario(tmp_path, "none", **engine)


# -- captures ---------------------------------------------------------------------------------------------------------


def record(folder: Path, name: str, asked: list[dict[str, Any]], ran: Iterable[int]) -> None:
    """A workload as our own engine would be captured serving it, after steps of the ``ran`` numbers of tokens."""
    (folder / f"{name}.workload.json").write_text(json.dumps({"requests": asked}))
    ours = simulate(scenario(folder, name, fresh=True, warm_up=sorted(ran)))
    seen, steps = ours.requests, ours.steps
    first, last = (seen[moment] - seen["taken"] for moment in ("first_token", "finish"))
    answers = [
        {
            "id": row["id"],
            "at": float(seen["taken"][i]),
            "cached": 0,
            "tokens": np.linspace(first[i], last[i], row["output"]).tolist(),
        }
        for i, row in enumerate(asked)
    ]
    rows = [
        {
            "t_schedule": float(steps["start"][i]),
            "t_update": float(steps["end"][i]),
            **{key: int(steps[key][i]) for key in ("running", "waiting", "n_decode", "kv_decode")},
            "kv_decode_max": int(steps["kv_decode"][i]),
            "chunks": [[int(steps["prefill_tokens"][i]), 0]] if steps["prefill_tokens"][i] else [],
        }
        for i in range(len(steps["end"]))
    ]
    for kind, lines in (("requests", answers), ("steps", rows)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.{kind}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


META: dict[str, Any] = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "gpu": "h200",
    "kw": {"max_model_len": 8192},
}


@pytest.fixture
def capture(tmp_path: Path, profiled: None) -> Path:
    """Two workloads that one engine served: what the first compiles (401, 2047), the second finds."""
    config = resources.files("steelyard.model") / "catalog" / "qwen3-30b-a3b.json"
    (tmp_path / "config.json").write_text(config.read_text())
    (tmp_path / "meta.json").write_text(json.dumps(META))
    record(tmp_path, "calib-prefill", prompts(401, 2047), ())
    record(tmp_path, "after", prompts(403, 801, 1901), (401, 2047))
    return tmp_path


def predicted(found: Validation) -> dict[str, tuple[float, int]]:
    """By workload the error of its mean time to first token, and how many stalls are said to be predicted."""
    return {
        each.name: (
            round(each.latency["ttft"]["mean"].error or 0.0, 3),
            next((int(note.split(", ")[1].split()[0]) for note in each.notes if "predicted" in note), 0),
        )
        for each in found.workloads
    }


@pytest.mark.parametrize("given_cache", [False, True])
def test_a_workload_finds_what_earlier_ones_compiled(capture: Path, given_cache: bool) -> None:
    assert predicted(validate(capture, given_cache=given_cache)) == {"calib-prefill": (0.0, 2), "after": (0.0, 1)}


def test_an_engine_is_fresh_if_its_first_workload_is_there_or_the_settings_say_so(capture: Path) -> None:
    for file in capture.glob("calib-prefill.*"):
        file.unlink()
    assert predicted(validate(capture))["after"][1] == 0
    (capture / "meta.json").write_text(json.dumps({**META, "fresh": True}))
    error, count = predicted(validate(capture))["after"]
    assert count == 3 and error > 1


def test_a_capture_of_an_engine_that_had_served_before_says_so(capture: Path) -> None:
    (capture / "meta.json").write_text(json.dumps({**META, "fresh": False}))
    found = predicted(validate(capture))
    assert [count for _, count in found.values()] == [0, 0] and found["after"][0] < -0.5


def test_runs_on_one_clock_are_in_its_order(capture: Path) -> None:
    read = read_capture_folder(capture)
    assert [run.name for run in read.runs] == ["calib-prefill", "after"]
    path = capture / "calib-prefill.requests.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    later = "".join(json.dumps({**row, "at": row["at"] + 1000}) + "\n" for row in rows)
    path.write_bytes(gzip.compress(later.encode()))
    assert [run.name for run in read_capture_folder(capture).runs] == ["after", "calib-prefill"]


def test_the_steps_that_replayed_no_graph_are_those_beyond_the_captured_sizes(capture: Path) -> None:
    read = read_capture_folder(capture)
    graphs = cost(max_num_seqs=128).graphs
    assert [kernel_by_kernel(read_steps(run.stepped), graphs) for run in read.runs] == [{401, 2047}, {403, 801, 1901}]
