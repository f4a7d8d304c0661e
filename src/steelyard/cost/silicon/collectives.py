"""Communication inside a tensor-parallel group, by the bytes of the whole tensor."""

from __future__ import annotations

from functools import cache

import numpy as np

from steelyard.cost.interpolate import rising
from steelyard.cost.silicon.database import Column, Database, Origin, seconds
from steelyard.cost.source import Floats

_ELEMENT_BYTES = 2


def allreduce(database: Database, ranks: int) -> tuple[Floats, Floats, Origin] | None:
    """Bytes and seconds of the engine's own all-reduce, replayed from a graph where that was timed."""
    for origin in database.origins("comm", "custom_allreduce_perf"):
        size, time = _summed(origin, ranks)
        if len(size) > 1:
            return size, time, origin
    return None


def allgather(database: Database, ranks: int) -> tuple[Floats, Floats, Origin] | None:
    """Bytes and seconds of NCCL's all-gather."""
    for path in sorted(database.folder.glob("comm/nccl/*/nccl_perf.parquet"), reverse=True):
        origin = Origin("nccl", path.parent.name, path)
        size, time = _gathered(origin, ranks)
        if len(size) > 1:
            return size, time, origin
    return None


@cache
def _summed(origin: Origin, ranks: int) -> tuple[Floats, Floats]:
    table = origin.read("message_size", "latency", "kernel_source", num_gpus=ranks)
    kind = table["kernel_source"].astype(str)
    replayed = np.char.endswith(kind, "graph")
    return _points(table["message_size"], table["latency"], replayed if replayed.any() else ~replayed)


@cache
def _gathered(origin: Origin, ranks: int) -> tuple[Floats, Floats]:
    table = origin.read("message_size", "latency", num_gpus=ranks, op_name="all_gather", nccl_dtype="half")
    return _points(table["message_size"], table["latency"], np.ones(len(table["latency"]), dtype=bool))


def _points(elements: Column, latency: Column, chosen: Column) -> tuple[Floats, Floats]:
    return rising(elements[chosen].astype(np.float64) * _ELEMENT_BYTES, seconds(latency[chosen]))
