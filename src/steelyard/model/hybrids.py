"""Readers of families with recurrent layers: Qwen3-Next and Qwen3.5, Nemotron-H, and Granite 4."""

from __future__ import annotations

from dataclasses import replace

from steelyard.model.blocks import choices, dense_ffn, experts_of, grouped_query, head_dim_of, index_set
from steelyard.model.config import Config
from steelyard.model.spec import Attention, DenseFfn, Layer, MoeFfn, Recurrent

_STATE_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
_GATED_DELTA_CHUNK = 64  # tokens, of flash-linear-attention's kernels
_RECURRENT = ("linear_attention", "mamba", "mamba2")  # names of such layers in `layer_types`
_FULL = ("full_attention", "attention")


def qwen3_next(config: Config) -> list[Layer]:
    """Qwen3-Next, and Qwen3.5 with experts: routed ones and a shared one in every layer."""
    experts = experts_of(config)
    moe = MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("moe_intermediate_size"),
        shared_experts=1,
        shared_intermediate=config.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    step = config.integer("decoder_sparse_step", default=1)
    dense = index_set(config, "mlp_only_layers") if config.has("mlp_only_layers") else frozenset()
    count = config.integer("num_hidden_layers")
    sparse = [index not in dense and (index + 1) % step == 0 for index in range(count)]
    return _gated_delta_layers(config, [moe if each else dense_ffn(config) for each in sparse])


def qwen3_5(config: Config) -> list[Layer]:
    """Qwen3.5 without experts."""
    return _gated_delta_layers(config, [dense_ffn(config)] * config.integer("num_hidden_layers"))


def _gated_delta_layers(config: Config, ffns: list[DenseFfn | MoeFfn] | list[DenseFfn]) -> list[Layer]:
    """Gated delta nets, and gated attention in every `full_attention_interval`-th layer."""
    attention = replace(grouped_query(config, qk_norm=True), gated=config.flag("attn_output_gate", True))
    keys, values = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    if values % keys:
        raise config.wrong("linear_num_value_heads", values, f"a multiple of linear_num_key_heads ({keys})")
    recurrent = Recurrent(
        kind="gated_delta",
        heads=values,
        head_dim=config.integer("linear_value_head_dim"),
        state_dim=config.integer("linear_key_head_dim"),
        groups=keys,
        conv=config.integer("linear_conv_kernel_dim"),
        chunk=_GATED_DELTA_CHUNK,
        state_bytes=_state_bytes(config, "mamba_ssm_dtype", 2),
    )
    interval = config.integer("full_attention_interval", default=4)
    full = _layer_types(config, len(ffns)) or [(index + 1) % interval == 0 for index in range(len(ffns))]
    return [_layer(attention if sees else recurrent, ffn) for sees, ffn in zip(full, ffns, strict=True)]


def granite_hybrid(config: Config) -> list[Layer]:
    """Granite 4: Mamba-2 or attention by `layer_types`, then a shared block, and routed experts beside it if there
    are any. Attention has no positions unless `position_embedding_type` is rope."""
    count, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    positions = config.text("position_embedding_type", "nope")
    attention = replace(grouped_query(config, bias=config.flag("attention_bias", False)), rope=positions == "rope")
    heads, inner = config.integer("mamba_n_heads"), config.integer("mamba_expand", default=2) * hidden
    if inner % heads:
        raise config.wrong("mamba_n_heads", heads, f"a divisor of mamba_expand x hidden_size ({inner})")
    recurrent = _mamba2(
        config,
        heads=heads,
        head_dim=inner // heads,
        state_dim=config.integer("mamba_d_state"),
        groups=config.integer("mamba_n_groups", default=1),
        groups_key="mamba_n_groups",
        conv=config.integer("mamba_d_conv", default=4),
        chunk=config.integer("mamba_chunk_size", default=256),
        state_bytes=_state_bytes(config, "mamba_ssm_cache_dtype", 2),
        conv_bias=config.flag("mamba_conv_bias", True),
        bias=config.flag("mamba_proj_bias", False),
    )
    full = _layer_types(config, count) or [False] * count
    ffn = _granite_ffn(config)
    return [_layer(attention if sees else recurrent, ffn) for sees in full]


def _granite_ffn(config: Config) -> DenseFfn | MoeFfn:
    shared = config.integer("shared_intermediate_size")
    experts = config.integer("num_local_experts", default=0, least=0)
    if not experts:
        return DenseFfn(shared)
    return MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("intermediate_size"),
        shared_experts=1,
        shared_intermediate=shared,
    )


def nemotron_h(config: Config) -> list[Layer]:
    """Each layer is one block: Mamba-2 (M), attention without positions (*), a feed-forward block (-) or experts (E).

    Nothing is gated: experts and feed-forward blocks have two matrices.
    """
    blocks: dict[str, Layer] = {}
    for sign in _nemotron_pattern(config):
        if sign not in blocks:
            blocks[sign] = _nemotron_layer(config, sign)
    return [blocks[sign] for sign in _nemotron_pattern(config)]


