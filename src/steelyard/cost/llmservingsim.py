"""LLMServingSim's profiles: a folder ``HW/MODEL/VARIANT`` with ``meta.yaml`` and one ``tpN`` of CSV files per degree.

``dense.csv`` and ``per_sequence.csv`` time vLLM's layers over tokens and sequences, in microseconds; ``attention.csv``
one prompt chunk beside decodes that all have ``kv_decode`` tokens cached *each*; ``moe.csv`` the whole block of
experts. ``skew_fit.csv`` holds its *alpha*, our ``Curve.skew``: where the time of an uneven batch of decodes lies
between that of an even one of the same mean (0) and one with all decodes as long as the longest (1), for decodes alone
(``pc`` 0) and beside a chunk of ``pc`` tokens. Cache writes were timed as part of attention.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from steelyard.cost.csvrows import number, whole
from steelyard.cost.tabulated import ExpertTimes, Tabulated, TabulatedAttention, TimeCurve
from steelyard.errors import UserError, quoted
from steelyard.files.csvtext import CsvRow, csv_columns, csv_rows
from steelyard.files.finding import is_file, is_folder
from steelyard.files.yamltext import read_yaml
from steelyard.model import Layout, as_layout

_OURS = {
    "embedding": ("embedding",),
    "layernorm": ("input_norm", "post_norm"),
    "qkv_proj": ("qkv_proj",),
    "qk_norm": ("qk_norm",),
    "rotary_emb": ("rope",),
    "o_proj": ("o_proj",),
    "gate_up_proj": ("gate_up_proj",),
    "act_fn": ("act",),
    "down_proj": ("down_proj",),
    "final_layernorm": ("final_norm",),
    "lm_head": ("lm_head",),
    "sampler": ("sampler",),
}
_IN_ATTENTION = ("kv_write",)
_IN_EXPERTS = ("router", "router_topk", "experts_act", "experts_down", "experts_sum")
_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}

Grid = dict[tuple[int, int, int], list[tuple[float, float]]]  # (new tokens, cached before, decodes): (cached, seconds)


def is_variant(folder: Path) -> bool:
    """Whether a folder holds the profile of one model in one precision."""
    return any(folder.glob("tp*/dense.csv"))


def read_meta(folder: Path) -> dict[str, Any]:
    """The profile's description of itself."""
    path = folder / "meta.yaml"
    meta = read_yaml(path)
    if not isinstance(meta, dict):
        raise UserError(f"{path}: must be a mapping with the profile's hardware and model (found {quoted(meta)})")
    return meta


def read_variant(folder: Path, layout: int | Layout) -> Tabulated:
    """The profile of one tensor-parallel degree. Experts are sliced by that degree, or whole if expert parallel."""
    layout = as_layout(layout)
    tables = folder / f"tp{layout.tp}"
    if not is_folder(tables):
        there = sorted(each.name for each in folder.glob("tp*"))
        raise UserError(f"{folder}: profiled for {', '.join(there) or 'no degree'}, not for tp{layout.tp}")
    meta = read_meta(folder)
    sliced = folder / f"tp{layout.expert_slices}" / "moe.csv"
    experts = _experts(sliced) if is_file(sliced) else None
    weights, _, cache = str(meta.get("variant", folder.name)).partition("-kv")
    return Tabulated(
        name=f"LLMServingSim profile of {meta.get('model', folder.parent.name)} on {meta.get('hardware', 'its GPU')}",
        operators={**_layers(tables / "dense.csv", "tokens"), **_layers(tables / "per_sequence.csv", "sequences")},
        inside_others=frozenset((*_IN_ATTENTION, *(_IN_EXPERTS if experts else ()))),
        attention=_attention(tables / "attention.csv", _skew(tables / "skew_fit.csv")),
        experts=experts,
        weight_bytes=_BYTES.get(weights, 2.0),
        kv_bytes=_BYTES.get(cache, 2.0),
    )


