"""Element-wise work as an engine runs it: plain tensor expressions that torch compiles to one or two kernels.

vLLM leaves norms, rotary embeddings and activations to the compiler by default, which also fuses those of q and k. As
there, each is compiled once for any number of rows, with a large step as the example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F

_EPSILON = 1e-6  # of a norm; any value takes as long
_EXAMPLE_ROWS = 2048  # of the large step that kernels are compiled for; chosen

torch._dynamo.config.automatic_dynamic_shapes = False  # only rows vary; kernels for any width would be slower
torch._dynamo.config.recompile_limit = 64


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function of (rows, constants); only the former have one row per token."""
    compiled = torch.compile(function, options={"combo_kernels": True, "benchmark_combo_kernel": True})
    shapes: set[tuple[Any, ...]] = set()

    @wraps(function)
    def call(rows: tuple[Any, ...], *constants: Any) -> Any:
        shape = tuple(each.shape[1:] for each in rows)
        if shape not in shapes:
            shapes.add(shape)
            examples = tuple(_like(each) for each in rows)
            compiled(examples, *constants)
        return compiled(rows, *constants)

    return call


def _like(rows: Any) -> Any:
    """Many rows with the same memory layout."""
    wide = rows.new_zeros(_EXAMPLE_ROWS, *([rows.stride(0)] if rows.dim() > 1 else []))
    example = wide.as_strided((_EXAMPLE_ROWS, *rows.shape[1:]), rows.stride())
    torch._dynamo.mark_dynamic(example, 0)
    return example


def _norm(x: Any, weight: Any) -> Any:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + _EPSILON)
    return wide.to(weight.dtype) * weight


@_kernel
def add_norm(rows: tuple[Any, Any], weight: Any) -> tuple[Any, Any]:
    """The residual sum, and its norm."""
    x, residual = rows
    total = x.float() + residual.float()
    return _norm(total, weight), total.to(x.dtype)


@_kernel
def both_norms(rows: tuple[Any, Any], weight: Any) -> tuple[Any, Any]:
    """The norms of all heads of q and k."""
    q, k = rows
    return _norm(q, weight), _norm(k, weight)


@_kernel
def gated(rows: tuple[Any]) -> Any:
    """The activated gate times up."""
    gate, up = rows[0].chunk(2, dim=-1)
    return F.silu(gate) * up


@_kernel
def rotate(rows: tuple[Any, Any, Any], table: Any) -> tuple[Any, Any]:
    """Rotary embedding of q and k: each pair of a head's halves is rotated by its position's angles."""
    q, k, positions = rows
    cos, sin = (part.unsqueeze(1) for part in table.index_select(0, positions).chunk(2, dim=-1))

    def turned(x: Any) -> Any:
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    return turned(q), turned(k)
