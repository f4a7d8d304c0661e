"""One reader per model family: from its Hugging Face keys to a list of layers.

A reader returns one `Layer` per decoder layer, in order. Defaults appear only where published
config files leave a key out and Hugging Face's own configuration class fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from steelyard.model.config import Config
from steelyard.model.spec import Attention, DenseFfn, Layer, MoeFfn


@dataclass(frozen=True)
class Family:
    """How one `model_type` is recognised and read."""

    model_type: str
    architecture: str
    layers: Callable[[Config], list[Layer]]
    tied_default: bool = False
    vocab_default: int | None = None
    position_default: int | None = None
    position_key: str = "max_position_embeddings"


def _gqa(config: Config, *, bias: bool | None = None, qk_norm: bool = False) -> Attention:
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
        head_dim=_head_dim(config, heads),
        qkv_bias=declared if bias is None else bias,
        o_bias=declared if bias is None else False,
        qk_norm=qk_norm,
    )


def _head_dim(config: Config, heads: int) -> int:
    """As written, or the hidden size shared out among the heads."""
    hidden = config.integer("hidden_size")
    if not config.has("head_dim") and hidden % heads:
        wanted = f"a multiple of num_attention_heads ({heads}), as there is no head_dim"
        raise config.wrong("hidden_size", hidden, wanted)
    return config.integer("head_dim", default=hidden // heads)


def _choices(config: Config, key: str, experts: int) -> int:
    """Experts that a token chooses."""
    top_k = config.integer(key)
    if top_k > experts:
        raise config.wrong(key, top_k, f"at most the number of experts ({experts})")
    return top_k


def _windows(config: Config, by_rule: Callable[[int], bool]) -> list[int | None]:
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


def _stack(attention: Attention, ffn: DenseFfn | MoeFfn, windows: list[int | None]) -> list[Layer]:
    return [Layer(replace(attention, window=window), ffn) for window in windows]


def _dense(config: Config) -> DenseFfn:
    return DenseFfn(config.integer("intermediate_size"), bias=config.flag("mlp_bias", False))


def llama(config: Config) -> list[Layer]:
    return _stack(_gqa(config), _dense(config), [None] * config.integer("num_hidden_layers"))


def mistral(config: Config) -> list[Layer]:
    """Mistral and Phi-3: like Llama, with a window over all layers when `sliding_window` is set."""
    windows = _windows(config, lambda index: config.has("sliding_window"))
    return _stack(_gqa(config), _dense(config), windows)


def mixtral(config: Config) -> list[Layer]:
    experts = config.integer("num_local_experts")
    ffn = MoeFfn(
        experts=experts,
        top_k=_choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("intermediate_size"),
    )
    windows = _windows(config, lambda index: config.has("sliding_window"))
    return _stack(_gqa(config), ffn, windows)


def _qwen_windows(config: Config) -> list[int | None]:
    """Qwen slides only when `use_sliding_window` is set, and then only above `max_window_layers`."""
    if not config.flag("use_sliding_window", False):
        return [None] * config.integer("num_hidden_layers")
    first = config.integer("max_window_layers", least=0)
    return _windows(config, lambda index: index >= first)


def qwen2(config: Config) -> list[Layer]:
    return _stack(_gqa(config, bias=True), _dense(config), _qwen_windows(config))


def qwen3(config: Config) -> list[Layer]:
    return _stack(_gqa(config, qk_norm=True), _dense(config), _qwen_windows(config))


def _qwen_sparse(config: Config, attention: Attention, moe: MoeFfn) -> list[Layer]:
    """Qwen's choice of which layers are sparse: every `decoder_sparse_step`-th not in `mlp_only_layers`."""
    step = config.integer("decoder_sparse_step", default=1)
    dense_only = _index_set(config, "mlp_only_layers") if config.has("mlp_only_layers") else frozenset()
    layers = []
    for index, window in enumerate(_qwen_windows(config)):
        sparse = index not in dense_only and (index + 1) % step == 0
        ffn: DenseFfn | MoeFfn = moe if sparse else _dense(config)
        layers.append(Layer(replace(attention, window=window), ffn))
    return layers


def _experts(config: Config) -> int:
    """How many there are to choose from; transformers 5 writes the key that Mixtral always had."""
    return config.integer("num_local_experts" if config.has("num_local_experts") else "num_experts")


