"""vLLM's KV-cache groups: which layers share a KV block.

Layers with the same window are one kind. With several kinds, all layers are divided into groups of as many layers as
the smallest kind has (or the largest, if it has less than 1.5 times as many), and a block holds tokens of one group. So
all blocks have one size, and a request needs one block of each group for the same tokens.

Recurrent layers keep a state for each request, which vLLM puts into blocks of the same pool. So blocks of attention get
as many tokens as make them no smaller than a layer's state, which is padded to their size. A group of recurrent layers
has one block for each request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steelyard.cost.speculation import Draft, check_drafted
from steelyard.errors import UserError
from steelyard.model import KvGroup, Layout, ModelSpec, Stage, States, kv_bytes_per_token, kv_groups, states
from steelyard.scenario import EngineSpec

ALL_TOKENS = (None,)
_KEEPS_WINDOWS = ("vllm", "sarathi", "phase-aware")  # schedulers that manage blocks as vLLM does
_SPARSE_BLOCK = 64  # tokens, of the kernels of sparse attention; vLLM raises smaller blocks to it
_LONGEST_BLOCK = 1 << 20  # tokens; published models have up to some thousands


@dataclass(frozen=True)
class KvLayout:
    """The window of each group of attention in order (None: full attention), and the bytes of one block.

    ``chunked`` windows are chunks. ``block_size`` are the tokens of a block, if not those of the settings. A request
    holds ``states`` blocks of recurrent state.
    """

    windows: tuple[int | None, ...]
    block_bytes: int
    chunked: bool = False
    block_size: int | None = None
    states: int = 0


def kv_layout(
    model: ModelSpec, stage: Stage, layout: Layout, engine: EngineSpec, role: str = "serve", draft: Draft | None = None
) -> KvLayout:
    """The KV layout of one stage of a model; groups are those of the whole model."""
    whole = replace(layout, pp=1)
    kinds = kv_groups(model, engine.kv_cache_dtype, whole)
    kept = states(model, whole)
    if kept is not None:
        return _with_states(model, stage, whole, engine, role, draft, kept)
    sparse = any(attention.indexer is not None for attention, _ in model.attentions)
    size = max(engine.block_size, _SPARSE_BLOCK) if sparse else engine.block_size
    together = size * kv_bytes_per_token(stage.model, engine.kv_cache_dtype, whole)
    if all(kind.window is None for kind in kinds):
        return KvLayout(ALL_TOKENS, together, block_size=size if size != engine.block_size else None)
    reason = _not_simulated(engine, role, draft)
    if reason is not None:
        if engine.disable_hybrid_kv_cache_manager is False:
            raise UserError(f"engine.disable_hybrid_kv_cache_manager: blocks of windows are not simulated {reason}")
        return KvLayout(ALL_TOKENS, together)
    if len(kinds) == 1:
        return KvLayout((kinds[0].window,), together, kinds[0].chunked)
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
    if len({kind.chunked for kind in kinds if kind.window is not None}) > 1:
        raise UserError(f"model {model.name}: layers with sliding windows and with chunks together are not simulated")
    size = _group_size([kind.layers for kind in kinds])
    groups_by_window = {kind.window: -(-kind.layers // size) for kind in kinds}
    windows = tuple(window for window, groups in groups_by_window.items() for _ in range(groups))
    layers = max(-(-kind.layers // groups_by_window[kind.window]) for kind in here)
    return KvLayout(windows, block_size * layers * round(sizes.pop()), any(kind.chunked for kind in kinds))


def _group_size(layers: list[int]) -> int:
    """Layers of a group: as many as the smallest kind has, or the largest if it has few more."""
    fewest, most = min(layers), max(layers)
    return most if most < 1.5 * fewest else fewest


def _with_states(
    model: ModelSpec, stage: Stage, whole: Layout, engine: EngineSpec, role: str, draft: Draft | None, kept: States
) -> KvLayout:
    """The layout of a model with recurrent layers, whose other layers see all tokens."""
    kinds = kv_groups(model, engine.kv_cache_dtype, whole)
    reason = _not_simulated(engine, role, draft)
    if reason is not None:
        raise UserError(f"model {model.name}: the state of its recurrent layers is not simulated {reason}")
    if engine.disable_hybrid_kv_cache_manager:
        raise UserError(
            f"engine.disable_hybrid_kv_cache_manager: {model.name} has recurrent layers, whose state vLLM keeps in "
            "groups of their own; leave it out"
        )
    if len(kinds) != 1 or kinds[0].window is not None:
        raise UserError(
            f"model {model.name}: recurrent layers are simulated together with layers of full attention only, "
            f"all with as many bytes a token; this one has {len(kinds)} kinds of attention beside them"
        )
    (kind,) = kinds
    token = kind.bytes_per_token // kind.layers
    unit = engine.block_size
    block_size = max(unit, unit * -(-kept.bytes_each // (unit * token)))
    if block_size > _LONGEST_BLOCK:
        raise UserError(
            f"model {model.name}: a recurrent layer's state of {kept.bytes_each:,} bytes is as large as the keys and "
            f"values of {block_size:,} tokens, and a block has at most {_LONGEST_BLOCK:,}"
        )
    size = _group_size([kind.layers, kept.layers])
    attention, recurrent = -(-kind.layers // size), -(-kept.layers // size)
    here = [-(-group.layers // attention) for group in kv_groups(stage.model, engine.kv_cache_dtype, whole)]
    states_here = states(stage.model, whole)
    if states_here is not None:
        here.append(-(-states_here.layers // recurrent))
    page = block_size * token
    return KvLayout((None,) * attention, page * max(here, default=1), block_size=block_size, states=recurrent)


def check_states(model: ModelSpec, engine: EngineSpec) -> None:
    """Refuse drafts over recurrent state, and prefix caching of it where that is asked for: by default it is off."""
    if engine.drafts:
        check_drafted(model)
    if model.recurrents and engine.enable_prefix_caching and "enable_prefix_caching" in engine.model_fields_set:
        raise UserError(
            f"engine.enable_prefix_caching: prefix caching of recurrent state, which {model.name} has, is not "
            "simulated; leave it out, as for vLLM up to 0.27, where it is off for such models unless asked for"
        )


def _not_simulated(engine: EngineSpec, role: str, draft: Draft | None) -> str | None:
    """Why every layer keeps the blocks of all tokens here, unlike in vLLM; None if windows are simulated."""
    if role != "serve":
        return f"in a pool of role {role}"
    if engine.tiers:
        return "with tiers below"
    if engine.scheduler not in _KEEPS_WINDOWS:
        return f"with scheduler {engine.scheduler}"
    return None if draft is None else "with a draft model, which has layers of its own"
