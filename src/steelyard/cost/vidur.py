"""Profiles of Vidur and of Frontier, which is based on it: CSV files in a folder ``compute/DEVICE/MODEL``.

``mlp.csv`` (Frontier: ``linear_op.csv``) times layers over tokens, ``attention.csv`` prompts and decodes separately,
and Frontier's ``moe.csv`` the experts. All are milliseconds in ``time_stats.OPERATOR.median``, beside the shapes they
belong to. Frontier's times of kernels alone (``*_kernel_only.csv``) are preferred, since launches are counted
elsewhere. None of the files times the output head or the sampler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from steelyard.cost.csvrows import number, whole
from steelyard.cost.tabulated import Tabulated, TabulatedAttention, TimeCurve
from steelyard.errors import UserError
from steelyard.files.csvtext import CsvRow, csv_columns, csv_rows
from steelyard.files.finding import is_file
from steelyard.model import DenseFfn, ModelSpec, MoeFfn

_LAYERS = ("linear_op_kernel_only.csv", "linear_op.csv", "mlp.csv")
_ATTENTION = ("attention_kernel_only.csv", "attention.csv")
_EXPERTS = ("moe_kernel_only.csv", "moe.csv")
_OURS = {
    "emb": ("embedding",),
    "input_layernorm": ("input_norm", "final_norm"),
    "attn_pre_proj": ("qkv_proj",),
    "attn_rope": ("rope",),
    "attn_post_proj": ("o_proj",),
    "post_attention_layernorm": ("post_norm",),
    "mlp_up_proj": ("gate_up_proj",),
    "mlp_act": ("act",),
    "mlp_down_proj": ("down_proj",),
}
_OF_EXPERTS = {
    "router": ("moe_gating_linear",),
    "router_topk": ("moe_gating_routing_topk",),
    "experts_gate_up": ("moe_shuffling", "moe_grouped_gemm"),
}
_IN_EXPERTS = ("experts_act", "experts_down", "experts_sum")
_TP = "num_tensor_parallel_workers"
_STEP = ("batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill")

Shape = dict[str, int]  # what a row's columns must say
Measured = dict[str, list[tuple[float, float]]]


def is_compute_folder(folder: Path) -> bool:
    """Whether a folder holds the profile of one model, by the columns of its files."""
    path = _first(folder, _ATTENTION)
    return path is not None and _first(folder, _LAYERS) is not None and _median("attn_decode") in csv_columns(path)


def read_compute_folder(folder: Path, model: ModelSpec, tp: int) -> Tabulated:
    """The rows of a folder that have this model's shapes."""
    layers, attention = _present(folder, _LAYERS), _present(folder, _ATTENTION)
    if not model.attentions:
        raise UserError(f"{folder}: {model.name} has no attention, which such a profile has")
    heads, _ = model.attentions[0]
    shape = {"n_head": heads.heads, "n_kv_head": heads.kv_heads, "n_embd": model.hidden}
    operators = _layers(layers, _with_width(shape, model), tp)
    seen = {"n_q_head": heads.heads, "n_kv_head": heads.kv_heads, "n_embd": model.hidden, _TP: tp}
    times, writes = _attention(attention, seen)
    experts = _first(folder, _EXPERTS)
    ffn = next((layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn)), None)
    if ffn is not None and experts is not None:
        operators |= _experts(experts, model, ffn, tp)
    return Tabulated(
        name=f"{'Vidur' if layers.name == 'mlp.csv' else 'Frontier'} profile of {folder.name}",
        operators={**operators, **({"kv_write": writes} if writes is not None else {})},
        inside_others=frozenset(_IN_EXPERTS if "experts_gate_up" in operators else ()),
        attention=times,
        weight_bytes=_weight_bytes(layers),
    )


def _with_width(shape: Shape, model: ModelSpec) -> Shape:
    ffn = model.layers[0].ffn
    return {**shape, "n_expanded_embd": ffn.intermediate} if isinstance(ffn, DenseFfn) else shape


def _layers(path: Path, shape: Shape, tp: int) -> dict[str, TimeCurve]:
    """Layers under our names; replicated layers are timed once, at degree 1."""
    sharded, whole_ones = (
        _times(_matching(path, {**shape, _TP: degree}), {theirs: (theirs,) for theirs in _OURS}, "num_tokens")
        for degree in (tp, 1)
    )
    if not sharded:
        raise UserError(_no_rows(path, {**shape, _TP: tp}))
    found = {**whole_ones, **sharded} if tp > 1 else sharded
    return {ours: TimeCurve.of(points) for theirs, points in found.items() for ours in _OURS[theirs]}


