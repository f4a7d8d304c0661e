"""vLLM's KV-cache groups: which layers share a KV block.

Layers with the same window are one kind. With several kinds, all layers are divided into groups of as many layers as
the smallest kind has (or the largest, if it has less than 1.5 times as many), and a block holds tokens of one group. So
all blocks have one size, and a request needs one block of each group for the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steelyard.cost.speculation import Draft
from steelyard.errors import UserError
from steelyard.model import KvGroup, Layout, ModelSpec, Stage, kv_bytes_per_token, kv_groups
from steelyard.scenario import EngineSpec

ALL_TOKENS = (None,)
_KEEPS_WINDOWS = ("vllm", "sarathi", "phase-aware")  # schedulers that manage blocks as vLLM does


@dataclass(frozen=True)
class KvLayout:
    """The window of each group in order (None: full attention), and the bytes of one block."""

    windows: tuple[int | None, ...]
    block_bytes: int


def kv_layout(
    model: ModelSpec, stage: Stage, layout: Layout, engine: EngineSpec, role: str = "serve", draft: Draft | None = None
) -> KvLayout:
    """The KV layout of one stage of a model; groups are those of the whole model."""
    whole = replace(layout, pp=1)
    kinds = kv_groups(model, engine.kv_cache_dtype, whole)
    together = engine.block_size * kv_bytes_per_token(stage.model, engine.kv_cache_dtype, whole)
    if all(kind.window is None for kind in kinds):
        return KvLayout(ALL_TOKENS, together)
    reason = _not_simulated(engine, role, draft)
    if reason is not None:
        if engine.disable_hybrid_kv_cache_manager is False:
            raise UserError(f"engine.disable_hybrid_kv_cache_manager: blocks of windows are not simulated {reason}")
        return KvLayout(ALL_TOKENS, together)
    if len(kinds) == 1:
        return KvLayout((kinds[0].window,), together)
    if engine.disable_hybrid_kv_cache_manager:
        if all(kind.window is not None for kind in kinds):
            raise UserError(
                f"engine.disable_hybrid_kv_cache_manager: {model.name} has windows of several sizes and no layer that "
                "sees all tokens, which vLLM cannot make one of; leave it out"
            )
        return KvLayout(ALL_TOKENS, together)
    return _groups(model, kinds, kv_groups(stage.model, engine.kv_cache_dtype, whole), engine.block_size)


def _groups(model: ModelSpec, kinds: tuple[KvGroup, ...], here: tuple[KvGroup, ...], block_size: int) -> KvLayout:
    sizes = {kind.bytes_per_token / kind.layers for kind in kinds}
    if len(sizes) > 1:
        raise UserError(
            f"model {model.name}: layers of different windows keep different numbers of bytes for a token, for which "
            "vLLM gives them blocks of different lengths; set engine.disable_hybrid_kv_cache_manager: true"
        )
    fewest, most = min(kind.layers for kind in kinds), max(kind.layers for kind in kinds)
    size = most if most < 1.5 * fewest else fewest
    groups_by_window = {kind.window: -(-kind.layers // size) for kind in kinds}
    windows = tuple(window for window, groups in groups_by_window.items() for _ in range(groups))
    layers = max(-(-kind.layers // groups_by_window[kind.window]) for kind in here)
    return KvLayout(windows, block_size * layers * round(sizes.pop()))


def _not_simulated(engine: EngineSpec, role: str, draft: Draft | None) -> str | None:
    """Why every layer keeps the blocks of all tokens here, unlike in vLLM; None if windows are simulated."""
    if role != "serve":
        return f"in a pool of role {role}"
    if engine.tiers:
        return "with tiers below"
    if engine.scheduler not in _KEEPS_WINDOWS:
        return f"with scheduler {engine.scheduler}"
    return None if draft is None else "with a draft model, which has layers of its own"
