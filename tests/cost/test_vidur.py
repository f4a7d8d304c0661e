"""Profiles in Vidur's and Frontier's CSV files as a source of times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import UserError
from steelyard.cost import FirstOf, Roofline
from steelyard.cost.profiles import open_profile
from steelyard.cost.source import EXTRAPOLATED, MEASURED, CostSource, Curve, Decodes, RowOperator
from steelyard.cost.tabulated import GAP_SECONDS, Tabulated
from steelyard.cost.vidur import read_compute_folder
from steelyard.hardware import find_gpu
from steelyard.model import AttentionOperator, ModelSpec, Recurrence, head_operators, load_model, operators

LAYERS = ("emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm")
MLP = ("mlp_up_proj", "mlp_act", "mlp_down_proj")
WHOLE = ("emb", "input_layernorm", "post_attention_layernorm")  # every rank runs them as they are
LLAMA = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336}
QWEN = {"n_head": 32, "n_kv_head": 4, "n_embd": 2048, "n_expanded_embd": 768}
EXPERTS = {"num_experts": 128, "router_topk": 8, "hidden_dim": 2048, "expert_hidden_dim": 768}
TP = "num_tensor_parallel_workers"

Row = dict[str, Any]


def layer_ms(name: str, tokens: int, tp: int) -> float:
    return (0.01 * len(name) + 0.001 * tokens) / tp


def decode_ms(batch: int, cached: int) -> float:
    return 0.005 + 1e-6 * batch * cached


def prompt_ms(chunk: int, cached: int) -> float:
    return 0.006 + 1e-7 * chunk * (cached + chunk / 2)


def median(operator: str) -> str:
    return f"time_stats.{operator}.median"


def write(path: Path, rows: list[Row]) -> None:
    """A CSV of all the rows' columns; a cell that a row lacks stays empty, as pandas leaves it."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [",".join(str(row.get(column, "")) for column in columns) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(columns), *lines]) + "\n")


def layer_rows(shape: Row, names: tuple[str, ...], *, whole_at_every_degree: bool) -> list[Row]:
    rows = []
    for tp in (1, 2):
        timed = [name for name in names if tp == 1 or whole_at_every_degree or name not in WHOLE]
        for tokens in (1, 16, 128, 512):
            times = {median(name): layer_ms(name, tokens, 1 if name in WHOLE else tp) for name in timed}
            rows.append({**shape, TP: tp, "num_tokens": tokens, **times})
    return rows


def attention_rows(shape: Row) -> list[Row]:
    heads = {"n_q_head": shape["n_head"], "n_kv_head": shape["n_kv_head"], "n_embd": shape["n_embd"], "block_size": 16}
    rows: list[Row] = []
    for tp in (1, 2):
        base = {**heads, TP: tp, median("attn_prefill"): 0.0, median("attn_decode"): 0.0}
        for batch in (1, 8, 64):
            for cached in (16, 1024):
                step = {"batch_size": batch, "prefill_chunk_size": 0, "kv_cache_size": cached, "is_prefill": False}
                times = {median("attn_decode"): decode_ms(batch, cached), median("attn_kv_cache_save"): 0.002}
                rows.append({**base, **step, **times})
        for chunk in (64, 512):
            for cached in (0, 512):
                step = {"batch_size": 1, "prefill_chunk_size": chunk, "kv_cache_size": cached, "is_prefill": True}
                times = {median("attn_prefill"): prompt_ms(chunk, cached), median("attn_kv_cache_save"): 0.004}
                rows.append({**base, **step, **times})
    return rows


@pytest.fixture
def vidur(tmp_path: Path) -> Path:
    """Vidur's layout: data/profiling/compute/DEVICE/MODEL."""
    folder = tmp_path / "compute" / "a100" / "meta-llama" / "Llama-3.1-8B"
    write(folder / "mlp.csv", layer_rows(LLAMA, (*LAYERS, *MLP, "add"), whole_at_every_degree=True))
    write(folder / "attention.csv", attention_rows(LLAMA))
    return folder


