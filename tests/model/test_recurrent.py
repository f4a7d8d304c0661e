"""Models with recurrent, sparse and chunked layers: shapes, shares of GPUs, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.model import (
    AttentionOperator,
    Gemm,
    GroupedGemm,
    Layout,
    MoeFfn,
    Recurrence,
    catalog_names,
    check_layout,
    check_tp,
    head_operators,
    kv_bytes_per_token,
    kv_groups,
    load_model,
    operators,
    parameters,
    stages,
    states,
    weight_bytes,
)

RECURRENT = [name for name in catalog_names() if load_model(name).recurrents]
CATALOG = Path(load_model.__code__.co_filename).parent / "catalog"


def changed(tmp_path: Path, name: str, **changes: Any) -> str:
    data = json.loads((CATALOG / f"{name}.json").read_text())
    inner = data.get("text_config", data)
    inner |= changes
    config = tmp_path / "config.json"
    config.write_text(json.dumps(data))
    return str(config)


def test_there_are_models_of_each_kind() -> None:
    kinds = {recurrent.kind for name in RECURRENT for recurrent, _ in load_model(name).recurrents}
    assert kinds == {"gated_delta", "mamba2"}


# --- state and cache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tp", "layers", "state"),
    [
        # values x keys of each head, and three tokens of what the convolution sees: values and twice the keys
        ("qwen3-next-80b-a3b", 1, 36, 32 * 128 * 128 * 2 + 3 * (32 + 2 * 16) * 128 * 2),
        ("qwen3-next-80b-a3b", 4, 36, 8 * 128 * 128 * 2 + 3 * (8 + 2 * 4) * 128 * 2),
        ("qwen3.5-27b", 1, 48, 48 * 128 * 128 * 4 + 3 * (48 + 2 * 16) * 128 * 2),
        ("nemotron-nano-9b-v2", 1, 27, 128 * 80 * 128 * 4 + 3 * (128 * 80 + 2 * 8 * 128) * 2),
        ("nemotron-nano-9b-v2", 8, 27, 16 * 80 * 128 * 4 + 3 * (16 * 80 + 2 * 128) * 2),
        ("granite-4.0-h-small", 1, 36, 128 * 64 * 128 * 2 + 3 * (128 * 64 + 2 * 128) * 2),
        ("granite-4.0-h-small", 4, 36, 32 * 64 * 128 * 2 + 3 * (32 * 64 + 2 * 128) * 2),  # its one group on all GPUs
    ],
)
def test_state_of_a_request(name: str, tp: int, layers: int, state: int) -> None:
    found = states(load_model(name), tp)
    assert found is not None
    assert (found.layers, found.bytes_each) == (layers, state)


def test_only_layers_of_attention_have_keys_and_values() -> None:
    assert kv_bytes_per_token(load_model("qwen3-next-80b-a3b")) == 12 * 2 * 2 * 256 * 2
    assert kv_bytes_per_token(load_model("nemotron-3-super-120b-a12b")) == 8 * 2 * 2 * 128 * 2
    assert states(load_model("llama-3.1-8b")) is None


def test_sparse_attention_keeps_the_latent_and_a_key_for_the_indexer() -> None:
    model = load_model("deepseek-v3.2")
    assert kv_bytes_per_token(model) == 61 * (576 * 2 + 128 + 4)
    assert kv_bytes_per_token(model, "fp8") == 61 * (656 + 132)  # FlashMLA's 8-bit format: scales, 16-bit rotary part
    assert kv_bytes_per_token(model, tp=8) == kv_bytes_per_token(model)


def test_llama_4_has_chunks_beside_layers_that_see_everything() -> None:
    spans = {(group.window, group.chunked): group.layers for group in kv_groups(load_model("llama-4-scout"))}
    assert spans == {(8192, True): 36, (None, False): 12}


# --- operators -------------------------------------------------------------------------------------------------------

SMALL = {  # norms, biases and convolutions of one layer that are no matrix, written out by hand
    "qwen3-next-80b-a3b": [2 * 2048 + 2 * 32 + 128 + 8192 * 4, 2 * 2048 + 2 * 256],
    "nemotron-3-super-120b-a12b": [4096 + 3 * 128 + 8192 + (8192 + 2048) * 5, 4096 + 512, 4096],
    "granite-4.0-h-small": [2 * 4096 + 3 * 128 + 8192 + (8192 + 256) * 5, 2 * 4096],
    "deepseek-v3.2": [2 * 7168 + 1536 + 512 + 2 * 128, 2 * 7168 + 1536 + 512 + 2 * 128 + 256],
    "llama-4-maverick": [2 * 5120, 2 * 5120, 2 * 5120],
    "olmo-3-32b": [2 * 5120 + 48 * 128, 2 * 5120 + 48 * 128],
    "glm-4.5-air": [2 * 4096 + 112 * 128, 2 * 4096 + 112 * 128 + 128],
    "minimax-m2": [2 * 3072 + 56 * 128 + 256],
    "ernie-4.5-21b-a3b": [2 * 2560, 2 * 2560 + 64],
}


@pytest.mark.parametrize(("name", "small"), SMALL.items())
def test_matrices_multiply_by_every_active_weight(name: str, small: list[int]) -> None:
    model = load_model(name)
    total = sum(op.k * op.n for op in head_operators(model) if isinstance(op, Gemm)) + model.hidden
    for layer, rest in zip(model.layers, small, strict=True):
        total += layer.count * rest
        for op in operators(model, layer):
            if isinstance(op, Gemm):
                total += layer.count * op.k * op.n
            elif isinstance(op, GroupedGemm):
                total += layer.count * op.k * op.n * op.top_k
    padding = (-model.vocab % 64) * model.hidden
    count = parameters(model)
    assert total - padding == (count.active if model.tied_embeddings else count.active_without_embedding)


@pytest.mark.parametrize("name", RECURRENT)
def test_every_recurrent_layer_updates_its_state_once(name: str) -> None:
    model = load_model(name)
    kept = states(model)
    assert kept is not None
    for layer in model.layers:
        found = [op for op in operators(model, layer) if isinstance(op, Recurrence)]
        assert len(found) == (layer.recurrent is not None)
        assert all(op.state_bytes == kept.bytes_each for op in found)
        assert sum(isinstance(op, AttentionOperator) for op in operators(model, layer)) == (layer.attention is not None)


def test_sparse_attention_scores_all_tokens_and_reads_the_best() -> None:
    model = load_model("deepseek-v3.2")
    indexer, sparse = (op for op in operators(model, model.layers[0], 8) if isinstance(op, AttentionOperator))
    assert (indexer.attention, sparse.attention) == ("indexer", "sparse")
    assert (indexer.window, sparse.window) == (None, 2048)
    assert indexer.decode.heads == 64  # whole on every GPU
    assert sparse.prefill == sparse.decode and sparse.decode.heads == 16
    assert indexer.value_bytes is not None and indexer.kv_elements * indexer.value_bytes == 132


def test_gated_attention_projects_its_gate_with_the_queries() -> None:
    model = load_model("qwen3-next-80b-a3b")
    layer = next(layer for layer in model.layers if layer.attention is not None)
    found = {op.name: op for op in operators(model, layer)}
    qkv = found["qkv_proj"]
    assert isinstance(qkv, Gemm) and qkv.n == 2 * 16 * 256 + 2 * 2 * 256
    assert "attention_gate" in found


def test_layers_without_positions_do_not_rotate() -> None:
    scout = load_model("llama-4-scout")
    rotate = {
        layer.attention.window: "rope" in {op.name for op in operators(scout, layer)}
        for layer in scout.layers
        if layer.attention is not None
    }
    assert rotate == {8192: True, None: False}
    for name in ("nemotron-nano-9b-v2", "granite-4.0-h-tiny"):
        model = load_model(name)
        assert not any(op.name == "rope" for layer in model.layers for op in operators(model, layer))


def test_experts_without_a_gate_are_told_apart() -> None:
    """Tables measured for gated experts must not answer for them."""
    model = load_model("nemotron-3-nano-30b-a3b")
    (layer,) = (layer for layer in model.layers if isinstance(layer.ffn, MoeFfn))
    found = [op for op in operators(model, layer) if "experts" in op.name]
    assert found and all(op.name.startswith("plain_") for op in found)
    assert [(op.k, op.n, op.gated) for op in found if isinstance(op, GroupedGemm)] == [
        (2688, 1856, False),
        (1856, 2688, False),
    ]


def test_latent_experts_see_the_latent() -> None:
    model = load_model("nemotron-3-super-120b-a12b")
    (layer,) = (layer for layer in model.layers if isinstance(layer.ffn, MoeFfn))
    found = operators(model, layer, Layout(tp=2, dp=2, expert_parallel=True))
    assert [op.k for op in found if isinstance(op, GroupedGemm)] == [1024, 2688]
    names = [op.name for op in found]
    assert names.index("latent_down") < names.index("dispatch") < names.index("combine") < names.index("latent_up")


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECURRENT)
def test_shards_hold_the_model_and_what_is_replicated(name: str) -> None:
    """Two GPUs hold every matrix once, but for norms, routers and Mamba-2's only group."""
    model = load_model(name)
    both, one = 2 * weight_bytes(model, tp=2), weight_bytes(model)
    assert one < both < 1.02 * one


