"""Model architectures from a Hugging Face config.json: layers, sizes, operators."""

from steelyard.model.layout import All2All, Layout, Stage, as_layout, layers_of_stages, stages
from steelyard.model.loading import catalog_name, catalog_names, describe, hub_name, load_model, model_names
from steelyard.model.loads import read_loads
from steelyard.model.operators import (
    AttentionOperator,
    AttentionShape,
    Collective,
    ContextParallel,
    Elementwise,
    Gemm,
    GroupedGemm,
    Operator,
    embedding_operators,
    head_operators,
    operators,
    output_operators,
    send_operators,
)
from steelyard.model.quantization import serve_as
from steelyard.model.routing import RankLoad, Routing, place_experts, rank_load
from steelyard.model.sharding import check_layout, check_tp
from steelyard.model.size import (
    KvGroup,
    Parameters,
    kv_bytes_per_token,
    kv_dtype_bytes,
    kv_groups,
    parameters,
    stage_weight_bytes,
    weight_bytes,
)
from steelyard.model.spec import Attention, DenseFfn, Layer, ModelSpec, MoeFfn, Quantization

__all__ = [
    "All2All",
    "Attention",
    "AttentionOperator",
    "AttentionShape",
    "Collective",
    "ContextParallel",
    "DenseFfn",
    "Elementwise",
    "Gemm",
    "GroupedGemm",
    "KvGroup",
    "Layer",
    "Layout",
    "ModelSpec",
    "MoeFfn",
    "Operator",
    "Parameters",
    "Quantization",
    "RankLoad",
    "Routing",
    "Stage",
    "as_layout",
    "catalog_name",
    "catalog_names",
    "check_layout",
    "check_tp",
    "describe",
    "embedding_operators",
    "head_operators",
    "hub_name",
    "kv_bytes_per_token",
    "kv_dtype_bytes",
    "kv_groups",
    "layers_of_stages",
    "load_model",
    "model_names",
    "operators",
    "output_operators",
    "parameters",
    "place_experts",
    "rank_load",
    "read_loads",
    "send_operators",
    "serve_as",
    "stage_weight_bytes",
    "stages",
    "weight_bytes",
]