def _nemotron_layer(config: Config, sign: str) -> Layer:
    if sign == "*":
        return Layer(_nemotron_attention(config), None)
    if sign == "-":
        width = config.integer("intermediate_size")
        return Layer(None, DenseFfn(width, bias=config.flag("mlp_bias", False), gated=False))
    if sign == "E":
        return Layer(None, _nemotron_experts(config))
    recurrent = _mamba2(
        config,
        heads=config.integer("mamba_num_heads"),
        head_dim=config.integer("mamba_head_dim"),
        state_dim=config.integer("ssm_state_size"),
        groups=config.integer("n_groups"),
        groups_key="n_groups",
        conv=config.integer("conv_kernel"),
        chunk=config.integer("chunk_size", default=128),
        state_bytes=_state_bytes(config, "mamba_ssm_cache_dtype", 4),
        conv_bias=config.flag("use_conv_bias", True),
        bias=config.flag("use_bias", False),
    )
    return Layer(None, None, recurrent=recurrent)


def _nemotron_attention(config: Config) -> Attention:
    """Early files call the width of a head `attention_head_dim`."""
    key = "attention_head_dim"
    if config.has(key) and not config.has("head_dim"):
        config = replace(config, data={**config.data, "head_dim": config.integer(key)})
    head_dim_of(config, config.integer("num_attention_heads"))
    return replace(grouped_query(config), rope=False)


def _nemotron_experts(config: Config) -> MoeFfn:
    experts = config.integer("n_routed_experts")
    shared = config.integer("n_shared_experts", default=0, least=0)
    width = config.integer("moe_shared_expert_intermediate_size") if shared else 0
    return MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("moe_intermediate_size"),
        shared_experts=shared,
        shared_intermediate=shared * width,
        router_bias=True,
        gated=False,
        latent=config.integer("moe_latent_size", default=0, least=0),
    )


_NEMOTRON_NAMES = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


def _nemotron_pattern(config: Config) -> str:
    """One sign for each layer: `hybrid_override_pattern`, or what transformers 5 writes in its place."""
    most = 10_000
    if config.has("layers_block_type") and not config.has("hybrid_override_pattern"):
        names = config.get("layers_block_type")
        known = " or ".join(_NEMOTRON_NAMES)
        if not isinstance(names, list) or not 0 < len(names) <= most or any(n not in _NEMOTRON_NAMES for n in names):
            raise config.wrong("layers_block_type", names, f"up to {most:,} names, each {known}")
        return "".join(_NEMOTRON_NAMES[name] for name in names)
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not 0 < len(pattern) <= most or set(pattern) - set("M*-E"):
        raise config.wrong("hybrid_override_pattern", pattern, f"up to {most:,} letters, each M, *, - or E")
    layers = config.integer("num_hidden_layers", default=len(pattern))
    if layers != len(pattern):
        raise config.wrong(
            "num_hidden_layers", layers, f"as many as hybrid_override_pattern has letters ({len(pattern)})"
        )
    return pattern


def _mamba2(
    config: Config,
    *,
    heads: int,
    head_dim: int,
    state_dim: int,
    groups: int,
    groups_key: str,
    conv: int,
    chunk: int,
    state_bytes: int,
    conv_bias: bool,
    bias: bool,
) -> Recurrent:
    if heads % groups:
        raise config.wrong(groups_key, groups, f"a divisor of the {heads} Mamba heads")
    return Recurrent("mamba2", heads, head_dim, state_dim, groups, conv, chunk, state_bytes, conv_bias, bias)


def _state_bytes(config: Config, key: str, otherwise: int) -> int:
    """Bytes of a value of the state, as vLLM keeps it unless told otherwise."""
    if not config.has(key):
        return otherwise
    dtype = config.text(key, "")
    if dtype not in _STATE_DTYPES:
        raise config.wrong(key, dtype, " or ".join(_STATE_DTYPES))
    return _STATE_DTYPES[dtype]


def _layer_types(config: Config, count: int) -> list[bool] | None:
    """Which layers have attention, if the file says; the others are recurrent."""
    if not config.has("layer_types"):
        return None
    types, known = config.get("layer_types"), (*_RECURRENT, *_FULL)
    if not isinstance(types, list) or len(types) != count or any(kind not in known for kind in types):
        raise config.wrong("layer_types", types, f"{count} entries, each {' or '.join(known)}")
    return [kind in _FULL for kind in types]


def _layer(mixer: Attention | Recurrent, ffn: DenseFfn | MoeFfn) -> Layer:
    if isinstance(mixer, Recurrent):
        return Layer(None, ffn, recurrent=mixer)
    return Layer(mixer, ffn)