@pytest.mark.parametrize(
    ("name", "tp", "message"),
    [
        ("qwen3-next-80b-a3b", 32, "16 key heads of recurrent layers cannot be split 32 ways"),
        ("qwen3.5-27b", 16, "24 attention heads cannot be split 16 ways"),
        ("nemotron-h-56b", 16, "8 state groups cannot be split 16 ways"),
        ("granite-4.0-h-tiny", 8, "48 heads|12 attention heads cannot be split 8 ways"),
        ("llama-4-scout", 16, "40 attention heads cannot be split 16 ways"),
    ],
)
def test_splits_that_cannot_be_are_refused(name: str, tp: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_tp(load_model(name), tp)


def test_heads_of_the_state_must_be_split_evenly(tmp_path: Path) -> None:
    config = changed(tmp_path, "qwen3-next-80b-a3b", linear_num_key_heads=2, linear_num_value_heads=6)
    with pytest.raises(UserError, match="6 heads with a recurrent state cannot be split 4 ways"):
        check_tp(load_model(config), 4)
    config = changed(tmp_path, "qwen3-next-80b-a3b", linear_num_key_heads=2, linear_num_value_heads=8)
    with pytest.raises(UserError, match="2 key heads of recurrent layers cannot be split 4 ways"):
        check_tp(load_model(config), 4)


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "deepseek-v3.2"])
def test_cached_tokens_are_not_split(name: str) -> None:
    with pytest.raises(UserError, match="not simulated"):
        check_layout(load_model(name), Layout(tp=8, dcp=2))


