"""Captures replayed: one that our own simulator made must come back without error, a real one must be readable."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import Result, UserError, scenario_from_dict, simulate
from steelyard.cli import main
from steelyard.report.validation import validation_page
from steelyard.validate.capture import read_capture_folder
from steelyard.validate.compare import LATENCIES, STATISTICS, Pair, validate
from steelyard.validate.settings import gpu_of, scenario_of, unsupported_arguments
from support.paths import SHARED
from support.report_text import charts_of, words

CAPTURES = SHARED / "h200-vllm-0.26"
SMALL_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
META: dict[str, Any] = {
    "kw": {"max_model_len": "4096", "load_format": "dummy"},
    "block_size": 16,
    "max_num_seqs": 24,
    "max_num_batched_tokens": 512,
    "async_scheduling": True,
    "prefix_caching": True,
    "cudagraph": "FULL_AND_PIECEWISE",
    "capture_sizes": [1, 2, 4, 8, 16, 24],
    "gpu_memory_utilization": 0.9,
}
ENGINE = {
    "max_model_len": 4096,
    "block_size": 16,
    "max_num_seqs": 24,
    "max_num_batched_tokens": 512,
    "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24],
    "gpu_memory_utilization": 0.9,
}
CHAT = [
    {"id": i, "at": 0.01 * i, "prompt": 200 + 37 * (i % 7), "output": 1 + 5 * (i % 9), "prefix": [f"p{i % 3}", 160]}
    for i in range(60)
]
TURNS: list[dict[str, Any]] = [
    turn
    for i in range(8)
    for turn in (
        {"id": f"a{i}", "at": 0.2 * i, "prompt": 100, "output": 30},
        {"id": f"b{i}", "after": f"a{i}", "think": 0.05, "prompt": 300, "output": 20},
    )
]


def pack(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def unpack(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def record(folder: Path, name: str, requests: list[dict[str, Any]], slower: float = 1.0) -> Result:
    """A workload as it would be captured if our simulator (times ``slower``) were the real engine."""
    (folder / f"{name}.workload.json").write_text(json.dumps({"name": name, "requests": requests}))
    ours = simulate(
        scenario_from_dict(
            {
                "model": "config.json",
                "fleet": {"gpu": "h200"},
                "engine": ENGINE,
                "workload": {"trace": {"file": f"{name}.workload.json", "format": "capture"}},
            },
            base_dir=folder,
        )
    )
    seen = ours.requests
    first, last = (seen[moment] - seen["taken"] for moment in ("first_token", "finish"))  # on the client's clock
    answers = [
        {
            "id": asked["id"],
            "at": float(seen["taken"][i]) * slower,
            "cached": int(seen["cached"][i]),
            "tokens": (np.linspace(first[i], last[i], asked["output"]) * slower).tolist(),
        }
        for i, asked in enumerate(requests)
    ]
    pack(folder / f"{name}.requests.jsonl.gz", answers[::-1])  # captures are in order of submission, not of ids
    steps = ours.steps
    pack(
        folder / f"{name}.steps.jsonl.gz",
        [
            {
                "t_schedule": float(steps["start"][i]) * slower,
                "t_update": float(steps["end"][i]) * slower,
                **{key: int(steps[key][i]) for key in ("running", "waiting", "preempted")},
            }
            for i in range(len(steps["start"]))
        ],
    )
    return ours


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A capture folder with an engine but nothing asked of it."""
    place = tmp_path / "h200-test" / "small"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(SMALL_MODEL))
    (place / "meta.json").write_text(json.dumps(META))
    return place


@pytest.fixture
def capture(folder: Path) -> Path:
    """Two workloads, one with shared prefixes and one with turns, whose figures are our own."""
    ours = record(folder, "chat", CHAT)
    record(folder, "turns", TURNS)
    (folder / "meta.json").write_text(json.dumps({**META, "num_gpu_blocks": ours.summary.memory.num_gpu_blocks}))
    return folder


