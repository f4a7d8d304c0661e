"""The model room: published sizes, and laws that tie sizes, sharding and operators together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.model import (
    AttentionOperator,
    AttentionShape,
    Collective,
    DenseFfn,
    Elementwise,
    Gemm,
    GroupedGemm,
    ModelSpec,
    MoeFfn,
    Recurrence,
    catalog_names,
    check_tp,
    head_operators,
    kv_bytes_per_token,
    kv_groups,
    load_model,
    model_names,
    operators,
    parameters,
    serve_as,
    weight_bytes,
)
from support.paths import SHARED

CAPTURES = SHARED / "h200-vllm-0.26"
GIB = 2**30

# Parameter totals as published with the checkpoints (text part, without MTP layers).
PUBLISHED_TOTAL = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "phi-3-mini": 3_821_079_552,
}


@pytest.mark.parametrize(("name", "total"), PUBLISHED_TOTAL.items())
def test_total_parameters_are_the_published_ones(name: str, total: int) -> None:
    assert parameters(load_model(name)).total == total


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.2), ("qwen3-30b-a3b", 3.35), ("qwen3-235b-a22b", 22.2)],
)
def test_active_parameters_with_the_embedding(name: str, billions: float) -> None:
    assert parameters(load_model(name)).active / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61), ("step3", 37.9)])
def test_active_parameters_without_the_embedding(name: str, billions: float) -> None:
    assert parameters(load_model(name)).active_without_embedding / 1e9 == pytest.approx(billions, abs=0.05)


def test_deepseek_v3_is_37b_active_and_counts_mtp_apart() -> None:
    count = parameters(load_model("deepseek-v3"))
    assert count.active_without_embedding < 37e9 < count.active < 38e9
    # The released 685B checkpoint repeats embedding and head inside the MTP layer.
    repeated = 2 * 7168 * 129280
    assert (count.total + count.mtp + repeated) / 1e9 == pytest.approx(684.5, abs=0.1)


def test_dense_models_use_all_their_parameters() -> None:
    count = parameters(load_model("llama-3.1-8b"))
    assert count.active == count.total
    assert count.total - count.active_without_embedding == 128256 * 4096


def test_step3_text_is_316b() -> None:
    assert parameters(load_model("step3")).total / 1e9 == pytest.approx(316, abs=0.5)


@pytest.mark.parametrize("name", catalog_names())
def test_every_catalog_model_has_sizes_and_operators(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert model_names()[name]
    assert kv_bytes_per_token(model) > 0
    assert all(operators(model, layer) for layer in model.layers)
    assert parameters(model).active <= parameters(model).total


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3.1-8b", 131072),
        ("qwen3-30b-a3b", 98304),
        ("deepseek-v3", 61 * 576 * 2),
        ("gpt-oss-20b", 24 * 2 * 8 * 64 * 2),
        ("gpt-oss-120b", 36 * 2 * 8 * 64 * 2),
        ("step3", 61 * 2 * 256 * 2),
        ("qwen2.5-7b", 57344),
    ],
)
def test_kv_bytes_per_token(name: str, per_token: int) -> None:
    model = load_model(name)
    assert kv_bytes_per_token(model) == per_token
    assert kv_bytes_per_token(model, "fp8") == per_token // 2


def test_kv_is_split_over_gpus_until_heads_run_out() -> None:
    model = load_model("qwen3-30b-a3b")
    assert [kv_bytes_per_token(model, tp=tp) for tp in (1, 2, 4)] == [98304, 49152, 24576]
    one_head = 48 * 2 * 128 * 2
    assert kv_bytes_per_token(model, tp=8) == kv_bytes_per_token(model, tp=4) == one_head


def test_mla_cache_is_whole_on_every_gpu() -> None:
    model = load_model("deepseek-v3")
    assert kv_bytes_per_token(model, tp=8) == kv_bytes_per_token(model, tp=1) == 70272


@pytest.mark.parametrize(
    ("name", "spans"),
    [
        ("gpt-oss-120b", {128: 18, None: 18}),
        ("gemma-2-9b", {4096: 21, None: 21}),
        ("gemma-3-27b", {1024: 52, None: 10}),
        ("mistral-7b-v0.1", {4096: 32}),
        ("mistral-7b", {None: 32}),
    ],
)
def test_sliding_and_full_layers_are_apart(name: str, spans: dict[int | None, int]) -> None:
    model = load_model(name)
    groups = kv_groups(model)
    assert {group.window: group.layers for group in groups} == spans
    assert sum(group.bytes_per_token for group in groups) == kv_bytes_per_token(model)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("deepseek-v3", [(DenseFfn, 3), (MoeFfn, 58)]),
        ("deepseek-v2-lite", [(DenseFfn, 1), (MoeFfn, 26)]),
        ("step3", [(DenseFfn, 5), (MoeFfn, 56)]),
        ("qwen3-30b-a3b", [(MoeFfn, 48)]),
        ("llama-3.1-8b", [(DenseFfn, 32)]),
    ],
)
def test_layers_are_kinds_with_counts(name: str, kinds: list[tuple[type, int]]) -> None:
    assert [(type(layer.ffn), layer.count) for layer in load_model(name).layers] == kinds


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "gemma-2-9b", "deepseek-v2"])
def test_16_bit_weights_take_two_bytes_each(name: str) -> None:
    model = load_model(name)
    assert weight_bytes(model) == 2 * parameters(model).total


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_mxfp4_checkpoints_have_their_published_size(name: str, gib: float) -> None:
    assert weight_bytes(load_model(name)) / GIB == pytest.approx(gib, abs=0.05)


def test_fp8_halves_what_it_covers_and_leaves_tables_alone() -> None:
    model = load_model("llama-3.1-8b")
    count = parameters(model)
    tables_and_norms = 2 * 128256 * 4096 + 65 * 4096
    assert weight_bytes(model, dtype="fp8") == count.total + tables_and_norms


def test_int4_is_about_a_quarter() -> None:
    model = load_model("llama-3.1-70b")
    ratio = weight_bytes(serve_as(model, quantization="int4")) / weight_bytes(model)
    assert 0.25 < ratio < 0.31


def test_quantised_mla_keeps_a_16_bit_copy_of_its_up_projection() -> None:
    model = load_model("deepseek-v3")
    up_projection = 61 * 512 * 128 * (128 + 128)
    not_fp8 = 2 * 129280 * 7168 + 58 * 7168 * 256 + up_projection
    assert weight_bytes(model) == pytest.approx(parameters(model).total + not_fp8 + up_projection, rel=1e-3)
    assert 80e9 < weight_bytes(model, tp=8) < 90e9


DIVIDES = {"llama-3.1-8b": 8, "llama-3.1-70b": 8, "qwen2.5-7b": 4, "qwen3-32b": 8, "gemma-2-27b": 16}


@given(st.sampled_from(sorted(DIVIDES)), st.sampled_from([2, 4, 8, 16]))
def test_shards_sum_to_the_model_plus_replicated_norms(name: str, tp: int) -> None:
    if tp > DIVIDES[name]:
        return
    model = load_model(name)
    norms = (4 if name.startswith("gemma") else 2) * model.num_layers + 1
    replicated = norms * model.hidden
    if model.attentions[0][0].qk_norm:
        replicated += 2 * 128 * model.num_layers
    assert tp * weight_bytes(model, tp=tp) == weight_bytes(model) + (tp - 1) * replicated * 2


def test_replicated_kv_heads_cost_weights() -> None:
    model = load_model("llama-3.1-8b")
    extra = 16 * weight_bytes(model, tp=16) - weight_bytes(model)
    norms = 15 * 65 * 4096 * 2
    second_copy_of_kv = 32 * 2 * 8 * 128 * 4096 * 2
    assert extra == norms + second_copy_of_kv


# --- operators -----------------------------------------------------------------------------------


def _multiplied(model: ModelSpec, tp: int = 1) -> int:
    """Weights one token (and its sampled row) is multiplied by, from the operator list alone."""
    total = 0
    for layer in model.layers:
        for op in operators(model, layer, tp):
            if isinstance(op, Gemm):
                total += layer.count * op.k * op.n
            elif isinstance(op, GroupedGemm):
                total += layer.count * op.k * op.n * op.top_k
    return total + sum(op.k * op.n for op in head_operators(model, tp) if isinstance(op, Gemm))


SMALL_PER_LAYER = {  # norms and biases of one layer, written out by hand
    "llama-3.1-8b": 2 * 4096,
    "llama-3.2-1b": 2 * 2048,
    "qwen2.5-7b": 2 * 3584 + (28 + 2 * 4) * 128,
    "qwen3-8b": 2 * 4096 + 2 * 128,
    "gemma-2-9b": 4 * 3584,
    "mixtral-8x7b": 2 * 4096,
    "qwen3-30b-a3b": 2 * 2048 + 2 * 128,
    "gpt-oss-20b": 2 * 2880 + 5120 + 2880 + 64 + 32 + 4 * (2 * 2880 + 2880),
    "deepseek-v2-lite": 2 * 2048 + 512,
}


@pytest.mark.parametrize(("name", "small"), SMALL_PER_LAYER.items())
def test_gemms_multiply_by_every_active_weight(name: str, small: int) -> None:
    model = load_model(name)
    rest = small * model.num_layers + model.hidden
    assert _multiplied(model) == parameters(model).active_without_embedding - rest


@pytest.mark.parametrize(("name", "tp"), [("llama-3.1-8b", 8), ("qwen3-32b", 4), ("gemma-2-27b", 2)])
def test_tensor_parallel_gemms_share_the_work(name: str, tp: int) -> None:
    model = load_model(name)
    assert tp * _multiplied(model, tp) == _multiplied(model)


def _named(model: ModelSpec, tp: int = 1, kind: int = 0) -> list[str]:
    return [op.name for op in operators(model, model.layers[kind], tp)]


def test_operators_are_fused_and_ordered_as_vllm_runs_them() -> None:
    assert _named(load_model("llama-3.1-8b")) == [
        "input_norm",
        "qkv_proj",
        "rope",
        "kv_write",
        "attention",
        "o_proj",
        "post_norm",
        "gate_up_proj",
        "act",
        "down_proj",
    ]
    assert [op.name for op in head_operators(load_model("llama-3.1-8b"))] == [
        "embedding",
        "final_norm",
        "lm_head",
        "sampler",
    ]


def test_only_the_head_runs_per_sequence() -> None:
    model = load_model("llama-3.1-8b")
    per = {
        op.name: op.per
        for op in head_operators(model, 2)
        if not isinstance(op, AttentionOperator | GroupedGemm | Recurrence)
    }
    assert {name for name, unit in per.items() if unit == "sequence"} == {
        "lm_head",
        "logits_gather",
        "sampler",
    }


def test_two_allreduces_per_layer_only_under_tensor_parallelism() -> None:
    model = load_model("qwen3-30b-a3b")
    alone = [op for op in operators(model, model.layers[0], 1) if isinstance(op, Collective)]
    split = [op for op in operators(model, model.layers[0], 2) if isinstance(op, Collective)]
    assert alone == []
    assert [(op.kind, op.bytes) for op in split] == [("allreduce", 2048 * 2)] * 2


def test_llama_shapes_under_tensor_parallelism() -> None:
    model = load_model("llama-3.1-8b")
    gemms = {op.name: (op.k, op.n) for op in operators(model, model.layers[0], 2) if isinstance(op, Gemm)}
    assert gemms == {
        "qkv_proj": (4096, (16 + 2 * 4) * 128),
        "o_proj": (2048, 4096),
        "gate_up_proj": (4096, 14336),
        "down_proj": (7168, 4096),
    }


def test_experts_are_grouped_gemms() -> None:
    model = load_model("qwen3-30b-a3b")
    grouped = [op for op in operators(model, model.layers[0], 2) if isinstance(op, GroupedGemm)]
    assert [(op.name, op.k, op.n, op.experts, op.top_k) for op in grouped] == [
        ("experts_gate_up", 2048, 768, 128, 8),
        ("experts_down", 384, 2048, 128, 8),
    ]


def test_mla_prefills_by_head_and_decodes_over_the_latent() -> None:
    model = load_model("deepseek-v3")
    names = _named(model, tp=8, kind=1)
    first = ["input_norm", "qkv_a_proj", "latent_norm", "q_b_proj", "kv_b_proj", "rope"]
    assert names[: len(first)] == first
    assert {"shared_gate_up", "shared_down", "experts_gate_up", "router"} <= set(names)
    (attention,) = [op for op in operators(model, model.layers[0], 8) if isinstance(op, AttentionOperator)]
    assert attention.prefill == AttentionShape(16, 16, 192, 128)
    assert attention.decode == AttentionShape(16, 1, 576, 512)
    assert attention.kv_elements == 576
    assert attention.decode.flops_per_pair == 2 * 16 * (576 + 512)


def test_quantised_gemms_say_how_they_are_stored_and_multiplied() -> None:
    deepseek = load_model("deepseek-v3")
    by_name = {op.name: op for op in operators(deepseek, deepseek.layers[1]) if isinstance(op, Gemm)}
    assert by_name["o_proj"].compute == "fp8"
    assert by_name["o_proj"].weight_bytes == pytest.approx(1.0, abs=1e-3)
    assert (by_name["router"].weight_bytes, by_name["router"].compute) == (2.0, "bf16")
    oss = load_model("gpt-oss-120b")
    ops = operators(oss, oss.layers[0])
    assert {op.weight_bytes for op in ops if isinstance(op, Gemm)} == {2.0}
    assert {(op.weight_bytes, op.compute) for op in ops if isinstance(op, GroupedGemm)} == {(0.53125, "bf16")}


def test_elementwise_traffic_is_counted_in_bytes() -> None:
    model = load_model("llama-3.1-8b")
    traffic = {op.name: op.bytes for op in operators(model, model.layers[0]) if isinstance(op, Elementwise)}
    assert traffic["input_norm"] == 4 * 4096 * 2
    assert traffic["act"] == 3 * 14336 * 2
    assert traffic["kv_write"] == 2 * 2 * 8 * 128 * 2


# --- tensor parallelism --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tp", "why"),
    [
        ("llama-3.1-8b", 3, "32 attention heads"),
        ("qwen2.5-7b", 8, "28 attention heads"),
        ("phi-4", 4, "10 KV heads"),
        ("llama-3.1-8b", 0, "at least 1"),
    ],
)
def test_a_tp_that_does_not_divide_is_refused_with_the_ones_that_do(name: str, tp: int, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        check_tp(load_model(name), tp)
    assert "tp can be 1, 2" in str(caught.value)


def test_a_tp_that_cuts_quantisation_blocks_is_refused() -> None:
    model = load_model("deepseek-v3")
    check_tp(model, 16)
    with pytest.raises(UserError, match="128-wide quantisation blocks"):
        check_tp(model, 32)
    check_tp(serve_as(model, quantization="none"), 32)


def test_more_gpus_than_kv_heads_replicates_them() -> None:
    check_tp(load_model("qwen3-30b-a3b"), 8)
    check_tp(load_model("step3"), 8)


# --- the captured configs ------------------------------------------------------------------------


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures of ../shared/data are not here")
@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("llama-3.1-8b-server", "llama-3.1-8b"),
        ("qwen3-30b-a3b", "qwen3-30b-a3b"),
    ],
)
def test_captured_configs_read_as_their_catalog_models(folder: str, name: str) -> None:
    captured = load_model(str(CAPTURES / folder))
    assert captured.name == folder
    assert replace(captured, name=name) == load_model(name)