@pytest.mark.parametrize("name", [*RECURRENT, "llama-4-maverick", "ernie-4.5-300b-a47b"])
@pytest.mark.parametrize("pp", [2, 4])
def test_stages_have_the_layers_of_the_model_in_order(name: str, pp: int) -> None:
    model = load_model(name)
    counted: dict[object, int] = {}
    for stage in stages(model, Layout(pp=pp)):
        for layer in stage.model.layers:
            kind = replace(layer, count=1)
            counted[kind] = counted.get(kind, 0) + layer.count
    assert counted == {replace(layer, count=1): layer.count for layer in model.layers}
    in_order = [replace(model.layers[kind], count=1) for kind in model.order]
    first, *_ = stages(model, Layout(pp=pp))
    assert {replace(layer, count=1) for layer in first.model.layers} == set(in_order[: first.model.num_layers])


def test_nemotron_layers_are_single_blocks() -> None:
    model = load_model("nemotron-nano-9b-v2")
    assert model.num_layers == 56 and len(model.order) == 56
    assert all(layer.blocks == 1 for layer in model.layers)
    assert {layer.count for layer in model.layers} == {27, 25, 4}
    assert not any(layer.sandwich_norms for layer in model.layers)


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "qwen3-next-80b-a3b",
            {"linear_num_value_heads": 24},
            r"linear_num_value_heads: found 24, .*multiple of .*\(16\)",
        ),
        ("qwen3-next-80b-a3b", {"linear_num_key_heads": 0}, "linear_num_key_heads: found 0"),
        ("qwen3-next-80b-a3b", {"layer_types": ["full_attention"]}, "layer_types: .*48 entries"),
        ("qwen3.5-27b", {"mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype: found 'int8', expected float32"),
        ("qwen3.5-35b-a3b", {"num_experts_per_tok": 257}, "num_experts_per_tok: found 257"),
        ("nemotron-nano-9b-v2", {"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern: .*letters, each M"),
        ("nemotron-nano-9b-v2", {"hybrid_override_pattern": ""}, "hybrid_override_pattern"),
        ("nemotron-nano-9b-v2", {"num_hidden_layers": 57}, "num_hidden_layers: found 57, .*56"),
        ("nemotron-nano-9b-v2", {"n_groups": 3}, "n_groups: found 3, expected a divisor of the 128 Mamba heads"),
        ("granite-4.0-h-tiny", {"mamba_n_heads": 47}, "mamba_n_heads: found 47, expected a divisor of .*3072"),
        ("granite-4.0-h-tiny", {"layer_types": ["mamba", "rnn"]}, "layer_types: .*40 entries"),
        ("deepseek-v3.2", {"index_head_dim": 100}, "index_head_dim: found 100, expected a multiple of 128"),
        ("deepseek-v3.2", {"index_topk": 0}, "index_topk: found 0"),
        ("llama-4-scout", {"no_rope_layers": [1, 0, 2]}, "no_rope_layers: .*48 entries"),
        ("llama-4-scout", {"attention_chunk_size": 0}, "attention_chunk_size: found 0"),
        ("ernie-4.5-21b-a3b", {"moe_k": 65}, "moe_k: found 65"),
        ("glm-4.5-air", {"first_k_dense_replace": -1}, "first_k_dense_replace: found -1"),
        ("olmo-3-7b", {"layer_types": []}, "layer_types: .*32 entries"),
    ],
)
def test_wrong_configs_are_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_model(changed(tmp_path, name, **changes))


def test_nemotron_is_read_as_transformers_5_writes_it(tmp_path: Path) -> None:
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    data = json.loads((CATALOG / "nemotron-3-nano-30b-a3b.json").read_text())
    kinds = [names[sign] for sign in data["hybrid_override_pattern"]]
    config = changed(tmp_path, "nemotron-3-nano-30b-a3b", hybrid_override_pattern=None, layers_block_type=kinds)
    assert replace(load_model(config), name="") == replace(load_model("nemotron-3-nano-30b-a3b"), name="")
