"""Readers of families with routed experts in some of their layers: GLM-4.5, Llama 4, ERNIE 4.5 and MiniMax-M2."""

from __future__ import annotations

from dataclasses import replace

from steelyard.model.blocks import choices, dense_ffn, grouped_query, index_set, stack
from steelyard.model.config import Config
from steelyard.model.spec import DenseFfn, Layer, MoeFfn


def minimax_m2(config: Config) -> list[Layer]:
    """Sparse in every layer; queries and keys are normed over all heads at once."""
    experts = config.integer("num_local_experts")
    moe = MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("intermediate_size"),
        router_bias=config.flag("use_routing_bias", False),
    )
    attention = replace(grouped_query(config, qk_norm=True), qk_norm_weights="all heads")
    return stack(attention, moe, [None] * config.integer("num_hidden_layers"))


def glm4_moe(config: Config) -> list[Layer]:
    """GLM-4.5 and 4.6: some dense layers, then experts with a shared one; the smaller model has no query norms."""
    declared = config.flag("attention_bias", False)
    attention = grouped_query(config, bias=declared, qk_norm=config.flag("use_qk_norm", False))
    experts, width = config.integer("n_routed_experts"), config.integer("moe_intermediate_size")
    shared = config.integer("n_shared_experts", default=0, least=0)
    moe = MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=width,
        shared_experts=shared,
        shared_intermediate=shared * width,
        router_bias=True,
    )
    first, count = config.integer("first_k_dense_replace", least=0), config.integer("num_hidden_layers")
    return [Layer(attention, moe if index >= first else dense_ffn(config)) for index in range(count)]


def ernie4_5_moe(config: Config) -> list[Layer]:
    """Experts from `moe_layer_start_index` to `moe_layer_end_index`, in every `moe_layer_interval`-th layer."""
    bias, count = config.flag("use_bias", False), config.integer("num_hidden_layers")
    attention = grouped_query(config, bias=bias)
    experts, width = config.integer("moe_num_experts"), config.integer("moe_intermediate_size")
    shared = config.integer("moe_num_shared_experts", default=0, least=0)
    moe = MoeFfn(
        experts=experts,
        top_k=choices(config, "moe_k", experts),
        expert_intermediate=width,
        shared_experts=shared,
        shared_intermediate=shared * width,
        router_bias=True,
    )
    dense = DenseFfn(config.integer("intermediate_size"), bias=bias)
    first, last = config.integer("moe_layer_start_index", default=1, least=0), _last_sparse(config, count)
    every = config.integer("moe_layer_interval", default=1)
    sparse = [first <= index <= last and (index + 1) % every == 0 for index in range(count)]
    return [Layer(attention, moe if each else dense) for each in sparse]


def _last_sparse(config: Config, layers: int) -> int:
    """The last layer that may have experts; -1 is the model's last."""
    last = config.integer("moe_layer_end_index", default=-1, least=-1)
    return layers - 1 if last == -1 else last


def llama4(config: Config) -> list[Layer]:
    """Every fourth layer sees all tokens without rotary positions; the others see chunks of tokens.

    Every `interleave_moe_layer_step`-th layer has experts and a shared one, the others a wider dense block.
    """
    count = config.integer("num_hidden_layers")
    experts, width = config.integer("num_local_experts"), config.integer("intermediate_size")
    moe = MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=width,
        shared_experts=1,
        shared_intermediate=width,
    )
    step = config.integer("interleave_moe_layer_step", default=1)
    sparse = index_set(config, "moe_layers") if config.has("moe_layers") else range(step - 1, count, step)
    chunk = config.integer("attention_chunk_size") if config.has("attention_chunk_size") else None
    normed = config.flag("use_qk_norm", True)
    layers = []
    for index, rotates in enumerate(_rotating(config, count)):
        attention = replace(
            grouped_query(config, qk_norm=normed and rotates),
            qk_norm_weights="none",
            rope=rotates,
            window=chunk if rotates else None,
            chunked=rotates and chunk is not None,
        )
        ffn: DenseFfn | MoeFfn = moe if index in sparse else DenseFfn(config.integer("intermediate_size_mlp"))
        layers.append(Layer(attention, ffn))
    return layers


def _rotating(config: Config, layers: int) -> list[bool]:
    """Which layers have rotary positions: those marked 1 in `no_rope_layers`, as the key is meant."""
    if not config.has("no_rope_layers") or config.get("no_rope_layers") == []:
        interval = config.integer("no_rope_layer_interval", default=4)
        return [(index + 1) % interval != 0 for index in range(layers)]
    marks = config.get("no_rope_layers")
    if not isinstance(marks, list) or len(marks) < layers or any(mark not in (0, 1) for mark in marks):
        raise config.wrong("no_rope_layers", marks, f"{layers} entries, each 1 (rotary) or 0")
    return [mark == 1 for mark in marks[:layers]]
