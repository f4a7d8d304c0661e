"""The lines of a bundle, each checked: a point without a dimension would be a wrong time, or none, much later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, did_you_mean, quoted, shown
from steelyard.files.jsontext import json_lines, required

Line = dict[str, Any]

_ROWS_OF_HEADS = ("m", "heads", "kv_heads", "dim")
DIMENSIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gemm", "gemm_fp8"), ("m", "n", "k")),
    **dict.fromkeys(("norm", "gated_act", "quantize"), ("m", "width")),
    **dict.fromkeys(("rope", "qk_norm"), _ROWS_OF_HEADS),
    "kv_write": ("m", "kv_heads", "dim"),
    "attention": ("heads", "kv_heads", "dim"),
    "moe": ("m", "experts", "top_k", "hidden", "inter"),
    "topk": ("m", "experts", "top_k"),
    **dict.fromkeys(("sampler", "gumbel", "greedy"), ("m", "vocab")),
    "layer": ("cached", "hidden", "inter", *_ROWS_OF_HEADS),
    "copy": ("bytes",),
    "tiny": (),
}
"""Dimensions that every point of a family has, all of them whole numbers."""

_OTHERS = ("queries", "keys", "window", "kv_bytes", "pool", "zipf")  # that tell points apart
_MOST, _MOST_BYTES = 1_000_000_000, 1_000_000_000_000  # of a dimension, and of a copy
_MOST_HEADS = 4096  # and of their size
_MOST_US = 1e9  # a quarter of an hour; no kernel takes a second
_MOST_QUERIES, _MOST_KEYS = 1 << 20, 1 << 27  # tokens of a batch of attention, whose tiles are simulated one by one


def bundle_lines(path: Path, torn: bool = False) -> Iterator[tuple[str, Line]]:
    """The description of a bundle, then its points. With ``torn`` the last line may be incomplete, and is left out."""
    rows = json_lines(path, torn=torn)
    where, first = next(rows, (shown(path), {}))
    _check_about(first, where)
    yield where, first
    seen: dict[tuple[object, ...], str] = {}
    for where, row in rows:
        identity = _checked(row, where)
        before = seen.setdefault(identity, where)
        if before != where:
            raise UserError(f"{where}: point: was measured in line {before.rpartition(':')[2]} already; give it once")
        yield where, row


def _check_about(row: Line, where: str) -> None:
    about = row.get("about")
    if not isinstance(about, dict) or not isinstance(about.get("gpu"), str):
        raise UserError(
            f'{where}: about: not a bundle of measured operators; its first line is {{"about": {{"gpu": NAME, ...}}}} '
            f"(found {quoted(about)})"
        )
    if "kept_up_tflops" in about:
        _check_number(about, "kept_up_tflops", f"{where}: about", least=1.0)


def _checked(row: Line, where: str) -> tuple[object, ...]:
    """The identity of a point that has all that its family needs."""
    point = required(row, "point", where)
    op = point.get("op") if isinstance(point, dict) else None
    if not isinstance(op, str) or op not in DIMENSIONS:
        told = did_you_mean(op if isinstance(op, str) else "", DIMENSIONS)
        raise UserError(f"{where}: point.op: {told} (found {quoted(op)})")
    if "error" in row:
        return (where,)
    sizes = [point.get(name) for name in DIMENSIONS[op]]
    most = _MOST_BYTES if op == "copy" else _MOST_HEADS if op == "attention" else _MOST
    for name, size in zip(DIMENSIONS[op], sizes, strict=True):
        if type(size) is not int or not 1 <= size <= most:
            raise UserError(f"{where}: point.{name}: {op} needs a whole number, 1 to {most:,} (found {quoted(size)})")
    _check_number(row, "us", where, least=1e-6)
    for name in ("spread", "launch_us", "compile_s"):
        if name in row:
            _check_number(row, name, where)
    for name, value in (*row.items(), *point.items()):
        if isinstance(value, dict | list) and name not in ("point", "queries", "keys"):
            raise UserError(f"{where}: {name}: must be a single value (found {quoted(value)})")
    if op == "attention":
        _check_batch(point, where)
    elif op == "moe":
        _check_number(point, "zipf", f"{where}: point")
    elif op == "layer":
        _check_number(row, "apart_us", where)
    return op, *sizes, *(str(point[name]) for name in _OTHERS if name in point)


def _check_number(row: Line, key: str, where: str, least: float = 0.0) -> None:
    value: Any = row.get(key)
    if type(value) not in (int, float) or not least <= value <= _MOST_US:
        raise UserError(f"{where}: {key}: must be a number, {least:g} to {_MOST_US:g} (found {quoted(value)})")


def _check_batch(point: Line, where: str) -> None:
    """New and cached tokens of each request, and what is not usual about its cache."""
    for name, most in (("queries", _MOST_QUERIES), ("keys", _MOST_KEYS)):
        found = point.get(name)
        if not isinstance(found, list) or not found or not all(type(each) is int and each >= 1 for each in found):
            raise UserError(f"{where}: point.{name}: must be a list of tokens, at least 1 each (found {quoted(found)})")
        if sum(found) > most:
            raise UserError(f"{where}: point.{name}: {sum(found):,} tokens in all, of {most:,} at most")
    queries, keys = point["queries"], point["keys"]
    if len(queries) != len(keys) or any(new > seen for new, seen in zip(queries, keys, strict=True)):
        raise UserError(f"{where}: point.keys: needs as many as queries, each at least as large (found {quoted(keys)})")
    if point["heads"] % point["kv_heads"]:
        raise UserError(f"{where}: point.heads: must be a multiple of kv_heads (found {quoted(point['heads'])})")
    for name in ("window", "kv_bytes", "pool"):
        if name in point and (type(point[name]) is not int or not 1 <= point[name] <= _MOST):
            raise UserError(f"{where}: point.{name}: must be a whole number (found {quoted(point[name])})")