def pairs_of(metrics: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in metrics.items():
        if "error" in value:
            yield name, value
        else:
            yield from ((f"{name}.{statistic}", pair) for statistic, pair in value.items())


def test_a_capture_of_our_own_run_has_no_error(capture: Path) -> None:
    found = validate(capture)
    assert found.gpu == "h200"
    assert [each.name for each in found.workloads] == ["chat", "turns"]
    for each in found.workloads:
        for name, pair in pairs_of(each.as_dict()["metrics"]):
            assert pair["error"] == pytest.approx(0, abs=1e-8), (each.name, name, pair)
    for each in found.workloads:
        assert each.figures["prefix_hit_tokens"].measured, "sharing must be seen, or the replay proves little"
        assert each.latency["ttft"]["mean"].measured
        assert (each.load[0].running == each.load[1].running).all()


def test_errors_are_simulated_over_measured_less_one(folder: Path) -> None:
    open_loop = [{**asked, "at": 0.0} for asked in CHAT]
    record(folder, "burst", open_loop, slower=2.0)
    (found,) = validate(folder).workloads
    for metric in LATENCIES:
        for statistic in STATISTICS:
            assert found.latency[metric][statistic].error == pytest.approx(-0.5)
    assert found.figures["makespan"].error == pytest.approx(-0.5)
    assert found.figures["throughput"].error == pytest.approx(1.0)
    assert found.figures["kv_blocks"].as_dict()["measured"] is None


def test_percentiles_are_recomputed_from_the_tokens(capture: Path) -> None:
    rows = unpack(capture / "chat.requests.jsonl.gz")
    chat = validate(capture).workloads[0]
    tpot = [(r["tokens"][-1] - r["tokens"][0]) / (len(r["tokens"]) - 1) for r in rows if len(r["tokens"]) > 1]
    assert chat.latency["tpot"]["p95"].measured == pytest.approx(np.percentile(tpot, 95))
    assert chat.latency["ttft"]["mean"].measured == pytest.approx(np.mean([r["tokens"][0] for r in rows]))
    span = max(r["at"] + r["tokens"][-1] for r in rows) - min(r["at"] for r in rows)
    assert chat.figures["throughput"].measured == pytest.approx(sum(len(r["tokens"]) for r in rows) / span)


@pytest.mark.parametrize(
    ("measured", "simulated", "error"),
    [(4.0, 5.0, 0.25), (0.0, 0.0, 0.0), (0.0, 3.0, None), (None, 3.0, None), (3.0, None, None)],
)
def test_an_error_without_meaning_is_null(measured: float | None, simulated: float | None, error: float | None) -> None:
    assert Pair(measured, simulated).error == error


def test_nothing_measured_reaches_the_scenario(capture: Path) -> None:
    """Blocks are predicted: what the capture says of them, or of any time, must not change the simulation."""
    before = validate(capture).workloads[0]
    (capture / "meta.json").write_text(json.dumps({**META, "num_gpu_blocks": 300}))
    rows = unpack(capture / "chat.requests.jsonl.gz")
    pack(capture / "chat.requests.jsonl.gz", [{**row, "at": 0.0, "tokens": [9.0], "cached": 0} for row in rows])
    after = validate(capture).workloads[0]
    assert after.figures["kv_blocks"].measured == 300
    for name in LATENCIES:
        assert (before.samples[name][1] == after.samples[name][1]).all()


def test_engine_settings_and_arguments_are_taken_over(capture: Path) -> None:
    arguments = {
        "max_model_len": "2048",
        "num_gpu_blocks_override": "400",
        "kv_cache_dtype": "fp8",
        "quantization": "None",
        "enforce_eager": "True",
        "scheduling_policy": "priority",
        "speculative_config": "{'method': 'ngram'}",
    }
    settings = {**META, "kw": arguments, "prefix_caching": False, "async_scheduling": False, "cudagraph": "NONE"}
    (capture / "meta.json").write_text(json.dumps(settings))
    read = read_capture_folder(capture)
    scenario = scenario_of(read, read.runs[0], "h200")
    engine = scenario.engine
    assert (engine.max_model_len, engine.num_gpu_blocks, engine.kv_cache_dtype) == (2048, 400, "fp8")
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.block_size) == (24, 512, 16)
    assert (engine.enable_prefix_caching, engine.async_scheduling, engine.cudagraph) == (False, False, "none")
    assert (engine.enforce_eager, engine.policy, engine.gpu_memory_utilization) == (True, "priority", 0.9)
    assert engine.cudagraph_capture_sizes == (1, 2, 4, 8, 16, 24)
    assert scenario.model.quantization is None
    assert unsupported_arguments(read) == ["kw.speculative_config={'method': 'ngram'} is not simulated"]


