"""One reader per model family: from its Hugging Face keys to a list of layers.

A reader returns one `Layer` per decoder layer, in order. Defaults appear only where published
config files leave a key out and Hugging Face's own configuration class fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from steelyard.model import hybrids, mixtures
from steelyard.model.blocks import choices, dense_ffn, experts_of, grouped_query, index_set, stack, windows_of
from steelyard.model.config import Config
from steelyard.model.spec import Attention, DenseFfn, Indexer, Layer, MoeFfn


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
    alternates: bool = False  # layers differ in more than attention, and take turns


def llama(config: Config) -> list[Layer]:
    return stack(grouped_query(config), dense_ffn(config), [None] * config.integer("num_hidden_layers"))


def mistral(config: Config) -> list[Layer]:
    """Mistral and Phi-3: like Llama, with a window over all layers when `sliding_window` is set."""
    windows = windows_of(config, lambda index: config.has("sliding_window"))
    return stack(grouped_query(config), dense_ffn(config), windows)


def mixtral(config: Config) -> list[Layer]:
    experts = config.integer("num_local_experts")
    ffn = MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("intermediate_size"),
    )
    windows = windows_of(config, lambda index: config.has("sliding_window"))
    return stack(grouped_query(config), ffn, windows)


def _qwen_windows(config: Config) -> list[int | None]:
    """Qwen slides only when `use_sliding_window` is set, and then only above `max_window_layers`."""
    if not config.flag("use_sliding_window", False):
        return [None] * config.integer("num_hidden_layers")
    first = config.integer("max_window_layers", least=0)
    return windows_of(config, lambda index: index >= first)


def qwen2(config: Config) -> list[Layer]:
    return stack(grouped_query(config, bias=True), dense_ffn(config), _qwen_windows(config))


def qwen3(config: Config) -> list[Layer]:
    return stack(grouped_query(config, qk_norm=True), dense_ffn(config), _qwen_windows(config))


def _qwen_sparse(config: Config, attention: Attention, moe: MoeFfn) -> list[Layer]:
    """Qwen's choice of which layers are sparse: every `decoder_sparse_step`-th not in `mlp_only_layers`."""
    step = config.integer("decoder_sparse_step", default=1)
    dense_only = index_set(config, "mlp_only_layers") if config.has("mlp_only_layers") else frozenset()
    layers = []
    for index, window in enumerate(_qwen_windows(config)):
        sparse = index not in dense_only and (index + 1) % step == 0
        ffn: DenseFfn | MoeFfn = moe if sparse else dense_ffn(config)
        layers.append(Layer(replace(attention, window=window), ffn))
    return layers


def qwen2_moe(config: Config) -> list[Layer]:
    experts = experts_of(config)
    moe = MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("moe_intermediate_size"),
        shared_experts=1,
        shared_intermediate=config.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return _qwen_sparse(config, grouped_query(config, bias=True), moe)


def qwen3_moe(config: Config) -> list[Layer]:
    experts = experts_of(config)
    moe = MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("moe_intermediate_size"),
    )
    return _qwen_sparse(config, grouped_query(config, qk_norm=True), moe)


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
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=width,
        shared_experts=shared,
        shared_intermediate=shared * width,
        router_bias=router_bias,
    )
    first = config.integer("first_k_dense_replace", least=0)
    every = config.integer("moe_layer_freq", default=1)
    count = config.integer("num_hidden_layers")
    sparse = [index >= first and index % every == 0 for index in range(count)]
    return [Layer(attention, moe if is_sparse else dense_ffn(config)) for is_sparse in sparse]


def deepseek_v2(config: Config) -> list[Layer]:
    return _deepseek(config, router_bias=False)


def deepseek_v3(config: Config) -> list[Layer]:
    """V3 and R1: the router adds a learnt correction to each expert's score."""
    return _deepseek(config, router_bias=True)


