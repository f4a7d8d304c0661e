"""The end-to-end points of AIConfigurator's `silicon_sample.csv`, each as a scenario that repeats it.

It has two kinds of runs. Those of the InferenceX benchmark draw lengths uniformly between 80 % and 100 % of the nominal
ones, send ten requests per user after a warm-up, and start vLLM with the published recipe of each model. NVIDIA's own
use exact lengths, twenty requests per user, and the limits of its deployment generator. Both are closed loops in which
all users start at once and prompts share nothing.

Prefill and decode apart are scored where the sample says how many engines of each there are.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steelyard.cost.silicon import SYSTEMS, package_folder
from steelyard.errors import UserError
from steelyard.files.csvtext import csv_rows
from steelyard.files.finding import is_file
from steelyard.model import ModelSpec, MoeFfn, load_model
from steelyard.scenario import Scenario, scenario_from_dict
from steelyard.validate.silicon_apart import PointLayout, PointSide, engines_of, fleet_apart, why_not_apart

GPUS = {system: gpu for gpu, system in SYSTEMS.items()}
_PUBLISHED = re.compile(r"db-dump/|source_file=\d{4}-\d\d-\d\d\.csv|source_file=kimi")  # runs of InferenceX
_SHORTEST = 0.8  # of a nominal length, in InferenceX's runs
_PUBLISHED_ROUNDS, _OWN_ROUNDS = 10, 20  # requests per user
_OWN_REQUESTS, _OWN_SPARE_TOKENS = 512, 1500  # NVIDIA's generator: largest batch; tokens a step beside a prompt
_ASYNC_SINCE = (0, 14)  # vLLM releases with asynchronous scheduling by default
_DEEP_GEMM = (0, 11), (0, 14)  # releases that multiply fp8 experts in blocks with DeepGEMM on Hopper
_DEEP_GEMM_BELOW = 8  # GPUs; by default not with more
_HOPPER = ("h100", "h200")
_UTILIZATION = 0.9  # vLLM's default in all releases of the sample
_PRECISIONS = {"fp8": "fp8", "fp4": "nvfp4", "int4": "int4", "int8": "int8"}
_LONG_GRAPHS = (1, 2, 4, *range(8, 256, 8), *range(256, 2049, 16))
_MXFP4_BY_MARLIN = {"cudagraph_capture_sizes": _LONG_GRAPHS, "moe_backend": "marlin"}  # VLLM_MXFP4_USE_MARLIN=1
_MINIMAX = {"gpu_memory_utilization": 0.95, "max_num_seqs": 1024}
# Settings of InferenceX's recipes for vLLM beside the common ones, by model and GPU, as they were when the sample's
# runs were made (its repository has them by date).
_RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("openai/gpt-oss-120b", "h100"): _MXFP4_BY_MARLIN,
    ("openai/gpt-oss-120b", "h200"): _MXFP4_BY_MARLIN,
    ("openai/gpt-oss-120b", "b200"): {
        "cudagraph_capture_sizes": _LONG_GRAPHS,
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 512,
    },
    ("meta-llama/Llama-3.1-70B", "h100"): {"kv_cache_dtype": "fp8"},
    ("meta-llama/Llama-3.1-70B", "h200"): {"kv_cache_dtype": "fp8"},
    ("meta-llama/Llama-3.1-70B", "b200"): {
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 512,
        "cudagraph": "full_decode_only",
    },
    ("MiniMaxAI/MiniMax-M2.5", "h200"): _MINIMAX,
    ("MiniMaxAI/MiniMax-M2.5", "b200"): _MINIMAX | {"block_size": 32},
    ("moonshotai/Kimi-K2.5", "h200"): {"gpu_memory_utilization": 0.95},
    ("moonshotai/Kimi-K2.5", "b200"): {"gpu_memory_utilization": 0.95},
}
_MINIMAX_SINCE = (0, 19)  # releases with which the B200's recipe of MiniMax is this one


@dataclass(frozen=True)
class Point:
    """One measured run."""

    name: str
    source: str
    model: str
    system: str
    engine: str
    version: str
    precision: str
    gemm_dtype: str
    expert_dtype: str
    aggregated: bool
    layout: PointLayout
    isl: int
    osl: int
    concurrency: int
    ttft: float  # mean, seconds
    tpot: float
    prefill: PointSide | None = None
    decode: PointSide | None = None
    engines_said: bool = True  # whether the sample says how many prefill and decode engines there are

    @property
    def gpu(self) -> str:
        """Our name of the GPU, or the sample's if the catalog lacks it."""
        return GPUS.get(self.system, self.system)

    @property
    def published(self) -> bool:
        """Whether the run is InferenceX's."""
        return _PUBLISHED.match(self.source) is not None

    @property
    def run(self) -> tuple[object, ...]:
        """The identity of an experiment: points with equal runs repeat each other."""
        load = self.isl, self.osl, self.concurrency, self.published
        sides = self.prefill, self.decode
        return self.model, self.system, self.engine, self.version, self.precision, self.layout, *sides, *load

    @property
    def gpus(self) -> int:
        """GPUs of the run."""
        if self.prefill is None or self.decode is None:
            return self.layout.tp
        return sum(side.workers * side.layout.gpus for side in (self.prefill, self.decode))


