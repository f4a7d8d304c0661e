"""Routed experts by one named kernel of NVIDIA's tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import UserError, simulate
from steelyard.cost.silicon.kernels import KernelExperts, check_marlin
from steelyard.model import Elementwise, Gemm, GroupedGemm, Layout, load_model
from steelyard.scenario import Scenario, scenario_from_dict
from steelyard.sim import sources
from support.silicon_tables import needs_package, seconds, silicon, write

MXFP4 = 0.5 + 1 / 32
LAYER = GroupedGemm("experts_gate_up", 2880, 2 * 2880, experts=128, top_k=4, weight_bytes=MXFP4, compute="bf16")
TOKENS = np.array([0.0, 64.0, 1024.0])


def moe_rows(kernel: str, hidden: int, inter: int, milliseconds: float) -> list[dict[str, Any]]:
    """Milliseconds for each token."""
    layer = {"moe_dtype": "w4a16_mxfp4", "kernel_source": kernel, "topk": 4, "num_experts": 128, "moe_tp_size": 1}
    where = {"hidden_size": hidden, "inter_size": inter, "moe_ep_size": 1, "distribution": "power_law_1.01"}
    return [{**layer, **where, "num_tokens": n, "latency": milliseconds * n} for n in (1, 64, 1024)]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Triton's times of the layer, and Marlin's, three times as long, of the same layer filled up."""
    rows = [*moe_rows("x_triton_y", 2880, 2880, 0.001), *moe_rows("x_marlin_y", 3072, 2944, 0.003)]
    write(tmp_path, "moe/vllm/0.24.0/moe_perf", rows)
    return tmp_path


def marlin(tables: Path) -> KernelExperts:
    return KernelExperts(replace(silicon(tables), experts_kernel="marlin"))


def test_only_the_kernels_own_rows_answer_for_the_layer_as_it_is_multiplied(tables: Path) -> None:
    assert seconds(silicon(tables), LAYER, TOKENS) == pytest.approx([0.0, 0.064e-3, 1.024e-3])
    found = marlin(tables).rows(LAYER, TOKENS)
    assert found is not None
    assert found.seconds == pytest.approx([0.0, 3 * 0.064e-3, 3 * 1.024e-3])


def test_a_slice_is_filled_up_before_it_is_scaled(tables: Path) -> None:
    """360 columns are multiplied as 384, so both take the same time."""
    eighth, filled = (marlin(tables).rows(replace(LAYER, n=2 * width), TOKENS) for width in (360, 384))
    assert eighth is not None and filled is not None
    assert eighth.seconds.tolist() == filled.seconds.tolist()
    wider = marlin(tables).rows(replace(LAYER, n=2 * 385), TOKENS)
    assert wider is not None and wider.seconds[2] > eighth.seconds[2]


def test_other_operators_are_left_to_other_sources(tables: Path) -> None:
    assert marlin(tables).rows(Gemm("qkv", 4096, 4096, 2.0, "bf16"), TOKENS) is None
    assert marlin(tables).rows(replace(LAYER, weight_bytes=2.0), TOKENS) is None
    assert marlin(tables).rows(Elementwise("input_norm", 8192), TOKENS) is None
    within = marlin(tables).rows(Elementwise("experts_act", 8192), TOKENS)
    assert within is not None and not within.seconds.any()


def test_a_kernel_that_was_not_timed_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "moe/vllm/0.24.0/moe_perf", moe_rows("x_triton_y", 2880, 2880, 0.001))
    with pytest.raises(UserError, match=r"engine\.moe_backend: marlin was not timed on h200"):
        marlin(tmp_path).rows(LAYER, TOKENS)


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-30b-a3b"])
def test_models_without_4_bit_experts_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"engine\.moe_backend: marlin is for routed experts with 4-bit weights"):
        check_marlin(load_model(name), Layout())


def test_expert_parallelism_is_refused() -> None:
    check_marlin(load_model("gpt-oss-120b"), Layout(tp=2))
    with pytest.raises(UserError, match="not simulated with expert parallelism"):
        check_marlin(load_model("gpt-oss-120b"), Layout(tp=2, expert_parallel=True))


def _scenario(backend: str, source: str = "auto") -> Scenario:
    return scenario_from_dict(
        {
            "model": "gpt-oss-120b",
            "fleet": {"gpu": "h200", "tp": 1},
            "engine": {"moe_backend": backend, "max_num_seqs": 8},
            "workload": {
                "arrivals": {"kind": "closed", "users": 2},
                "requests": 4,
                "prompt": {"kind": "fixed", "tokens": 8000},
                "output": {"kind": "fixed", "tokens": 8},
            },
            "cost": {"source": source},
        },
        source="test",
    )


def test_without_tables_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_silicon", lambda *_: None)
    with pytest.raises(UserError, match=r"engine\.moe_backend: marlin needs NVIDIA's tables of h200"):
        simulate(_scenario("marlin"))


def test_with_a_roofline_only_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"cost\.source: analytic"):
        simulate(_scenario("marlin", "analytic"))


@needs_package
def test_long_prompts_take_longer_by_marlin_than_by_triton() -> None:
    """NVIDIA's tables: 205 against 410 TFLOP/s at 8,192 tokens."""
    ttfts = {each: float(np.mean(simulate(_scenario(each)).requests["ttft"])) for each in ("auto", "marlin")}
    assert 1.5 < ttfts["marlin"] / ttfts["auto"] < 2.2
