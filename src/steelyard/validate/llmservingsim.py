"""Bench folders of LLMServingSim (``bench/HW/MODEL``): a real vLLM's answers to one workload.

``vllm/meta.json`` has the engine's settings (`bench_engine`), ``vllm/requests.jsonl`` the times of every request,
``config.json`` the GPUs and ``vllm/timeseries.csv`` the queues by the second. The workload is not in the folder and is
given separately.

Latencies count from ``queued_ts``, when the engine received a request, as in the project's own summaries.
``arrival_time`` is of another clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.cost.csvrows import number, whole
from steelyard.errors import UserError
from steelyard.files.csvtext import csv_columns, csv_rows
from steelyard.files.finding import is_file
from steelyard.files.jsontext import json_lines, json_object, required
from steelyard.files.paths import absolute
from steelyard.hardware import find_gpu, is_known
from steelyard.scenario import Scenario, scenario_from_dict
from steelyard.sim import simulate
from steelyard.sim.intervals import intervals
from steelyard.validate.bench_engine import BenchEngine
from steelyard.validate.capture import Capture, CapturedRun, ClientTimes, QueueLoad
from steelyard.validate.compare import Validation, compare_run
from steelyard.workload.traces import read_trace
from steelyard.workload.traces.lines import seconds, tokens

_ENGINE = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "enable_prefix_caching", "policy"),
    *("async_scheduling", "kv_cache_dtype", "num_gpu_blocks", "kv_cache_memory_bytes", "disable_custom_all_reduce"),
)
_TIMES = ("queued_ts", "first_token_ts", "last_token_ts")


def is_bench_folder(folder: Path) -> bool:
    """Whether a folder is such a bench, not a capture in our own format."""
    return is_file(folder / "vllm" / "requests.jsonl")


def bench_files(folder: Path) -> list[Path]:
    """The files of a bench folder that are read."""
    return [
        folder / "config.json",
        *(folder / "vllm" / name for name in ("meta.json", "requests.jsonl", "timeseries.csv")),
    ]


def validate_bench(
    folder: Path, profile: Path | None, trace: Path, *, gpu: str | None = None, calibration: Path | None = None
) -> Validation:
    """Replay a bench's workload and compare; operator and host times come from the given files, if any."""
    capture = read_llmservingsim_bench(folder, trace)
    name = _gpu(capture) if gpu is None else find_gpu(gpu).name
    run = capture.runs[0]
    files = {"profile": profile, "calibration": calibration}
    cost = {key: str(absolute(path)) for key, path in files.items() if path is not None}
    result = simulate(bench_scenario(capture, run, name, cost))
    return Validation(folder, name, capture.engine, (compare_run(capture, run, result, intervals(result)),))


def read_llmservingsim_bench(folder: Path, trace: Path) -> Capture:
    """A bench folder as a capture; refuses one of another workload."""
    if not is_bench_folder(folder):
        raise UserError(f"{folder}: no vllm/requests.jsonl in it; a bench of LLMServingSim is a folder bench/HW/MODEL")
    meta = json_object(folder / "vllm" / "meta.json")
    answered, series = folder / "vllm" / "requests.jsonl", folder / "vllm" / "timeseries.csv"
    run = CapturedRun(
        name=trace.stem,
        asked=trace,
        answered=answered,
        stepped=series,
        answers=_answers(answered, trace),
        load=_load(series),
        preemptions=_preemptions(series),
        prompts=read_trace(trace, "vllm-bench").prompt,
    )
    blocks = BenchEngine(str(folder / "vllm" / "meta.json"), meta).blocks
    return Capture(folder, {**meta, "num_gpu_blocks": blocks}, (run,))


def bench_scenario(capture: Capture, run: CapturedRun, gpu: str, cost: dict[str, str]) -> Scenario:
    """The scenario as known before the bench ran: the engine's settings, model, GPU and workload."""
    where = f"{capture.folder}/vllm/meta.json"
    bench = BenchEngine(where, capture.meta)
    engine = {name: value for name in _ENGINE if (value := bench.setting(name)) is not None}
    engine["kv_cache_dtype"] = "fp8" if str(engine.get("kv_cache_dtype")).startswith("fp8") else "auto"
    return scenario_from_dict(
        {
            "name": run.name,
            "model": {"config": str(required(capture.meta, "model", where)), **_model(bench)},
            "fleet": {"gpu": gpu, **_layout(bench)},
            "engine": {**bench.defaults, **engine, "gpu_memory_utilization": bench.memory_share, **bench.graphs()},
            "workload": {
                "trace": {"file": str(absolute(run.asked)), "format": "vllm-bench"},
                "arrivals": {"kind": "trace"},
            },
            "cost": cost,
        },
        source=str(capture.folder / "vllm" / "meta.json"),
        base_dir=capture.folder,
    )