def read_points() -> list[Point]:
    """All points of the sample in the installed package."""
    file = sample_file()
    if file is None:
        raise UserError(
            "the silicon sample comes with AIConfigurator, which is not installed (AISimulate may bring the tables "
            "without it); pip install 'steelyard[silicon]'"
        )
    return [_point(row) for _, row in csv_rows(file, ("id",))]


def sample_file() -> Path | None:
    """The sample in the installed package, if it has it."""
    package = package_folder()
    file = None if package is None else package / "systems" / "silicon_sample.csv"
    return file if file is not None and is_file(file) else None


def _point(row: dict[str, str]) -> Point:
    def whole(name: str) -> int:
        return int(float(row.get(name) or 0))

    def layout(prefix: str) -> PointLayout:
        names = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
        return PointLayout(*(whole(f"{prefix}{name}") for name in names))

    def side(role: str) -> PointSide:
        return PointSide(whole(f"{role}_num_workers"), whole(f"{role}_batch_size"), layout(f"{role}_"))

    apart = row["mode"] == "disagg"
    prefill, decode = (side("prefill"), side("decode")) if apart else (None, None)
    users = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    concurrency = whole("batch_size") if not apart else int(users[1]) if users else 0
    said = prefill is None or prefill.workers > 0
    if prefill is not None and decode is not None and not said:
        lengths, gpu = (whole("isl"), whole("osl")), GPUS.get(row["system"], "")
        counts = engines_of(row["model_path"], gpu, lengths, concurrency, prefill.layout.expert_ep)
        prefill, decode = (replace(side, workers=count) for side, count in zip((prefill, decode), counts, strict=True))
    return Point(
        name=row["id"],
        source=row["silicon_data_source"],
        model=row["model_path"],
        system=row["system"],
        engine=row["backend"],
        version=row["backend_version"],
        precision=row["precision"],
        gemm_dtype=row["gemm_quant_mode"],
        expert_dtype=row["moe_quant_mode"],
        aggregated=row["mode"] == "agg",
        layout=layout(""),
        isl=whole("isl"),
        osl=whole("osl"),
        concurrency=concurrency,
        ttft=float(row["silicon_ttft_ms"]) * 1e-3,
        tpot=float(row["silicon_tpot_ms"]) * 1e-3,
        prefill=prefill,
        decode=decode,
        engines_said=said,
    )


def why_not(point: Point) -> str | None:
    """Why a point cannot be repeated, as far as its columns tell."""
    layout = point.layout
    if point.prefill is not None and point.decode is not None:
        reason = why_not_apart(point, point.prefill, point.decode)
        return reason or (None if point.system in GPUS else "GPU not in the catalog")
    if point.engine != "vllm":
        return "not vLLM's scheduler"
    if point.system not in GPUS:
        return "GPU not in the catalog"
    if layout.dp > 1 or layout.pp > 1:
        return "attention in data or pipeline parallel"
    if layout.expert_ep > 1:
        return "experts in expert parallel"
    return None