def _layers(path: Path, over: str) -> dict[str, TimeCurve]:
    """Layers under our names; layers without an operator of ours are skipped."""
    measured: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for where, row in csv_rows(path, ("layer", over, "time_us")):
        measured[row["layer"]].append((whole(row, over, where), _seconds(row, where)))
    return {ours: TimeCurve.of(points) for layer, points in measured.items() for ours in _OURS.get(layer, ())}


def _attention(path: Path, skew: dict[int, dict[int, float]]) -> TabulatedAttention:
    columns = csv_columns(path)
    grid: Grid = defaultdict(list)
    for where, row in csv_rows(path, ("prefill_chunk", "n_decode", "kv_decode", "time_us")):
        if row.get("layer", "attention") == "attention" and row.get("decode_q_len", "1") == "1":
            chunk, decodes = whole(row, "prefill_chunk", where), whole(row, "n_decode", where)
            before = _before(row, chunk, where) if "prefill_key" in columns else whole(row, "kv_prefill", where)
            grid[chunk, before, decodes].append((whole(row, "kv_decode", where), _seconds(row, where)))
    lone: dict[int, list[tuple[float, float]]] = defaultdict(list)
    mixed: dict[int, dict[int, dict[int, TimeCurve]]] = defaultdict(lambda: defaultdict(dict))
    decodes_alone: dict[int, TimeCurve] = {}
    for (chunk, before, decodes), points in grid.items():
        if not decodes:
            lone[chunk].extend((before, seconds) for _, seconds in points)
        elif not chunk:
            decodes_alone[decodes] = TimeCurve.of((decodes * each, seconds) for each, seconds in points)
        else:
            mixed[chunk][before][decodes] = TimeCurve.of(points)
    if not decodes_alone or not lone:
        raise UserError(f"{path}: holds no rows of decodes alone, or none of a prompt alone; both are needed")
    chunks = {chunk: TimeCurve.of(points) for chunk, points in lone.items()}
    return TabulatedAttention(decodes_alone, chunks, {c: dict(by) for c, by in mixed.items()}, skew)


def _before(row: CsvRow, chunk: int, where: str) -> int:
    """Cached tokens before a chunk. Newer profiles give the mean keys per token, which include half of the chunk."""
    return max(0, round(number(row, "prefill_key", where) - chunk / 2))


def _experts(path: Path) -> ExpertTimes:
    """Routed experts, from rows of one rank only."""
    measured: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for where, row in csv_rows(path, ("tokens", "activated_experts", "time_us")):
        if row.get("ep", "1") == "1":
            point = (whole(row, "activated_experts", where), _seconds(row, where))
            measured[whole(row, "tokens", where)].append(point)
    if not measured:
        raise UserError(f"{path}: holds no rows of a single rank (ep 1)")
    return ExpertTimes({tokens: TimeCurve.of(points) for tokens, points in measured.items()})


def _skew(path: Path) -> dict[int, dict[int, float]]:
    """Alpha by the chunk beside the decodes and their number, weighted by how often it was measured.

    Nearly even batches are skipped: there alpha is a ratio of two small differences.
    """
    if not is_file(path):
        return {}
    fits: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for where, row in csv_rows(path, ("pc", "n_label", "skew_rate_label", "alpha", "n_samples")):
        batch = re.fullmatch(r"n<=(\d+)", row["n_label"])
        if batch and row["skew_rate_label"].startswith("sr<="):
            fits[whole(row, "pc", where), int(batch[1])].append((_signed(row, where), whole(row, "n_samples", where)))
    alphas: dict[int, dict[int, float]] = defaultdict(dict)
    for (chunk, decodes), fitted in fits.items():
        samples = sum(count for _, count in fitted)
        if samples:
            alphas[chunk][decodes] = max(0.0, sum(alpha * count for alpha, count in fitted) / samples)
    return dict(alphas)


def _signed(row: CsvRow, where: str) -> float:
    try:
        return float(row["alpha"])
    except ValueError:
        raise UserError(f"{where}: alpha must be a number (found {row['alpha']!r})") from None


def _seconds(row: CsvRow, where: str) -> float:
    return number(row, "time_us", where) * 1e-6