def _attention(path: Path, shape: Shape) -> tuple[TabulatedAttention, TimeCurve | None]:
    """Prompts, decodes, and the cache writes of both; batches of several prompts are skipped."""
    prompts: dict[int, list[tuple[float, float]]] = defaultdict(list)
    decodes: dict[int, list[tuple[float, float]]] = defaultdict(list)
    writes: list[tuple[float, float]] = []
    for where, row in _matching(path, shape, _STEP):
        if row.get("is_mixed_batch") == "True" or row.get("is_true_mixed_batch") == "True":
            continue
        batch, cached = whole(row, "batch_size", where), whole(row, "kv_cache_size", where)
        chunk = whole(row, "prefill_chunk_size", where)
        if row["is_prefill"] != "True":
            decodes[batch].append((batch * cached, _seconds(row, "attn_decode", where)))
        elif batch == 1:
            prompts[chunk].append((cached, _seconds(row, "attn_prefill", where)))
        if row.get(_median("attn_kv_cache_save")):
            writes.append((batch * max(chunk, 1), _seconds(row, "attn_kv_cache_save", where)))
    curves = {batch: TimeCurve.of(points) for batch, points in decodes.items() if len({x for x, _ in points}) > 1}
    if not curves or not prompts:
        raise UserError(_no_rows(path, shape))
    chunks = {chunk: TimeCurve.of(points) for chunk, points in prompts.items()}
    return TabulatedAttention(curves, chunks, mixed={}, skew={}), TimeCurve.of(writes) if writes else None


def _experts(path: Path, model: ModelSpec, ffn: MoeFfn, tp: int) -> dict[str, TimeCurve]:
    """Routed experts of one rank with even routing; empty if the file has no rows of this shape."""
    shape = {
        "num_experts": ffn.experts,
        "router_topk": ffn.top_k,
        "hidden_dim": model.hidden,
        "expert_hidden_dim": ffn.expert_intermediate,
        "expert_parallel_size": 1,
        _TP: tp,
    }
    even = (each for each in _matching(path, shape) if each[1].get("load_distribution", "uniform") == "uniform")
    return {ours: TimeCurve.of(points) for ours, points in _times(even, _OF_EXPERTS, "num_tokens").items()}


def _times(rows: Iterable[tuple[str, CsvRow]], wanted: dict[str, tuple[str, ...]], over: str) -> Measured:
    """Seconds of each wanted name, as the sum of its operators, over a column, for those that were timed."""
    found: Measured = defaultdict(list)
    for where, row in rows:
        for name, operators in wanted.items():
            if all(row.get(_median(operator)) for operator in operators):
                seconds = sum(_seconds(row, operator, where) for operator in operators)
                found[name].append((whole(row, over, where), seconds))
    return dict(found)


def _matching(path: Path, shape: Shape, also: tuple[str, ...] = ()) -> Iterator[tuple[str, CsvRow]]:
    for where, row in csv_rows(path, (*shape, *also)):
        if all(number(row, column, where) == value for column, value in shape.items()):
            yield where, row


def _no_rows(path: Path, shape: Shape) -> str:
    there = sorted({tuple(row[column] for column in shape) for _, row in csv_rows(path, tuple(shape))})
    wanted = ", ".join(f"{column} {value}" for column, value in shape.items())
    found = "; ".join(", ".join(values) for values in there[:6])
    return f"{path}: no timed rows of this model and degree ({wanted}); it has {found or 'no rows'}"


def _weight_bytes(path: Path) -> float:
    """Frontier's files name the precision; Vidur profiles in 16 bits."""
    precision = {row.get("profiling_precision", "FP16") for _, row in csv_rows(path, ())}
    return 1.0 if any("8" in str(each) for each in precision) else 2.0


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if is_file(folder / name)), None)


def _present(folder: Path, names: tuple[str, ...]) -> Path:
    found = _first(folder, names)
    if found is None:
        raise UserError(f"{folder}: has none of {', '.join(names)}; a Vidur or Frontier profile needs one of them")
    return found


def _median(operator: str) -> str:
    return f"time_stats.{operator}.median"


def _seconds(row: CsvRow, operator: str, where: str) -> float:
    return number(row, _median(operator), where) * 1e-3
