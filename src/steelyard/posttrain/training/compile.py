"""Training jobs of one model on GPUs of one kind. What layouts share is computed once: operator times, tables of stages
and the bytes of their weights and activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from steelyard.cost import CostSource, FirstOf, Roofline
from steelyard.cost.source import PROVENANCES, Floats
from steelyard.errors import UserError
from steelyard.hardware import Gpu, Topology
from steelyard.model import ModelSpec, Routing
from steelyard.posttrain.training.cost import TrainingCost
from steelyard.posttrain.training.exchanges import exchanges_of, optimiser_seconds
from steelyard.posttrain.training.flops import flops_of
from steelyard.posttrain.training.groups import Groups
from steelyard.posttrain.training.kernels import Answers, Kernels
from steelyard.posttrain.training.layout import TrainLayout, layout_refusal
from steelyard.posttrain.training.memory import Footprint, TrainingMemory, footprints, fullest, memory_refusal
from steelyard.posttrain.training.settings import TrainSettings, settings_refusal
from steelyard.posttrain.training.tables import AttentionPart, Tabulator
from steelyard.records import Ints

_POINTS = 10  # numbers of tokens that are tabulated; linear between them
_FEWEST = 64
_MOST_LAYOUTS = 1 << 13  # that are remembered: those of several searches over some hundred GPUs
_MOST_SECONDS = 1 << 14  # times of steps that are remembered: those of some dozens of batches with all layouts
_MOST_JOBS = 1 << 10  # compiled ones that are remembered


@dataclass(frozen=True)
class _Tables:
    """What layouts with the same stages and micro-batches share, whatever their data-parallel ranks."""

    grid: Floats
    seconds: Floats
    attention: tuple[tuple[AttentionPart, ...], ...]
    stage_of: NDArray[np.int64]
    provenance: dict[str, float]


@dataclass
class TrainingJobs:
    """Compiles jobs. Weights are trained in 16 bits, whatever they are served in.

    The time of each operator comes from the first source that knows it, or else from the roofline.
    """

    model: ModelSpec
    gpu: Gpu
    topology: Topology
    sources: Sequence[CostSource] = ()
    routing: Routing = field(default_factory=Routing)

    def __post_init__(self) -> None:
        self._plain = replace(self.model, quantization=None)
        self._source = FirstOf((*self.sources, Roofline(self.gpu, self.topology)))
        self._answers = Answers()
        self._flops = flops_of(self._plain)
        self.fits = lru_cache(_MOST_LAYOUTS)(self._fits)
        self.compile = lru_cache(_MOST_JOBS)(self._compile)
        self._seconds: dict[tuple[TrainLayout, TrainSettings, bytes], float] = {}
        self._laid_out = lru_cache(_MOST_LAYOUTS)(self._layout_refusal)
        self._footprints = lru_cache(_MOST_JOBS)(self._footprints_of)
        self._tables = lru_cache(_MOST_JOBS)(self._tabulated)

    def seconds(self, layout: TrainLayout, settings: TrainSettings, lengths: Ints) -> float:
        """Seconds of a step. Computed once per layout and batch, since many plans share a layout."""
        key = layout, settings, blake2b(lengths.tobytes(), digest_size=16).digest()
        found = self._seconds.get(key)
        if found is None:
            if len(self._seconds) >= _MOST_SECONDS:
                self._seconds.clear()
            found = self._seconds[key] = self.compile(layout, settings).step(lengths).seconds
        return found

    def _fits(self, layout: TrainLayout, settings: TrainSettings) -> bool:
        """Whether a job can run like this. Fast enough to filter layouts with."""
        return self._problem(layout, settings) is None and self._memory(layout, settings).fits

    def _compile(self, layout: TrainLayout, settings: TrainSettings) -> TrainingCost:
        """Compile a job; refuses one that cannot run."""
        if refused := self.refusal(layout, settings):
            raise UserError(f"training: {refused}")
        # Ranks and what they shard do not change what one GPU computes, nor does which sequences a rank gets.
        tables = self._tables(replace(layout, dp=1, zero=1), replace(settings, packing="balanced", batch=None))
        groups = Groups(self.topology, layout)
        held = [each.weights for each in self._stages(layout)]
        return TrainingCost(
            layout=layout,
            settings=settings,
            memory=self._memory(layout, settings),
            flops=self._flops,
            peak=self.gpu.peak(self._plain.compute),
            grid=tables.grid,
            tables=tables.seconds,
            attention=tables.attention,
            stage_of=tables.stage_of,
            sends=groups.send(tables.grid * (self._plain.hidden * self._plain.dtype_bytes / layout.tp)),
            exchanges=exchanges_of(self.gpu, groups, held, settings),
            optimiser=optimiser_seconds(self.gpu, held, layout),
            provenance=tables.provenance,
        )

    def refusal(self, layout: TrainLayout, settings: TrainSettings) -> str | None:
        """Why a job cannot run like this; None if it can."""
        if problem := self._problem(layout, settings):
            return problem
        return memory_refusal(self._plain, self.gpu, layout, self._memory(layout, settings))

    def _problem(self, layout: TrainLayout, settings: TrainSettings) -> str | None:
        """Why a job cannot run, memory aside."""
        alike = replace(layout, micro_batch_tokens=min(1, layout.micro_batch_tokens))
        return self._laid_out(alike) or settings_refusal(settings, layout.dp)

    def _layout_refusal(self, layout: TrainLayout) -> str | None:
        return layout_refusal(self._plain, self.topology, layout)

    def _memory(self, layout: TrainLayout, settings: TrainSettings) -> TrainingMemory:
        return fullest(self._stages(layout), self.gpu, layout, settings)

    def _stages(self, layout: TrainLayout) -> tuple[Footprint, ...]:
        return self._footprints(replace(layout, dp=1, cp=1, zero=1, micro_batch_tokens=1))

    def _footprints_of(self, layout: TrainLayout) -> tuple[Footprint, ...]:
        return footprints(self._plain, layout)

    def _tabulated(self, layout: TrainLayout, settings: TrainSettings) -> _Tables:
        grid = _grid(layout.micro_batch_tokens)
        kernels = Kernels(self._source, layout, grid, settings.kept_up, self._answers)
        stages = layout.stages(self._plain)
        different = list(dict.fromkeys(stages))
        tabulator = Tabulator(self._plain, kernels, Groups(self.topology, layout), settings, self.routing)
        found = [tabulator.stage(stage) for stage in different]
        return _Tables(
            grid,
            np.stack([each.seconds for each in found]),
            tuple(each.attention for each in found),
            np.array([different.index(stage) for stage in stages]),
            _shares(kernels.by_provenance),
        )


def compile_training(
    model: ModelSpec,
    gpu: Gpu,
    topology: Topology,
    layout: TrainLayout,
    settings: TrainSettings | None = None,
    sources: Sequence[CostSource] = (),
    routing: Routing | None = None,
) -> TrainingCost:
    """Compile one job; refuses one that cannot run."""
    jobs = TrainingJobs(model, gpu, topology, sources, routing or Routing())
    return jobs.compile(layout, settings or TrainSettings())


def _grid(most: int) -> Floats:
    """Numbers of tokens from 0 to ``most``, evenly spaced in their logarithms."""
    fewest = min(_FEWEST, max(1, most // 2))
    inner = np.geomspace(fewest, most, _POINTS) if most > 1 else np.ones(1)
    return np.concatenate([[0.0], np.unique(np.round(inner))])


def _shares(seconds: Floats) -> dict[str, float]:
    total = float(seconds.sum())
    return {name: float(each) / total for name, each in zip(PROVENANCES, seconds, strict=True) if each}