def _model(bench: BenchEngine) -> dict[str, str]:
    """What the engine made of the model's weights."""
    found = {name: bench.setting(name) for name in ("dtype", "quantization")}
    return {name: value.removeprefix("torch.") for name, value in found.items() if isinstance(value, str)}


def _layout(bench: BenchEngine) -> dict[str, Any]:
    """The engine's layout. vLLM sends each request to the rank with the fewest unfinished ones."""
    ranks = bench.setting("data_parallel_size") or 1
    return {
        "tp": bench.setting("tensor_parallel_size") or 1,
        "pp": bench.setting("pipeline_parallel_size") or 1,
        "dp": ranks,
        "expert_parallel": bool(bench.setting("enable_expert_parallel")),
        "router": "least-outstanding" if ranks != 1 else "round-robin",
    }


def _answers(path: Path, trace: Path) -> ClientTimes:
    """One row per request of the workload, in its order."""
    asked = read_trace(trace, "vllm-bench")
    found: dict[int, list[float]] = {}
    for where, row in json_lines(path, None):
        name = str(required(row, "request_id", where))
        index = int(name.rpartition("-")[2]) if name.rpartition("-")[2].isdigit() else -1
        if not 0 <= index < len(asked):
            raise UserError(f"{where}: request {name} is not one of the {len(asked)} of {trace}")
        lengths = tuple(tokens(required(row, key, where), key, where) for key in ("input_toks", "output_toks"))
        if lengths != (asked.prompt[index], asked.output[index]):
            raise UserError(
                f"{where}: {lengths[0]} tokens in and {lengths[1]} out, but {trace} asks for {asked.prompt[index]} and "
                f"{asked.output[index]} there; give the workload that the bench ran"
            )
        found[index] = [seconds(required(row, key, where), key, where) for key in _TIMES]
    if len(found) < len(asked):
        raise UserError(f"{path}: answers {len(found)} of the {len(asked)} requests of {trace}")
    queued, first, last = np.array([found[i] for i in range(len(asked))]).T
    after = asked.output - 1
    return ClientTimes(
        at=queued - queued.min(),
        ttft=first - queued,
        tpot=np.divide(last - first, after, out=np.full(len(asked), np.nan), where=after > 0),
        e2e=last - queued,
        output=asked.output,
        cached=None,
    )


def _load(path: Path) -> QueueLoad:
    """The queues, one row per tick, with the state at its end."""
    rows = [
        (number(row, "t", where), whole(row, "running", where), whole(row, "waiting", where))
        for where, row in csv_rows(path, ("t", "running", "waiting"))
    ]
    end, running, waiting = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    start = np.concatenate([[0.0], end[:-1]])[: len(end)]
    return QueueLoad(start, end, running.astype(np.int64), waiting.astype(np.int64), by_step=False)


def _preemptions(path: Path) -> int | None:
    """Preemptions of all ticks; older benches do not record them."""
    if "preempted" not in csv_columns(path):
        return None
    return sum(whole(row, "preempted", where) for where, row in csv_rows(path, ("preempted",)))


def _gpu(capture: Capture) -> str:
    """The catalog's name of the GPU: as the driver names it, else from the bench's topology or its folder."""
    named = BenchEngine(f"{capture.folder}/vllm/meta.json", capture.meta).gpu
    for name in (named, *(instance.get("hardware") for instance in _instances(capture.folder))):
        if isinstance(name, str) and is_known(name):
            return find_gpu(name).name
    return find_gpu(absolute(capture.folder).parent.name).name


def _instances(folder: Path) -> Iterator[dict[str, Any]]:
    """Engines of the bench's topology, if it has one."""
    path = folder / "config.json"
    nodes = json_object(path).get("nodes") if is_file(path) else None
    for node in nodes if isinstance(nodes, list) else ():
        for instance in node.get("instances") or () if isinstance(node, dict) else ():
            if isinstance(instance, dict):
                yield instance