@pytest.fixture
def frontier(tmp_path: Path) -> Path:
    """Frontier's layout, with experts, batches of mixed prompts, and kernels timed by themselves."""
    folder = tmp_path / "compute" / "h800" / "qwen3-a3b-30b-moe"
    said = {"profiling_precision": "BF16", "measurement_type": "KERNEL_ONLY"}
    layers = [{**row, **said} for row in layer_rows(QWEN, LAYERS, whole_at_every_degree=False)]
    write(folder / "linear_op_kernel_only.csv", layers)
    write(folder / "linear_op.csv", [{**row, median("attn_pre_proj"): 999.0} for row in layers])
    pure = [{**row, "is_mixed_batch": False, "is_true_mixed_batch": False} for row in attention_rows(QWEN)]
    mixed = [{**row, "is_mixed_batch": True, median("attn_prefill"): 999.0} for row in pure if row["is_prefill"]]
    several = [{**row, "batch_size": 4, median("attn_prefill"): 999.0} for row in pure if row["is_prefill"]]
    write(folder / "attention.csv", [*pure, *mixed, *several])
    experts = []
    for tokens in (1, 64, 256):
        for load, factor in (("uniform", 1.0), ("zipf", 5.0)):
            times = {median("moe_gating_linear"): 0.004, median("moe_gating_routing_topk"): 0.005}
            times |= {median("moe_shuffling"): 0.01, median("moe_grouped_gemm"): factor * (0.1 + 0.001 * tokens)}
            experts.append(
                {**EXPERTS, "expert_parallel_size": 1, TP: 1, "num_tokens": tokens, "load_distribution": load, **times}
            )
    write(folder / "moe.csv", experts)
    return folder


def seconds(source: Tabulated, model: ModelSpec, name: str, at: float, tp: int = 1) -> float:
    found = source.rows(_operator(model, name, tp), np.array([at]))
    assert found is not None
    return float(found.seconds[0])


def _operator(model: ModelSpec, name: str, tp: int) -> RowOperator:
    every = (*operators(model, model.layers[0], tp), *head_operators(model, tp))
    return next(op for op in every if op.name == name and not isinstance(op, AttentionOperator | Recurrence))


def attention_of(model: ModelSpec) -> AttentionOperator:
    return next(op for op in operators(model, model.layers[0]) if isinstance(op, AttentionOperator))


def test_milliseconds_over_tokens_come_under_our_names(vidur: Path) -> None:
    model = load_model("llama-3.1-8b")
    source = read_compute_folder(vidur, model, 1)
    names = {"qkv_proj": "attn_pre_proj", "o_proj": "attn_post_proj", "gate_up_proj": "mlp_up_proj", "act": "mlp_act"}
    names |= {"down_proj": "mlp_down_proj", "embedding": "emb", "input_norm": "input_layernorm", "rope": "attn_rope"}
    for ours, theirs in names.items():
        assert seconds(source, model, ours, 128) == pytest.approx(layer_ms(theirs, 128, 1) * 1e-3 + GAP_SECONDS)
    assert seconds(source, model, "kv_write", 8) == pytest.approx(2e-6 + GAP_SECONDS)
    assert seconds(source, model, "kv_write", 512) == pytest.approx(4e-6 + GAP_SECONDS)


def test_degrees_are_kept_apart(vidur: Path) -> None:
    model = load_model("llama-3.1-8b")
    source = read_compute_folder(vidur, model, 2)
    assert seconds(source, model, "o_proj", 128, 2) == pytest.approx(
        layer_ms("attn_post_proj", 128, 2) * 1e-3 + GAP_SECONDS
    )
    with pytest.raises(UserError, match=rf"mlp\.csv: no timed rows .*{TP} 4\); it has 32, 8, 4096, 14336, 1; "):
        read_compute_folder(vidur, model, 4)


def decodes(source: CostSource, operator: AttentionOperator, requests: int) -> Curve:
    found = source.decode_attention(operator, 2.0)
    assert found is not None
    return found.curve(requests)


def test_attention_is_read_with_each_requests_own_cache(vidur: Path) -> None:
    model = load_model("llama-3.1-8b")
    source = read_compute_folder(vidur, model, 1)
    curve = decodes(source, attention_of(model), 8)
    assert curve.provenance == MEASURED and curve.skew == 0
    assert curve.at(np.array([8 * 1024.0]))[0] == pytest.approx(decode_ms(8, 1024) * 1e-3 + GAP_SECONDS)
    more = decodes(source, attention_of(model), 128)
    assert more.provenance == EXTRAPOLATED
    prefill = source.prefill_attention(attention_of(model), 2.0)
    assert prefill is not None
    assert prefill.seconds([(512, 512)]) == pytest.approx(prompt_ms(512, 512) * 1e-3 + GAP_SECONDS)
    apart = prompt_ms(512, 512) + decode_ms(8, 1024) - prompt_ms(64, 0)
    both = prefill.together([(512, 512)], Decodes(8, 8 * 1024, 1024))
    assert both == pytest.approx(apart * 1e-3 + GAP_SECONDS)
    assert source.decode_attention(attention_of(model), 1.0) is None  # an 8-bit cache was not profiled