def scenario_of(point: Point, source: str) -> Scenario:
    """The point's run as a scenario with a cost source; raises UserError for an unknown model or layout."""
    config = _model_config(point.model)
    model = load_model(config)
    if _layout_differs(point, model):
        raise UserError("experts and attention over different numbers of GPUs")
    quantized = None if model.quantization is not None else _PRECISIONS.get(point.precision)
    least = _SHORTEST if point.published else 1.0
    return scenario_from_dict(
        {
            "name": point.name,
            "model": {"config": config, "quantization": quantized},
            "fleet": _fleet(point, model),
            "engine": _engine(point) | ({"moe_backend": "deep_gemm"} if _multiplies_in_blocks(point, model) else {}),
            "workload": {
                "arrivals": {"kind": "closed", "users": point.concurrency},
                "requests": point.concurrency * (_PUBLISHED_ROUNDS if point.published else _OWN_ROUNDS),
                "prompt": {"kind": "uniform", "min": int(point.isl * least), "max": point.isl},
                "output": {"kind": "uniform", "min": int(point.osl * least), "max": point.osl},
            },
            "cost": {"source": source},
        },
        source=f"silicon_sample.csv: {point.name}",
    )


def _fleet(point: Point, model: ModelSpec) -> dict[str, Any]:
    """One engine, or the prefill and decode engines of a run that has them apart."""
    if point.prefill is None or point.decode is None:
        return {"gpu": point.gpu, "tp": point.layout.tp}
    routed = any(isinstance(layer.ffn, MoeFfn) for layer in model.layers)
    return fleet_apart(point, point.prefill, point.decode, routed)


def _layout_differs(point: Point, model: ModelSpec) -> bool:
    """Whether experts use another number of GPUs than attention."""
    routed = any(isinstance(layer.ffn, MoeFfn) for layer in model.layers)
    return routed and point.aggregated and point.layout.expert_tp not in (0, point.layout.tp)


def _multiplies_in_blocks(point: Point, model: ModelSpec) -> bool:
    """Whether the release chose DeepGEMM for the experts, by its own rule (`fp8.py` of those releases)."""
    stored = model.quantization
    first, last = _DEEP_GEMM
    blocks = stored is not None and stored.method == "fp8" and stored.block is not None
    routed = any(isinstance(layer.ffn, MoeFfn) for layer in model.layers)
    chosen = point.gpu in _HOPPER and point.layout.tp < _DEEP_GEMM_BELOW and first <= _release(point.version) <= last
    return blocks and routed and chosen


def _engine(point: Point) -> dict[str, Any]:
    """Engine settings: the recipe's, else the release's defaults."""
    common: dict[str, Any] = {"gpu_memory_utilization": _UTILIZATION, "enable_prefix_caching": False}
    if point.engine == "sglang":
        return common
    if point.published:
        limits = {"max_num_seqs": point.concurrency, "max_num_batched_tokens": 8192}
        return common | limits | _recipe(point)
    common |= {
        "max_num_seqs": _OWN_REQUESTS,
        "max_num_batched_tokens": _OWN_REQUESTS + point.isl + _OWN_SPARE_TOKENS,
        "async_scheduling": _release(point.version) >= _ASYNC_SINCE,
    }
    if point.model.startswith("nvidia/"):
        common["kv_cache_dtype"] = "fp8"  # its FP8 checkpoints say so
    return common


def _recipe(point: Point) -> dict[str, Any]:
    """Settings of the published recipe of a point's model on its GPU."""
    if (point.model, point.gpu) == ("MiniMaxAI/MiniMax-M2.5", "b200") and _release(point.version) >= _MINIMAX_SINCE:
        return {
            "kv_cache_dtype": "fp8",
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 2 * point.isl,
            "cudagraph_capture_sizes": _LONG_GRAPHS,
        }
    if (point.model, point.gpu, point.precision) == ("moonshotai/Kimi-K2.5", "b200", "fp4"):
        return {}
    return _RECIPES.get((point.model, point.gpu), {})


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; a nightly build is later than all."""
    if version.startswith("nightly"):
        return (sys.maxsize,)
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _model_config(name: str) -> str:
    """The model in our catalog, or the package's config."""
    package = package_folder()
    shipped = None if package is None else package / "model_configs" / f"{name.replace('/', '--')}_config.json"
    if shipped is not None and shipped.is_file():
        return str(shipped)
    return re.sub(r"(-Instruct)?(-(FP8|NVFP4))?$", "", name.rsplit("/", 1)[-1]).lower()