def test_the_gpu_is_asked_for_or_recorded_or_named_by_a_folder(capture: Path) -> None:
    read = read_capture_folder(capture)
    assert gpu_of(read, None) == "h200"
    assert gpu_of(read, "NVIDIA H100") == "h100"
    read.meta["gpu"] = "NVIDIA A100-SXM4-80GB"
    assert gpu_of(read, None).startswith("a100")
    del read.meta["gpu"]
    moved = capture.parent.rename(capture.parents[1] / "elsewhere") / "small"
    with pytest.raises(UserError, match="--gpu"):
        gpu_of(read_capture_folder(moved), None)


def replace(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = text.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:200])

    return change


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (remove("meta.json"), r"small: no meta\.json"),
        (remove("config.json"), r"no config\.json"),
        (remove("chat.requests.jsonl.gz"), r"chat\.requests\.jsonl\.gz: no such file"),
        (remove("chat.steps.jsonl.gz"), r"chat\.steps\.jsonl\.gz: no such file"),
        (replace("meta.json", "{"), r"meta\.json:1: not valid JSON"),
        (replace("meta.json", "[]"), r"meta\.json: must be a JSON object"),
        (replace("meta.json", '{"kw": 3}'), r"meta\.json: kw must be an object"),
        (replace("meta.json", '{"max_num_seqs": "many"}'), r"meta\.json: engine\.max_num_seqs"),
        (replace("chat.workload.json", '{"requests": [{"id": 1}, {"id": "1"}]}'), r"requests\[1\]: id '1' is taken by"),
        (replace("chat.requests.jsonl.gz", 2 * '{"id": 0, "at": 0, "tokens": [1]}\n'), r"gz:2: id '0' is taken by"),
        (replace("chat.workload.json", "{}"), r"chat\.workload\.json: must be a JSON object with a list"),
        (replace("chat.requests.jsonl.gz", "nonsense\n"), r"chat\.requests\.jsonl\.gz:1: not valid JSON"),
        (replace("chat.requests.jsonl.gz", '{"id": 0, "at": 0}\n'), r"gz:1: tokens is missing"),
        (replace("chat.requests.jsonl.gz", '{"id": 0, "at": 0, "tokens": []}\n'), r"gz:1: tokens must be a list"),
        (replace("chat.requests.jsonl.gz", '{"id": 0, "at": 0, "tokens": [2, 1]}\n'), r"gz:1: tokens must rise"),
        (replace("chat.requests.jsonl.gz", '{"id": 0, "at": 0, "tokens": [1]}\n'), r"lacks 59 of the 60 requests"),
        (replace("chat.requests.jsonl.gz", '{"id": 99, "at": 0, "tokens": [1]}\n'), r"gz:1: request '99' is not one"),
        (replace("chat.steps.jsonl.gz", '{"t_schedule": "x"}\n'), r"steps\.jsonl\.gz:1: t_schedule must be a number"),
        (cut("chat.steps.jsonl.gz"), r"chat\.steps\.jsonl\.gz: cannot be read"),
    ],
)
def test_what_is_wrong_with_a_capture_is_said(capture: Path, spoil: Callable[[Path], None], says: str) -> None:
    spoil(capture)
    with pytest.raises(UserError) as error:
        validate(capture)
    assert re.search(says, str(error.value)), str(error.value)


