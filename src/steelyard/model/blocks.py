"""Blocks that several model families read alike from their config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from steelyard.model.config import Config
from steelyard.model.spec import Attention, DenseFfn, Layer, MoeFfn


def grouped_query(config: Config, *, bias: bool | None = None, qk_norm: bool = False) -> Attention:
    """Grouped-query attention; `bias` None means the file's `attention_bias` says so for q, k, v and o."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    declared = config.flag("attention_bias", False)
    return Attention(
        kind="gqa",
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim_of(config, heads),
        qkv_bias=declared if bias is None else bias,
        o_bias=declared if bias is None else False,
        qk_norm=qk_norm,
    )


def head_dim_of(config: Config, heads: int) -> int:
    """As written, or the hidden size shared out among the heads."""
    hidden = config.integer("hidden_size")
    if not config.has("head_dim") and hidden % heads:
        wanted = f"a multiple of num_attention_heads ({heads}), as there is no head_dim"
        raise config.wrong("hidden_size", hidden, wanted)
    return config.integer("head_dim", default=hidden // heads)


def choices(config: Config, key: str, experts: int) -> int:
    """Experts that a token chooses."""
    top_k = config.integer(key)
    if top_k > experts:
        raise config.wrong(key, top_k, f"at most the number of experts ({experts})")
    return top_k


def windows_of(config: Config, by_rule: Callable[[int], bool]) -> list[int | None]:
    """The sliding window of each layer: from `layer_types` where written, else by the family's rule."""
    count = config.integer("num_hidden_layers")
    if config.has("layer_types"):
        types = config.get("layer_types")
        known = ("sliding_attention", "full_attention")
        if not isinstance(types, list) or len(types) != count or any(kind not in known for kind in types):
            raise config.wrong("layer_types", types, f"{count} entries, each {' or '.join(known)}")
        sliding = [kind == "sliding_attention" for kind in types]
    else:
        sliding = [by_rule(index) for index in range(count)]
    return [config.integer("sliding_window") if slides else None for slides in sliding]


def stack(attention: Attention, ffn: DenseFfn | MoeFfn, windows: list[int | None]) -> list[Layer]:
    """Layers that only differ in their windows."""
    return [Layer(replace(attention, window=window), ffn) for window in windows]


def dense_ffn(config: Config) -> DenseFfn:
    """The feed-forward block that most families have."""
    return DenseFfn(config.integer("intermediate_size"), bias=config.flag("mlp_bias", False))


def experts_of(config: Config) -> int:
    """How many there are to choose from; transformers 5 writes the key that Mixtral always had."""
    return config.integer("num_local_experts" if config.has("num_local_experts") else "num_experts")


def index_set(config: Config, key: str) -> frozenset[int]:
    """Layer numbers, written as a list or as a string with commas between."""
    value = config.get(key)
    try:
        items = [int(item) for item in value.split(",")] if isinstance(value, str) else list(value)
    except (TypeError, ValueError):
        items = [-1]
    if not all(isinstance(item, int) and item >= 0 for item in items):
        raise config.wrong(key, value, "layer numbers from 0, as a list or with commas between")
    return frozenset(items)