def deepseek_v32(config: Config) -> list[Layer]:
    """V3 with sparse attention, also without a `moe_layer_freq`; GLM-5 is read like it."""
    indexer = Indexer(
        heads=config.integer("index_n_heads"),
        head_dim=config.integer("index_head_dim"),
        top_k=config.integer("index_topk"),
    )
    if indexer.head_dim % 128:
        raise config.wrong("index_head_dim", indexer.head_dim, "a multiple of 128, the values that share a scale")
    layers = deepseek_v3(config)
    return [
        replace(layer, attention=replace(layer.attention, indexer=indexer))
        for layer in layers
        if layer.attention is not None
    ]


def olmo3(config: Config) -> list[Layer]:
    """Every fourth layer is full, the others slide; queries and keys are normed over all heads at once."""
    config = replace(config, data={"sliding_window": 4096, **config.data})
    attention = replace(grouped_query(config, qk_norm=True), qk_norm_weights="all heads")
    return stack(attention, dense_ffn(config), windows_of(config, lambda index: (index + 1) % 4 != 0))


def ernie4_5(config: Config) -> list[Layer]:
    """Like Llama, with biases everywhere or nowhere."""
    bias = config.flag("use_bias", False)
    ffn = DenseFfn(config.integer("intermediate_size"), bias=bias)
    return stack(grouped_query(config, bias=bias), ffn, [None] * config.integer("num_hidden_layers"))


def gpt_oss(config: Config) -> list[Layer]:
    attention = replace(grouped_query(config, bias=True), o_bias=True, sinks=True)
    experts = config.integer("num_local_experts")
    moe = MoeFfn(
        experts=experts,
        top_k=choices(config, "num_experts_per_tok", experts),
        expert_intermediate=config.integer("intermediate_size"),
        expert_bias=True,
        router_bias=True,
    )
    return stack(attention, moe, windows_of(config, lambda index: index % 2 == 0))


def gemma2(config: Config) -> list[Layer]:
    """Sliding and full layers take turns, sliding first."""
    layers = stack(grouped_query(config), dense_ffn(config), windows_of(config, lambda index: index % 2 == 0))
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
    windows = windows_of(config, lambda index: (index + 1) % pattern != 0)
    layers = stack(grouped_query(config, qk_norm=True), dense_ffn(config), windows)
    return [replace(layer, sandwich_norms=True) for layer in layers]


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
        top_k=choices(config, "moe_top_k", experts),
        expert_intermediate=config.integer("moe_intermediate_size"),
        shared_experts=1,
        shared_intermediate=config.integer("share_expert_dim"),
    )
    sparse = index_set(config, "moe_layers_enum")
    count = config.integer("num_hidden_layers")
    return [Layer(attention, moe if index in sparse else dense_ffn(config)) for index in range(count)]


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
    Family("deepseek_v32", "DeepseekV32ForCausalLM", deepseek_v32),
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
    Family("minimax_m2", "MiniMaxM2ForCausalLM", mixtures.minimax_m2),
    Family("glm4_moe", "Glm4MoeForCausalLM", mixtures.glm4_moe),
    Family("ernie4_5", "Ernie4_5ForCausalLM", ernie4_5, tied_default=True),
    Family("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", mixtures.ernie4_5_moe, tied_default=True, alternates=True),
    Family("llama4_text", "Llama4ForCausalLM", mixtures.llama4, alternates=True),
    Family("olmo3", "Olmo3ForCausalLM", olmo3),
    Family("qwen3_vl_text", "Qwen3VLForConditionalGeneration", qwen3),
    Family("qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration", qwen3_moe),
    Family("qwen3_next", "Qwen3NextForCausalLM", hybrids.qwen3_next, alternates=True),
    Family("qwen3_5_text", "Qwen3_5ForCausalLM", hybrids.qwen3_5, alternates=True),
    Family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", hybrids.qwen3_next, alternates=True),
    Family("nemotron_h", "NemotronHForCausalLM", hybrids.nemotron_h, alternates=True),
    Family("granitemoehybrid", "GraniteMoeHybridForCausalLM", hybrids.granite_hybrid, alternates=True),
    Family("step3_text", "Step3TextForCausalLM", step3, position_key="max_position_embedding"),
)
