"""Routed experts in blocks of padded rows."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard import simulate
from steelyard.cost import Roofline
from steelyard.cost.deep_gemm import DeepGemmExperts, padded_rows
from steelyard.cost.source import FirstOf
from steelyard.errors import UserError
from steelyard.hardware import find_gpu, topology_of
from steelyard.model import Elementwise, Gemm, GroupedGemm
from steelyard.scenario import Scenario, scenario_from_dict

H200 = find_gpu("h200")
ROOFLINE = Roofline(H200, topology_of(H200))
GATE_UP = GroupedGemm("experts_gate_up", 4096, 1536, experts=128, top_k=8, weight_bytes=1 + 1 / 4096, compute="fp8")
TOKENS = np.array([0.0, 1.0, 16.0, 64.0, 8192.0])


def seconds(gate_up: GroupedGemm = GATE_UP) -> np.ndarray:
    found = DeepGemmExperts(FirstOf((ROOFLINE,))).rows(gate_up, TOKENS)
    assert found is not None
    return found.seconds


def test_every_expert_gets_room_for_a_block() -> None:
    assert padded_rows(np.array([1.0, 16.0, 100.0]), 8, 128).tolist() == [16_384, 16_384, 17_152]


def test_a_few_tokens_take_as_long_as_all_experts() -> None:
    idle, one, some, more, many = seconds()
    assert idle == 0
    assert one == pytest.approx(some, rel=0.02)
    weights = 128 * 3 * 4096 * 768 / H200.memory_bandwidth
    assert weights < one < 3 * weights
    assert more < 1.1 * one
    assert many > 3 * one


def test_few_tokens_cost_more_than_if_only_their_experts_were_read() -> None:
    alone = ROOFLINE.rows(GATE_UP, TOKENS).seconds
    assert seconds()[1] > 4 * alone[1]


def test_half_the_width_takes_about_half_as_long() -> None:
    half = seconds(GroupedGemm("experts_gate_up", 4096, 768, 128, 8, 1 + 1 / 4096, "fp8"))
    assert 0.45 < half[1] / seconds()[1] < 0.7


def test_other_operators_are_left_to_other_sources() -> None:
    source = DeepGemmExperts(FirstOf((ROOFLINE,)))
    assert source.rows(Gemm("qkv", 4096, 4096, 2.0, "bf16"), TOKENS) is None
    assert source.rows(Elementwise("norm", 8192), TOKENS) is None
    within = source.rows(Elementwise("experts_act", 8192), TOKENS)
    assert within is not None and not within.seconds.any()


def _scenario(model: str, quantization: str | None, backend: str) -> Scenario:
    return scenario_from_dict(
        {
            "model": {"config": model, "quantization": quantization},
            "fleet": {"gpu": "h200", "tp": 1},
            "engine": {"moe_backend": backend},
            "workload": {
                "arrivals": {"kind": "closed", "users": 4},
                "requests": 8,
                "prompt": {"kind": "fixed", "tokens": 64},
                "output": {"kind": "fixed", "tokens": 64},
            },
        },
        source="test",
    )


def test_decodes_of_a_run_are_slower_with_it() -> None:
    tpots = {
        backend: float(np.mean(simulate(_scenario("qwen3-30b-a3b", "fp8_block", backend)).requests["tpot"]))
        for backend in ("auto", "deep_gemm")
    }
    assert tpots["deep_gemm"] > 1.3 * tpots["auto"]


@pytest.mark.parametrize(("model", "quantization"), [("qwen3-30b-a3b", None), ("qwen3-8b", "fp8_block")])
def test_other_models_are_refused(model: str, quantization: str | None) -> None:
    with pytest.raises(UserError, match=r"engine\.moe_backend: deep_gemm is for routed experts with fp8 weights"):
        simulate(_scenario(model, quantization, "deep_gemm"))