def test_what_a_profile_lacks_comes_from_the_next_source(vidur: Path) -> None:
    model = load_model("llama-3.1-8b")
    chain = FirstOf((read_compute_folder(vidur, model, 1), Roofline(find_gpu("a100"))))
    for operator in (*operators(model, model.layers[0]), *head_operators(model)):
        if not isinstance(operator, AttentionOperator | Recurrence):
            chain.rows(operator, np.array([16.0]))
    assert {what for what, by in chain.chosen.items() if by == "roofline"} == {"lm_head", "sampler"}


def test_kernels_by_themselves_are_preferred_and_whole_layers_shared(frontier: Path) -> None:
    model = load_model("qwen3-30b-a3b")
    for tp in (1, 2):
        source = read_compute_folder(frontier, model, tp)
        assert source.name == "Frontier profile of qwen3-a3b-30b-moe"
        assert seconds(source, model, "qkv_proj", 16, tp) == pytest.approx(
            layer_ms("attn_pre_proj", 16, tp) * 1e-3 + GAP_SECONDS
        )
        assert seconds(source, model, "input_norm", 16, tp) == pytest.approx(
            layer_ms("input_layernorm", 16, 1) * 1e-3 + GAP_SECONDS
        )


def test_batches_of_several_prompts_are_left_out(frontier: Path) -> None:
    model = load_model("qwen3-30b-a3b")
    prefill = read_compute_folder(frontier, model, 1).prefill_attention(attention_of(model), 2.0)
    assert prefill is not None
    assert prefill.seconds([(64, 512)]) == pytest.approx(prompt_ms(64, 512) * 1e-3 + GAP_SECONDS)


def test_experts_are_taken_with_even_routing_and_as_one(frontier: Path) -> None:
    model = load_model("qwen3-30b-a3b")
    source = read_compute_folder(frontier, model, 1)
    assert seconds(source, model, "router", 64) == pytest.approx(4e-6 + GAP_SECONDS)
    assert seconds(source, model, "experts_gate_up", 64) == pytest.approx((0.01 + 0.1 + 0.064) * 1e-3 + GAP_SECONDS)
    assert seconds(source, model, "experts_down", 64) == 0.0
    halved = read_compute_folder(frontier, model, 2)  # no such rows: the experts come from the next source
    assert halved.rows(_operator(model, "experts_gate_up", 2), np.array([64.0])) is None
    assert halved.rows(_operator(model, "experts_down", 2), np.array([64.0])) is None


def test_profiles_are_found_by_device_and_model(vidur: Path, frontier: Path) -> None:
    root, llama, qwen = vidur.parents[2], load_model("llama-3.1-8b"), load_model("qwen3-30b-a3b")
    assert open_profile(root, find_gpu("a100"), llama, 1).name == "Vidur profile of Llama-3.1-8B"
    assert open_profile(frontier, find_gpu("h800"), qwen, 1).name.startswith("Frontier")  # whatever it is called
    with pytest.raises(UserError, match="no profile of NVIDIA H100"):
        open_profile(root, find_gpu("h100"), llama, 1)
    with pytest.raises(UserError, match=r"no profile of qwen3-30b-a3b on h800 in it; found h800/qwen3-a3b-30b-moe"):
        open_profile(root, find_gpu("h800"), qwen, 1)


def test_profiles_of_another_model_are_told_by_their_shapes(vidur: Path) -> None:
    with pytest.raises(UserError, match=r"n_head 64, n_kv_head 8, n_embd 8192, .*; it has 32, 8, 4096, 14336, 1"):
        read_compute_folder(vidur, load_model("llama-3.1-70b"), 1)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda text: text.replace("kv_cache_size", "kv"), r"attention\.csv:1: no column kv_cache_size"),
        (lambda text: text.replace(",True", ",False"), r"attention\.csv: no timed rows"),
        (lambda text: text.replace("0.005", "fast", 1), r"attention\.csv:\d+: time_stats.attn_decode.median .*'fast"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(vidur: Path, spoil: Callable[[str], str], complaint: str) -> None:
    path = vidur / "attention.csv"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(UserError, match=complaint):
        read_compute_folder(vidur, load_model("llama-3.1-8b"), 1)
