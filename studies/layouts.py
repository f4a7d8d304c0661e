"""Kinds of engines that a fleet can be made of, and an estimate of their capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from steelyard import UserError
from steelyard.search.estimates import answers_per_second, prompt_seconds, prompts_per_second
from steelyard.sim.setup import set_up
from studies.estimates import asked_of
from studies.outcome import loaded

Pool = dict[str, Any]

_SIZES = (8, 16, 32, 48, 64)  # GPUs of an engine, so that whole nodes are used
_TPS = (1, 2, 4, 8)
_BATCHES = (512, 2048, 8192)  # tokens of a step: in captured pieces, and kernel by kernel
_INSTANCES = (8, 16, 24, 32, 48, 64)  # attention instances of a unit
_FFN_GPUS = (8, 16, 24, 32, 48)
_MICRO_BATCHES = (2, 3)
_NEAR = {"allgather_reducescatter": "", "deepep_low_latency": " ll", "deepep_high_throughput": " ht"}


@dataclass(frozen=True)
class Kind:
    """One engine or unit: its pools, GPUs, estimated capacity (requests per second) and seconds of a single prompt."""

    name: str
    pools: tuple[Pool, ...]
    gpus: int
    per_second: float
    alone: float = 0.0
    micro_batches: int = 0  # of a unit

    @property
    def per_gpu(self) -> float:
        """Requests a second and GPU."""
        return self.per_second / self.gpus

    def times(self, count: int) -> list[Pool]:
        """Pools of ``count`` engines."""
        return [{**pool, "replicas": pool["replicas"] * count} for pool in self.pools]


@dataclass
class Found:
    """Kinds that work, and how many were considered."""

    kinds: list[Kind]
    looked_at: int = 0
    refused: int = 0


class Workshop:
    """Builds kinds of engines for one template and GPU, with their estimated capacity within a TPOT."""

    def __init__(self, template: Path, changes: Sequence[str], tpot: float) -> None:
        self.template, self.changes, self.tpot = template, changes, tpot

    def serving(self, gpu: str) -> Found:
        """Engines that prefill and decode."""
        found = Found([])
        for layout, batch in product(_layouts("deepep_low_latency"), _BATCHES):
            pool = {"role": "serve", "gpu": gpu, "replicas": 1, **layout, "engine": {"max_num_batched_tokens": batch}}
            self._add(found, f"{_name(layout)}, {batch} tokens a step", [pool], prompts_too=True)
        return found

    def prefilling(self, gpu: str) -> Found:
        """Engines that prefill; ``alone`` is the time of one prompt."""
        found = Found([])
        for layout, batch in product(_layouts("deepep_high_throughput"), _BATCHES):
            pool = {"role": "prefill", "gpu": gpu, "replicas": 1, **layout, "engine": {"max_num_batched_tokens": batch}}
            name = f"{_name(layout)}, {batch} tokens a step"
            found.looked_at += 1
            try:
                setup = set_up(loaded(self.template, {"pools": [{**pool, "role": "serve"}]}, 1, 1, self.changes))
            except UserError:
                found.refused += 1
                continue
            engine, asked = setup.pools[0], asked_of(setup)
            carried = prompts_per_second(engine, asked)
            found.kinds.append(Kind(name, (pool,), setup.gpus, carried, prompt_seconds(engine, asked)))
        return found

    def decoding(self, gpu: str) -> Found:
        """Engines that decode."""
        found = Found([])
        for layout in _layouts("deepep_low_latency"):
            pool = {"role": "decode", "gpu": gpu, "replicas": 1, **layout, "engine": {"max_num_batched_tokens": 2048}}
            self._add(found, _name(layout), [pool], prompts_too=False)
        return found

    def units(self, attention_gpu: str, ffn_gpu: str, prompts_too: bool, most_gpus: int) -> Found:
        """Units of attention and FFN instances, with or without prompts of their own."""
        found = Found([])
        for tp, instances, ffn, micro in product((1, 2, 4), _INSTANCES, _FFN_GPUS, _MICRO_BATCHES):
            if tp * instances + ffn > most_gpus:
                continue
            settings = {"engine": {"max_num_batched_tokens": 512}}
            attention = {"role": "attention", "gpu": attention_gpu, "replicas": instances, "tp": tp, **settings}
            experts = {"role": "ffn", "gpu": ffn_gpu, "replicas": ffn, **settings}
            name = f"{instances} x {'' if tp == 1 else f'TP{tp} '}attention : {ffn} FFN, {micro} micro-batches"
            self._add(found, name, [attention, experts], prompts_too=prompts_too, micro=micro)
        return found

    def _add(self, found: Found, name: str, pools: list[Pool], *, prompts_too: bool, micro: int = 0) -> None:
        found.looked_at += 1
        alone = [{**pool, "role": "serve"} if pool["role"] == "decode" else pool for pool in pools]
        fleet: dict[str, Any] = {"pools": alone} | ({"afd": {"units": 1, "micro_batches": micro}} if micro else {})
        try:
            setup = set_up(loaded(self.template, fleet, 1, 1, self.changes))
        except UserError:
            found.refused += 1
            return
        carried = answers_per_second(setup.pools[0], asked_of(setup), self.tpot, prompts_too)
        if carried > 0:
            found.kinds.append(Kind(name, tuple(pools), setup.gpus, carried, micro_batches=micro))


def _layouts(all2all: str) -> Iterator[Pool]:
    """Tensor-parallel nodes, and data-parallel ranks with expert parallelism, with both kinds of all-to-all."""
    yield {"tp": 8}
    for size, tp in product(_SIZES, _TPS):
        layout = {"tp": tp, "dp": size // tp, "expert_parallel": True}
        if layout["dp"] == 1:
            yield layout
            continue
        for way in ("allgather_reducescatter", all2all):
            yield {**layout, "all2all": way}


def _name(layout: Pool) -> str:
    tp, dp = layout["tp"], layout.get("dp", 1)
    parts = [f"TP{tp}"] * (tp > 1) + [f"DP{dp}"] * (dp > 1)
    if layout.get("expert_parallel"):
        parts.append(f"EP{tp * dp}{_NEAR[layout.get('all2all', 'allgather_reducescatter')]}")
    return " ".join(parts)
