"""Expert parallelism from the silicon tables: made-up tables with a known law, and the installed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard.cost.silicon import find_silicon
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED
from steelyard.hardware import topology_of
from steelyard.model import Elementwise, GroupedGemm, Layout, Routing, load_model, operators
from support.silicon_tables import H200, needs_package, seconds, silicon, write

START = 20e-6
RANKS = 8
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
ROWS = np.array([float(n) for n in TOKENS])
EVEN, SKEWED = Routing(), Routing(exponent=0.8)


def gate_up(routing: Routing = EVEN, **layout: Any) -> GroupedGemm:
    """Qwen3-30B-A3B's experts on one of eight GPUs."""
    model = load_model("qwen3-30b-a3b")
    wanted = Layout(**({"dp": RANKS, "expert_parallel": True} | layout))
    found = [op for op in operators(model, model.layers[0], wanted, routing) if op.name == "experts_gate_up"]
    assert isinstance(found[0], GroupedGemm)
    return found[0]


def ideal(tokens: float, visits: float, touched: float, width: int = 768) -> float:
    """By hand: 2 flops to a weight and visit, 2 bytes to a weight touched; 7 of 8 choices pass by in 16 bits."""
    weights = 3 * 2048 * width
    worked = max(2 * visits * weights / H200.peak("bf16"), 2 * touched * weights / H200.memory_bandwidth)
    return worked + 7 * tokens * (5 * width + 2 * 2048) * 2 / H200.memory_bandwidth


def lawful(
    ep: int = RANKS, way: str = "balanced", dtype: str = "bfloat16", start: float = START
) -> list[dict[str, Any]]:
    """A table of an engine that takes START and then works at the roofline; one choice of eight falls to each GPU."""
    shape = {"moe_dtype": dtype, "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128}
    where = {"moe_tp_size": 1, "moe_ep_size": ep, "distribution": way}
    return [shape | where | {"num_tokens": n, "latency": 1e3 * (start + ideal(n, n, min(n, 16)))} for n in TOKENS]


@pytest.mark.parametrize("routing", [EVEN, SKEWED])
@pytest.mark.parametrize("layout", [{}, {"dp": 1, "tp": RANKS}])
def test_a_load_is_carried_over_from_the_even_one_that_was_timed(
    tmp_path: Path, routing: Routing, layout: dict[str, int]
) -> None:
    """The start stays as it is, and work grows and shrinks with what the busiest GPU has to do."""
    write(tmp_path, "moe/vllm/0.24.0/moe_perf", [*lawful(), *lawful(1, "power_law_1.01", start=1.0)])
    gemm = gate_up(routing, **layout)
    loads = zip(TOKENS, gemm.visits(ROWS), gemm.touched(ROWS), strict=True)
    expected = [START + ideal(*load) for load in loads]
    found = silicon(tmp_path).rows(gemm, ROWS)
    assert found is not None
    assert found.seconds == pytest.approx(expected, rel=1e-9)
    assert set(found.provenance.tolist()) == {EXTRAPOLATED if routing.exponent else INTERPOLATED}
    assert seconds(silicon(tmp_path), gemm, np.zeros(1)).tolist() == [0.0]


def test_what_passes_by_is_in_the_tables_time_if_they_have_such_rows(tmp_path: Path) -> None:
    passed = Elementwise("experts_elsewhere", 4096, per="pooled")
    without, within = silicon(tmp_path / "without"), silicon(tmp_path / "within")
    write(tmp_path / "without", "moe/vllm/0.24.0/moe_perf", lawful(1, "power_law_1.01"))
    write(tmp_path / "within", "moe/vllm/0.24.0/moe_perf", lawful())
    assert without.rows(passed, ROWS) is None
    assert seconds(within, passed, ROWS).tolist() == [0.0] * len(ROWS)
    assert without.rows(gate_up(), ROWS) is not None  # less exactly: from whole layers, without what passes by


def test_tokens_that_are_sent_to_their_experts_pass_nobody_by(tmp_path: Path) -> None:
    """DeepEP's kernels see no others, so that rows of gathered tokens are of no use for them."""
    write(tmp_path, "moe/vllm/0.24.0/moe_perf", [*lawful(start=1.0), *lawful(1, "power_law_1.01")])
    sent = gate_up(all2all="deepep_low_latency")
    assert not sent.elsewhere and gate_up().elsewhere == pytest.approx(7.0)
    assert seconds(silicon(tmp_path), sent, ROWS).max() < 0.1 < seconds(silicon(tmp_path), gate_up(), ROWS).min()


def test_another_layer_is_carried_over_from_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "moe/vllm/0.24.0/moe_perf", [*lawful(), *lawful(64, start=1.0)])
    wider = replace(gate_up(), n=4 * 768)
    found = silicon(tmp_path).rows(wider, ROWS)
    assert found is not None and set(found.provenance.tolist()) == {EXTRAPOLATED}
    loads = zip(TOKENS, wider.visits(ROWS), wider.touched(ROWS), strict=True)
    assert found.seconds == pytest.approx([START + ideal(*load, width=1536) for load in loads], rel=1e-9)


def test_weights_of_another_type_are_not_taken_for_these(tmp_path: Path) -> None:
    write(tmp_path, "moe/vllm/0.24.0/moe_perf", lawful(dtype="fp8"))
    assert silicon(tmp_path).rows(gate_up(), ROWS) is None


@needs_package
@pytest.mark.parametrize(("ranks", "microseconds"), [(2, (188.0, 297.3)), (8, (79.8, 171.1)), (32, (55.6, 147.3))])
def test_the_installed_tables_answer_for_dealt_experts(ranks: int, microseconds: tuple[float, float]) -> None:
    """vLLM 0.24's own rows at 128 and 2,048 tokens, where chance makes no GPU much busier than others."""
    source = find_silicon(H200, topology_of(H200))
    assert source is not None
    found = source.rows(gate_up(dp=ranks), np.array([128.0, 2048.0]))
    assert found is not None and found.seconds == pytest.approx(np.array(microseconds) * 1e-6, rel=0.01)
    assert source.used["experts"] == "vllm 0.24.0"
    assert source.rows(Elementwise("experts_elsewhere", 4096, per="pooled"), ROWS) is not None