def qwen2_moe(config: Config) -> list[Layer]:
    experts = _experts(config)
    moe = MoeFfn(
        experts=experts,
        top_k=_choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("moe_intermediate_size"),
        shared_experts=1,
        shared_intermediate=config.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return _qwen_sparse(config, _gqa(config, bias=True), moe)


def qwen3_moe(config: Config) -> list[Layer]:
    experts = _experts(config)
    moe = MoeFfn(
        experts=experts,
        top_k=_choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("moe_intermediate_size"),
    )
    return _qwen_sparse(config, _gqa(config, qk_norm=True), moe)


def _deepseek(config: Config, *, router_bias: bool) -> list[Layer]:
    nope, rope = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    heads = config.integer("num_attention_heads")
    attention = Attention(
        kind="mla",
        heads=heads,
        kv_heads=heads,
        head_dim=nope + rope,
        q_lora_rank=config.integer("q_lora_rank") if config.has("q_lora_rank") else None,
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_nope_dim=nope,
        qk_rope_dim=rope,
        v_head_dim=config.integer("v_head_dim"),
    )
    width = config.integer("moe_intermediate_size")
    shared = config.integer("n_shared_experts", default=0, least=0)
    experts = config.integer("n_routed_experts")
    moe = MoeFfn(
        experts=experts,
        top_k=_choices(config, "num_experts_per_tok", experts),
        expert_intermediate=width,
        shared_experts=shared,
        shared_intermediate=shared * width,
        router_bias=router_bias,
    )
    first = config.integer("first_k_dense_replace", least=0)
    every = config.integer("moe_layer_freq", default=1)
    count = config.integer("num_hidden_layers")
    sparse = [index >= first and index % every == 0 for index in range(count)]
    return [Layer(attention, moe if is_sparse else _dense(config)) for is_sparse in sparse]


def deepseek_v2(config: Config) -> list[Layer]:
    return _deepseek(config, router_bias=False)


def deepseek_v3(config: Config) -> list[Layer]:
    """V3 and R1: the router adds a learnt correction to each expert's score."""
    return _deepseek(config, router_bias=True)


def gpt_oss(config: Config) -> list[Layer]:
    attention = replace(_gqa(config, bias=True), o_bias=True, sinks=True)
    experts = config.integer("num_local_experts")
    moe = MoeFfn(
        experts=experts,
        top_k=_choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("intermediate_size"),
        expert_bias=True,
        router_bias=True,
    )
    return _stack(attention, moe, _windows(config, lambda index: index % 2 == 0))


def gemma2(config: Config) -> list[Layer]:
    """Sliding and full layers take turns, sliding first."""
    layers = _stack(_gqa(config), _dense(config), _windows(config, lambda index: index % 2 == 0))
    return [replace(layer, sandwich_norms=True) for layer in layers]


_GEMMA3_DEFAULTS = {  # Gemma3TextConfig's own, which the published multimodal files leave out
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}


def gemma3(config: Config) -> list[Layer]:
    """Every sixth layer (`sliding_window_pattern`) is full, the others slide."""
    given = {key: value for key, value in config.data.items() if value is not None}
    config = replace(config, data={**_GEMMA3_DEFAULTS, **given})
    pattern = config.integer("sliding_window_pattern", default=6)
    windows = _windows(config, lambda index: (index + 1) % pattern != 0)
    layers = _stack(_gqa(config, qk_norm=True), _dense(config), windows)
    return [replace(layer, sandwich_norms=True) for layer in layers]


def minimax_m2(config: Config) -> list[Layer]:
    """Sparse in every layer; queries and keys are normed over all heads at once, which moves as many bytes."""
    experts = config.integer("num_local_experts")
    moe = MoeFfn(
        experts=experts,
        top_k=_choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("intermediate_size"),
        router_bias=config.flag("use_routing_bias", False),
    )
    return _stack(_gqa(config, qk_norm=True), moe, [None] * config.integer("num_hidden_layers"))


def _groups(config: Config) -> int:
    """KV heads of Step3."""
    heads, groups = config.integer("num_attention_heads"), config.integer("num_attention_groups")
    if heads % groups:
        raise config.wrong("num_attention_groups", groups, f"a divisor of num_attention_heads ({heads})")
    return groups


def step3(config: Config) -> list[Layer]:
    attention = Attention(
        kind="mfa",
        heads=config.integer("num_attention_heads"),
        kv_heads=_groups(config),
        head_dim=config.integer("head_dim"),
        q_lora_rank=config.integer("share_q_dim"),
    )
    experts = config.integer("moe_num_experts")
    moe = MoeFfn(
        experts=experts,
        top_k=_choices(config, "moe_top_k", experts),
        expert_intermediate=config.integer("moe_intermediate_size"),
        shared_experts=1,
        shared_intermediate=config.integer("share_expert_dim"),
    )
    sparse = _index_set(config, "moe_layers_enum")
    count = config.integer("num_hidden_layers")
    return [Layer(attention, moe if index in sparse else _dense(config)) for index in range(count)]


def _index_set(config: Config, key: str) -> frozenset[int]:
    """Layer numbers, written as a list or as a string with commas between."""
    value = config.get(key)
    try:
        items = [int(item) for item in value.split(",")] if isinstance(value, str) else list(value)
    except (TypeError, ValueError):
        items = [-1]
    if not all(isinstance(item, int) and item >= 0 for item in items):
        raise config.wrong(key, value, "layer numbers from 0, as a list or with commas between")
    return frozenset(items)


FAMILIES = (
    Family("llama", "LlamaForCausalLM", llama),
    Family("mistral", "MistralForCausalLM", mistral),
    Family("mixtral", "MixtralForCausalLM", mixtral),
    Family("phi3", "Phi3ForCausalLM", mistral),
    Family("qwen2", "Qwen2ForCausalLM", qwen2),
    Family("qwen2_moe", "Qwen2MoeForCausalLM", qwen2_moe),
    Family("qwen3", "Qwen3ForCausalLM", qwen3),
    Family("qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe),
    Family("deepseek_v2", "DeepseekV2ForCausalLM", deepseek_v2),
    Family("deepseek_v3", "DeepseekV3ForCausalLM", deepseek_v3),
    Family("gpt_oss", "GptOssForCausalLM", gpt_oss),
    Family("gemma2", "Gemma2ForCausalLM", gemma2, tied_default=True),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        gemma3,
        tied_default=True,
        vocab_default=262208,
        position_default=131072,
    ),
    Family("minimax_m2", "MiniMaxM2ForCausalLM", minimax_m2),
    Family("step3_text", "Step3TextForCausalLM", step3, position_key="max_position_embedding"),
)