def test_a_folder_of_captures_offers_those_in_it(capture: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="subfolders small are: give one of them"):
        validate(capture.parent)
    with pytest.raises(UserError, match="no such folder"):
        validate(tmp_path / "nowhere")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["steelyard", "validate", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command_prints_json(
    capture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, str(capture), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in printed["workloads"]] == ["chat", "turns"]
    for each in printed["workloads"]:
        for metric in LATENCIES:
            assert list(each["metrics"][metric]) == ["mean", "p50", "p90", "p95", "p99"]
        for name, pair in pairs_of(each["metrics"]):
            assert list(pair)[:3] == ["measured", "simulated", "error"], name
            if list(pair)[3:]:
                low, high = pair["interval"]
                assert low <= pair["simulated"] <= high, name
                assert pair["inside"] is (low <= pair["measured"] <= high), name
        others = {"throughput", "makespan", "kv_blocks", "finished", "preemptions", "prefix_hit_tokens"}
        assert set(each["metrics"]) == {*LATENCIES, *others}


def test_the_command_prints_a_table_and_writes_a_page(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "page.html"
    assert run(monkeypatch, str(capture), "--report", str(page)) == 0
    out = capsys.readouterr().out
    assert re.search(r"TTFT p99 +\S+ \S+ +\S+ \S+ +[+-]0\.0 %", out)
    assert "KV blocks" in out and "turns" in out
    text = page.read_text()
    assert len(charts_of(text)) == 1 + 2 * 5
    assert "NaN" not in "".join(re.findall(r"<figure.*?</figure>", text, re.S))
    assert run(monkeypatch, str(capture), "--report", str(capture)) == 2
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("CAPTURE --trace nonexistent", "--trace nonexistent: it is for bench folders"),
        ("BENCH --trace w.jsonl --given-cache", "--given-cache: BENCH is a bench folder"),
        ("--silicon CAPTURE", "capture CAPTURE: --silicon has measured points of its own"),
        ("--silicon --report page.html", "--report page.html: --silicon has measured points of its own"),
        ("--silicon --trace w.jsonl", "--trace w.jsonl: --silicon has measured points of its own"),
    ],
)
def test_an_option_without_effect_is_refused(
    capture: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: str,
    says: str,
) -> None:
    monkeypatch.chdir(capture.parent)
    capture.rename("CAPTURE")
    bench = Path("BENCH", "vllm")
    bench.mkdir(parents=True)
    (bench / "requests.jsonl").write_text("")
    assert run(monkeypatch, *options.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {says}") and said.count("\n") == 1
    assert not Path("page.html").exists()


def test_the_page_draws_two_different_curves(folder: Path) -> None:
    record(folder, "chat", CHAT, slower=1.5)
    charts = charts_of(validation_page(validate(folder)))
    assert set(charts) == {"errors", "ttft-0", "tpot-0", "e2e-0", "running-0", "waiting-0"}
    for name in set(charts) - {"errors"}:
        assert [each["name"] for each in charts[name]["marks"]] == ["measured", "simulated"]
    measured, simulated = (np.array(each["x"]) for each in charts["ttft-0"]["marks"])
    assert (measured >= simulated).all() and (np.diff(measured) >= 0).all(), "slower lies to the right"


def test_the_page_says_first_how_far_off_it_is(folder: Path) -> None:
    record(folder, "chat", CHAT, slower=1.5)
    found = validate(folder)
    page = validation_page(found)
    text = words(page)
    assert text.index("TTFT: ") < text.index("Errors: simulated over measured")
    errors = [found.workloads[0].latency["tpot"][name].error for name in ("mean", "p95")]
    worst = max(abs(error) for error in errors if error is not None)
    assert f"at most {worst * 100:.1f} %" in text
    bars = {bar["label"]: bar["value"] for bar in charts_of(page)["errors"]["bars"]}
    assert bars["chat, TPOT mean"] == errors[0] and bars["chat, TPOT p95"] == errors[1]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-8b-server", "qwen3-30b-a3b"])
def test_real_captures_can_be_replayed(name: str) -> None:
    if not CAPTURES.is_dir():
        pytest.skip("the captures of a real engine are not here")
    found = validate(CAPTURES / name)
    assert found.gpu == "h200"
    assert len(found.workloads) == len(list((CAPTURES / name).glob("*.workload.json")))
    for each in found.workloads:
        assert each.figures["finished"].error == 0
        assert all(pair.error is not None for pairs in each.latency.values() for pair in pairs.values())
        blocks = each.figures["kv_blocks"].error
        assert blocks is not None and abs(blocks) < 0.02
        if each.name == "rollout-burst":
            assert each.figures["prefix_hit_tokens"].error == 0
        assert validation_page(found)
