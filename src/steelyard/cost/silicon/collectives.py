"""Communication inside a group, from the tables: collectives by bytes, experts' all-to-all by tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from steelyard.cost.collectives import ExpertExchange, Kind
from steelyard.cost.interpolate import along, rising
from steelyard.cost.silicon.database import Column, Database, Origin, Value, seconds
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, Estimate, Floats
from steelyard.hardware import Span

_ELEMENT_BYTES = 2  # bfloat16 and half
_NCCL = {
    "nccl_allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "alltoall",
}
_BACKENDS = {"high_throughput": "deepep_ht", "low_latency": "deepep_ll"}
_LOW_LATENCY = "wideep_deepep_ll_perf"
_GPUS_PER_NODE = 8  # in that table, which counts nodes
_Points = tuple[Floats, Floats]


@dataclass(frozen=True)
class MeasuredCollectives:
    """Collectives and all-to-alls of one GPU type, in standard nodes."""

    database: Database

    def collective(self, kind: Kind, span: Span, size: Floats) -> Estimate | None:
        found = timed(self.database, kind, span)
        return None if found is None else along(size, found[0], found[1])

    def exchange(self, exchange: ExpertExchange, span: Span, tokens: Floats) -> Estimate | None:
        """The measured shape with as many experts per token and the nearest row size, at equal bytes."""
        for shapes in _exchanges(self.database, exchange, span):
            alike = {shape: points for shape, points in shapes.items() if shape.top_k == exchange.top_k}
            if not alike:
                continue
            nearest = min(alike, key=lambda shape: shape.distance(exchange))
            sent = tokens * exchange.row_bytes / nearest.row_bytes
            found = along(sent, *alike[nearest])
            rows = [shape.row_bytes for shape in alike]
            inside = min(rows) <= exchange.row_bytes <= max(rows)
            least = 0 if nearest.distance(exchange) == (0, 0) else INTERPOLATED if inside else EXTRAPOLATED
            return Estimate(found.seconds, np.maximum(found.provenance, least).astype(np.int8))
        return None


class _Shape(NamedTuple):
    """What one curve over tokens was measured for."""

    row_bytes: int
    top_k: int
    experts: int

    def distance(self, exchange: ExpertExchange) -> tuple[float, float]:
        rows = abs(np.log(self.row_bytes / exchange.row_bytes))
        return float(rows), float(abs(self.experts - exchange.experts))


def allreduce(database: Database, ranks: int) -> tuple[Floats, Floats, Origin] | None:
    """Bytes and seconds of the engine's own all-reduce, in a CUDA graph if that was timed."""
    for origin in database.origins("comm", "custom_allreduce_perf"):
        size, time = _summed(origin, ranks)
        if len(size) > 1:
            return size, time, origin
    return None


def timed(database: Database, kind: Kind, span: Span) -> tuple[Floats, Floats, Origin] | None:
    """Bytes and seconds of a collective; only groups inside a node were timed."""
    if span.nodes > 1:
        return None
    return allreduce(database, span.ranks) if kind == "allreduce" else nccl(database, kind, span.ranks)


def nccl(database: Database, kind: Kind, ranks: int) -> tuple[Floats, Floats, Origin] | None:
    """Bytes and seconds of one of NCCL's collectives."""
    if kind not in _NCCL:
        return None
    for origin in database.origins("comm", "nccl_perf"):
        size, time = _gathered(origin, _NCCL[kind], ranks)
        if len(size) > 1:
            return size, time, origin
    return None


@cache
def _summed(origin: Origin, ranks: int) -> _Points:
    table = origin.read("message_size", "latency", "kernel_source", num_gpus=ranks)
    kind = table["kernel_source"].astype(str)
    replayed = np.char.endswith(kind, "graph")
    return _points(table["message_size"], table["latency"], replayed if replayed.any() else ~replayed)


@cache
def _gathered(origin: Origin, operation: str, ranks: int) -> _Points:
    table = origin.read("message_size", "latency", num_gpus=ranks, op_name=operation, nccl_dtype="half")
    return _points(table["message_size"], table["latency"], np.ones(len(table["latency"]), dtype=bool))


def _points(elements: Column, latency: Column, chosen: Column) -> _Points:
    return rising(elements[chosen].astype(np.float64) * _ELEMENT_BYTES, seconds(latency[chosen]))


def _exchanges(database: Database, exchange: ExpertExchange, span: Span) -> list[dict[_Shape, _Points]]:
    """Tables of this step, mode and group; first those that time what an engine waits for.

    Low-latency kernels run in a CUDA graph: SGLang's tables time them alone, vLLM's with some 40 us of launches by the
    host. In high-throughput mode engines wait for the host, which only vLLM's tables include.
    """
    if exchange.mode not in _BACKENDS:
        return []
    backend, step = _BACKENDS[exchange.mode], exchange.step
    tables = [
        _timed_by_vllm(origin, backend, step, span.ranks, span.nodes)
        for origin in database.origins("comm", "moe_a2a_perf")
        if origin.engine == "vllm"
    ]
    if exchange.mode == "low_latency" and span.fewest == span.most == _GPUS_PER_NODE:
        kernels = [_timed_by_sglang(origin, step, span.nodes) for origin in database.origins("comm", _LOW_LATENCY)]
        return kernels + tables
    return tables


@cache
def _timed_by_vllm(origin: Origin, backend: str, step: str, ranks: int, nodes: int) -> dict[_Shape, _Points]:
    """Rows are sent as bfloat16 both ways; times are in microseconds here."""
    where: dict[str, Value] = {"comm_backend": backend, "phase": step, "ep_size": ranks, "node_num": nodes}
    keys = ("hidden_size", "topk", "num_experts", "num_tokens", "transmit_us")
    return _by_shape(2, *origin.read(*keys, **where).values())


@cache
def _timed_by_sglang(origin: Origin, step: str, nodes: int) -> dict[_Shape, _Points]:
    """Rows are sent as fp8 and come back as bfloat16; times are in microseconds here, too."""
    keys = ("hidden_size", "num_topk", "num_experts", "num_token", f"{step}_avg_t_us")
    return _by_shape(1 if step == "dispatch" else 2, *origin.read(*keys, node_num=nodes).values())


def _by_shape(
    element: int, hidden: Column, top_k: Column, experts: Column, tokens: Column, micros: Column
) -> dict[_Shape, _Points]:
    """One curve of seconds over tokens for each shape with more than one point."""
    shapes: dict[_Shape, _Points] = {}
    names = list(zip(hidden.tolist(), top_k.tolist(), experts.tolist(), strict=True))
    for each in sorted(set(names)):
        chosen = np.array([name == each for name in names])
        points = rising(tokens[chosen].astype(np.float64), micros[chosen].astype(np.float64) * 1e-6)
        if len(points[0]) > 1:
            shapes[_Shape(each[0] * element, each[1], each[2])] = points
    return shapes
