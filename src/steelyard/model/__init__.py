"""Model architectures from a Hugging Face config.json: layers, sizes, operators."""

from steelyard.model.loading import catalog_names, describe, load_model, model_names
from steelyard.model.operators import (
    AttentionOperator,
    AttentionShape,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    Operator,
    head_operators,
    operators,
)
from steelyard.model.quantization import serve_as
from steelyard.model.sharding import check_tp
from steelyard.model.size import (
    KvGroup,
    Parameters,
    kv_bytes_per_token,
    kv_dtype_bytes,
    kv_groups,
    parameters,
    weight_bytes,
)
from steelyard.model.spec import Attention, DenseFfn, Layer, ModelSpec, MoeFfn, Quantization

__all__ = [
    "Attention",
    "AttentionOperator",
    "AttentionShape",
    "Collective",
    "DenseFfn",
    "Elementwise",
    "Gemm",
    "GroupedGemm",
    "KvGroup",
    "Layer",
    "ModelSpec",
    "MoeFfn",
    "Operator",
    "Parameters",
    "Quantization",
    "catalog_names",
    "check_tp",
    "describe",
    "head_operators",
    "kv_bytes_per_token",
    "kv_dtype_bytes",
    "kv_groups",
    "load_model",
    "model_names",
    "operators",
    "parameters",
    "serve_as",
    "weight_bytes",
]
