"""The silicon database of NVIDIA's AIConfigurator, and of AISimulate after it, as a cost source.

Both packages ship measured operator times as Parquet files under ``systems/data/SYSTEM/FAMILY/ENGINE/VERSION/``. We
read those files and nothing of their Python API, which changes with every minor release. The source's name, which
results keep, has the release. ``latency`` is in milliseconds everywhere. What is used of them:

- ``gemm/…/gemm_perf``: ``gemm_dtype``, ``m`` rows, ``n`` columns and ``k`` inner size on a lattice. fp8 includes the
  quantization of its input.
- ``attention/…/context_attention_perf``: ``batch_size`` prompts of ``isl`` tokens each, nothing cached before them;
  ``generation_attention_perf``: ``batch_size`` requests with ``step`` + 1 cached tokens each. Both by ``num_heads``,
  ``num_key_value_heads``, ``head_dim``, ``kv_cache_dtype`` and ``window_size`` (0 is none). vLLM's include writing the
  new tokens to the cache.
- ``mla/…/context_mla_perf``, ``generation_mla_perf``: the same for latent attention, by ``num_heads``.
- ``moe/…/moe_perf``: all of a routed layer (both matrices, activation, weighted sum) over ``num_tokens``, by
  ``moe_dtype``, ``hidden_size``, ``inter_size`` (of which a GPU holds 1/``moe_tp_size``), ``topk``, ``num_experts`` (of
  which it holds 1/``moe_ep_size``; the tokens are those of all such GPUs) and ``distribution`` of the tokens over
  experts.
- ``comm/…/custom_allreduce_perf`` and ``comm/nccl/…/nccl_perf``: by ``num_gpus`` and ``message_size``, which counts
  elements (of 2 bytes: bfloat16, half) of the whole tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.cost.silicon.database import SYSTEMS, Database, Origin, find_database, package_folder
from steelyard.hardware import Gpu, Topology
from steelyard.lazy import lazily

if TYPE_CHECKING:
    from steelyard.cost.silicon.source import Silicon

__all__ = [
    "SYSTEMS",
    "Database",
    "Origin",
    "Silicon",
    "find_database",
    "find_silicon",
    "package_folder",
]

__getattr__ = lazily(__name__, {"Silicon": "steelyard.cost.silicon.source"})


def find_silicon(gpu: Gpu, topology: Topology, engine: str = "vllm") -> Silicon | None:
    """The silicon database's times for a GPU, if the package is installed and knows it."""
    database = find_database(gpu.name, engine)
    if database is None:
        return None
    from steelyard.cost.silicon.source import Silicon  # most runs have no tables to read

    return Silicon(gpu, topology, database)
