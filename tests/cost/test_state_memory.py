"""Blocks of models with recurrent layers, as vLLM lays them out: its own log lines, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steelyard import simulate
from steelyard.cost import MemoryPlan, plan_memory
from steelyard.errors import UserError
from steelyard.hardware import find_gpu
from steelyard.model import Layout, ModelSpec, load_model, states
from steelyard.scenario import EngineSpec, scenario_from_dict
from steelyard.sim.prepared import prepare

CATALOG = Path(load_model.__code__.co_filename).parent / "catalog"


def plan(model: str | ModelSpec, layout: int | Layout = 1, role: str = "serve", **engine: Any) -> MemoryPlan:
    spec = load_model(model) if isinstance(model, str) else model
    return plan_memory(spec, find_gpu("h200"), layout, EngineSpec(**engine), role=role)


def with_state_bytes(name: str, size: int) -> ModelSpec:
    model = load_model(name)
    layers = tuple(
        layer if layer.recurrent is None else replace(layer, recurrent=replace(layer.recurrent, state_bytes=size))
        for layer in model.layers
    )
    return replace(model, layers=layers)


def test_nemotron_nano_v2_with_16_bit_states_has_blocks_of_672_tokens() -> None:
    """As vLLM of September 2025 logged for it (its issue 24280)."""
    assert plan(with_state_bytes("nemotron-nano-9b-v2", 2)).block_size == 672


def test_a_qwen3_5_of_9_billion_has_blocks_of_528_tokens_padded_by_0_76_percent(tmp_path: Path) -> None:
    """As vLLM logged in its pull request 37467."""
    data = json.loads((CATALOG / "qwen3.5-27b.json").read_text())
    shape = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16}
    data["text_config"] |= {**shape, "num_key_value_heads": 4, "linear_num_value_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps(data))
    model = load_model(str(tmp_path))
    assert plan(model).block_size == 528
    kept = states(model)
    assert kept is not None
    assert 528 * 2 * 4 * 256 * 2 / kept.bytes_each == pytest.approx(1.0076, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "tp", "block", "groups", "held"),
    [
        ("qwen3-next-80b-a3b", 2, 544, 1, 3),  # 12 layers of attention, 36 recurrent ones
        ("qwen3-next-80b-a3b", 4, 272, 1, 3),  # a copy of a KV head on each GPU, and a quarter of the state
        ("granite-4.0-h-tiny", 1, 400, 1, 9),  # 4 and 36
        ("nemotron-nano-9b-v2", 1, 1312, 1, 7),  # 4 and 27
        ("nemotron-3-nano-30b-a3b", 1, 2096, 1, 4),  # 6 and 23
        ("qwen3.5-397b-a17b", 8, 528, 1, 3),  # 15 and 45
    ],
)
def test_blocks_are_as_large_as_a_state_and_a_request_holds_one_of_each_group(
    name: str, tp: int, block: int, groups: int, held: int
) -> None:
    found = plan(name, tp)
    assert (found.block_size, len(found.windows), found.states) == (block, groups, held)
    kept = states(load_model(name), tp)
    assert kept is not None
    layers = found.block_bytes // _page(name, tp, block)
    assert found.block_bytes % _page(name, tp, block) == 0
    assert layers * kept.bytes_each <= found.block_bytes < layers * kept.bytes_each * (1 + 16 / (block - 16))
    summary = found.summary()
    assert summary["kv_groups"] == groups + held
    assert (summary["state_blocks_per_request"], summary["block_tokens"]) == (held, block)


def _page(name: str, tp: int, block: int) -> int:
    (attention, _), *_ = load_model(name).attentions
    return block * 2 * max(1, attention.kv_heads // tp) * attention.head_dim * 2


def test_larger_blocks_are_kept_and_smaller_ones_raised() -> None:
    assert plan("granite-4.0-h-tiny", block_size=256).block_size == 512  # two of them hold a state
    assert plan("granite-4.0-h-tiny", block_size=32).block_size == 416


def test_sparse_attention_has_blocks_of_64_tokens() -> None:
    assert plan("deepseek-v3.2", 8).block_size == 64
    assert plan("deepseek-v3.2", 8, block_size=128).block_size is None
    assert prepare("deepseek-v3.2", "h200", 8).limits.block_size == 64


def test_a_pipeline_has_the_groups_of_the_whole_model() -> None:
    whole, split = plan("qwen3-next-80b-a3b", 2), plan("qwen3-next-80b-a3b", Layout(tp=2, pp=2))
    assert (split.windows, split.states, split.block_size) == (whole.windows, whole.states, whole.block_size)
    assert 2 * split.block_bytes == whole.block_bytes


def test_states_bound_how_many_requests_run() -> None:
    """Short requests hold one block of tokens and a state of each group, so the pool has room for a quarter as many."""
    found = prepare("qwen3-next-80b-a3b", "h200", 2, {"num_gpu_blocks": 41, "max_num_seqs": 64})
    workload = {"arrivals": {"kind": "burst"}, "requests": 40, "prompt": 50, "output": 20}
    result = simulate(found, workload)
    assert result.steps is not None
    assert max(result.steps["running"].tolist()) == 10
    assert result.summary.prefix_cache.hit_tokens == 0
    assert any("prefix caching is off" in note for note in result.notes)


# --- what is not simulated -------------------------------------------------------------------------------------------

SHORT = {"arrivals": {"kind": "burst"}, "requests": 2, "prompt": 50, "output": 3}


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"enable_prefix_caching": True}, "<dict>: engine.enable_prefix_caching: prefix caching of recurrent state"),
        ({"speculative": {"method": "ngram", "num_tokens": 2, "acceptance": [1]}}, "drafts over the recurrent state"),
        ({"speculative": {"method": "eagle", "num_tokens": 2, "acceptance": [1]}}, "drafts over the recurrent state"),
        ({"scheduler": "sglang"}, "not simulated with scheduler sglang"),
        ({"scheduler": "orca"}, "not simulated with scheduler orca"),
        ({"disable_hybrid_kv_cache_manager": True}, "disable_hybrid_kv_cache_manager"),
        ({"tiers": [{"kind": "host", "size": "64GB", "bandwidth": "50GB/s"}]}, "not simulated with tiers below"),
    ],
)
def test_settings_that_are_not_simulated_are_refused(engine: dict[str, Any], message: str) -> None:
    written = {"model": "granite-4.0-h-tiny", "fleet": {"gpu": "h200"}, "engine": engine, "workload": SHORT}
    with pytest.raises(UserError, match=message):
        simulate(scenario_from_dict(written))


def test_states_do_not_pass_between_pools() -> None:
    pools = [{"name": role, "role": role, "gpu": "h200"} for role in ("prefill", "decode")]
    written = {"model": "granite-4.0-h-tiny", "fleet": {"pools": pools}, "workload": SHORT}
    with pytest.raises(UserError, match="not simulated in a pool of role"):
        simulate(scenario_from_dict(written))


@pytest.mark.parametrize("name", ["granite-4.0-h-tiny", "nemotron-3-nano-30b-a3b", "llama-4-scout", "deepseek-v3.2"])
def test_attention_ffn_units_of_other_layers_are_refused(name: str) -> None:
    pools = [{"name": role, "role": role, "gpu": "h200", "tp": 2} for role in ("attention", "ffn")]
    written = {"model": name, "fleet": {"pools": pools}, "workload": SHORT}
    with pytest.raises(UserError, match="attention/FFN units are simulated for"):
        simulate(scenario_from_dict(written))


def test_a_state_larger_than_any_block_is_refused(tmp_path: Path) -> None:
    data = json.loads((CATALOG / "granite-4.0-h-tiny.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | {"mamba_d_state": 10_000_000}))
    with pytest.raises(UserError, match=r"a recurrent layer's state of .* bytes|does not fit"):
        plan(load_model(str(tmp_path)))
