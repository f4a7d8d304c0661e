"""A compiled training job: from sequence lengths to the time of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.source import Floats
from steelyard.posttrain.training.efficiency import ATTENTION_BACKWARD, HIDDEN_AT_MOST
from steelyard.posttrain.training.flops import Flops
from steelyard.posttrain.training.layout import FSDP, TrainLayout
from steelyard.posttrain.training.memory import TrainingMemory
from steelyard.posttrain.training.packing import Batches, pack
from steelyard.posttrain.training.pipeline import forward_only, one_forward_one_backward
from steelyard.posttrain.training.result import TimeSplit, TrainingTime
from steelyard.posttrain.training.settings import TrainSettings
from steelyard.posttrain.training.tables import (
    BACKWARD,
    CP_BACKWARD,
    CP_FORWARD,
    EP_BACKWARD,
    EP_FORWARD,
    FORWARD,
    RECOMPUTED,
    TP_BACKWARD,
    TP_FORWARD,
    AttentionPart,
)


@dataclass(frozen=True)
class Exchanges:
    """Seconds of the exchanges between data-parallel ranks, if nothing else ran."""

    gradients: float  # reduced once per update, or with ZeRO-2 and 3 once per micro-batch
    weights: float  # gathered after an update, or with FSDP before each forward and backward pass
    fetch: float  # an offloaded reference policy, from the host


@dataclass(frozen=True)
class _Cells:
    """Seconds by stage, update, rank and micro-batch [stage, update, rank, micro-batch]."""

    forward: Floats
    backward: Floats
    recompute: Floats
    tp_forward: Floats
    tp_backward: Floats
    ep_forward: Floats
    ep_backward: Floats
    cp_forward: Floats
    cp_backward: Floats
    dp_forward: Floats
    dp_backward: Floats

    @property
    def all_forward(self) -> Floats:
        return self.forward + self.tp_forward + self.ep_forward + self.cp_forward + self.dp_forward

    @property
    def all_backward(self) -> Floats:
        return (
            self.backward + self.recompute + self.tp_backward + self.ep_backward + self.cp_backward + self.dp_backward
        )


@dataclass(frozen=True)
class TrainingCost:
    """A compiled training job. It gives the time of a step for any sequence lengths."""

    layout: TrainLayout
    settings: TrainSettings
    memory: TrainingMemory
    flops: Flops
    peak: float
    grid: Floats  # tokens of one GPU at which tables have values
    tables: Floats  # seconds of each different stage [stage, row, tokens]
    attention: tuple[tuple[AttentionPart, ...], ...]  # of each different stage
    stage_of: NDArray[np.int64]  # which of them each stage of the pipeline is
    sends: Floats  # seconds to the next stage, by tokens
    exchanges: Exchanges
    optimiser: float  # seconds of one update
    provenance: Mapping[str, float]  # shares of the arithmetic's seconds

    def pack(self, lengths: NDArray[np.integer]) -> Batches:
        """Assign a batch to updates, ranks and micro-batches. Several layouts can share the result."""
        layout, settings = self.layout, self.settings
        return pack(
            np.asarray(lengths, dtype=np.int64),
            layout.dp,
            layout.budget,
            updates=settings.minibatches,
            packing=settings.packing,
            quadratic=self.flops.quadratic,
        )

    def step(self, lengths: NDArray[np.integer]) -> TrainingTime:
        """One step over sequences of these lengths (prompt, answers and tool results together)."""
        return self.run(self.pack(lengths))

    def part(self, lengths: NDArray[np.integer], last: bool) -> TrainingTime:
        """A part of a step's sequences. Gradients accumulate until the last part, so a step makes one update."""
        dealt = pack(
            np.asarray(lengths, dtype=np.int64),
            self.layout.dp,
            self.layout.budget,
            packing=self.settings.packing,
            quadratic=self.flops.quadratic,
        )
        return self.run(dealt, update=last)

    def run(self, batches: Batches, update: bool = True) -> TrainingTime:
        """One step over a batch that was packed for the same numbers of ranks, updates and micro-batch tokens."""
        settings, lengths = self.settings, batches.lengths.astype(np.float64)
        tokens = batches.tokens
        cells, sends = self._cells(batches, lengths, tokens), self._at(self.sends, tokens / self.layout.cp)
        updates = settings.epochs * settings.trained
        split = self._updates(cells, sends, updates, update)
        forward = self.flops.forward(lengths)
        return TrainingTime(
            split=TimeSplit(log_probs=self._log_probs(cells, sends), **split),
            tokens=int(batches.lengths.sum()),
            sequences=len(batches.lengths),
            micro_batches=int((tokens > 0).sum(axis=(0, 2)).max()),
            update_flops=3.0 * updates * forward,
            log_prob_flops=settings.forward_passes * forward,
            gpus=self.layout.gpus,
            peak=self.peak,
        )

    def _at(self, table: Floats, tokens: Floats) -> Floats:
        """Rows of a table, interpolated at numbers of tokens."""
        where = np.clip(np.searchsorted(self.grid, tokens, side="right") - 1, 0, len(self.grid) - 2)
        share = (tokens - self.grid[where]) / (self.grid[where + 1] - self.grid[where])
        found: Floats = table[..., where] * (1.0 - share) + table[..., where + 1] * share
        return found

    def _cells(self, batches: Batches, lengths: Floats, tokens: Floats) -> _Cells:
        own = tokens / self.layout.cp
        rows = self._at(self.tables, own)
        attention, waiting = self._attention(batches, lengths, own)
        again = attention if self.layout.recompute != "none" else np.zeros_like(attention)
        forward, backward = rows[:, FORWARD] + attention, rows[:, BACKWARD] + ATTENTION_BACKWARD * attention
        recompute = rows[:, RECOMPUTED] + again
        gathering = self._gathering(forward, backward + recompute, tokens)
        pick = self.stage_of
        return _Cells(
            forward[pick],
            backward[pick],
            recompute[pick],
            rows[pick, TP_FORWARD],
            rows[pick, TP_BACKWARD],
            rows[pick, EP_FORWARD],
            rows[pick, EP_BACKWARD],
            rows[pick, CP_FORWARD] + waiting[pick, 0],
            rows[pick, CP_BACKWARD] + waiting[pick, 1],
            gathering[0][pick],
            gathering[1][pick],
        )

    def _attention(self, batches: Batches, lengths: Floats, own: Floats) -> tuple[Floats, Floats]:
        """Attention's forward seconds on each GPU by stage, and how long both passes wait for keys and values.

        Keys and values go round the context-parallel ring while attention works on those that have arrived.
        """
        ranks, stages = self.layout.cp, len(self.attention)
        total, waiting = np.zeros((stages, *own.shape)), np.zeros((stages, 2, *own.shape))
        one_layer: dict[int, Floats] = {}  # stages have the same kinds of layers
        for stage, parts in enumerate(self.attention):
            for part in parts:
                seconds = one_layer.get(id(part.time))
                if seconds is None:
                    seconds = one_layer[id(part.time)] = batches.add_up(part.time.seconds(lengths)) / ranks
                total[stage] += part.layers * seconds
                if ranks > 1:
                    hop, beside = self._at(part.hop, own), seconds / ranks
                    waiting[stage, 0] += part.layers * (ranks - 1) * np.maximum(0.0, hop - beside)
                    beside = ATTENTION_BACKWARD * beside
                    waiting[stage, 1] += part.layers * (ranks - 1) * np.maximum(0.0, 2.0 * hop - beside)
        return total, waiting

    def _gathering(self, forward: Floats, backward: Floats, tokens: Floats) -> tuple[Floats, Floats]:
        """How long each micro-batch waits for the exchange of ZeRO-2 and 3. The next layers are fetched meanwhile."""
        there = back = 0.0
        if self.layout.zero >= FSDP:
            there = back = self.exchanges.weights
        if self.layout.zero >= 2:
            back += self.exchanges.gradients
        used = tokens > 0
        return self._shown(there, forward) * used, self._shown(back, backward) * used

    def _shown(self, exchange: float, beside: Floats) -> Floats:
        """Seconds of an exchange that concurrent arithmetic cannot hide."""
        if not self.settings.overlap:
            return np.full_like(beside, exchange)
        return exchange - np.minimum(HIDDEN_AT_MOST * exchange, beside)

    def _updates(self, cells: _Cells, sends: Floats, times: int, update: bool) -> dict[str, float]:
        """All parts but log-probabilities, over all updates. Without ``update``, gradients are not reduced yet."""
        forward, backward = cells.all_forward, cells.all_backward
        alone = self._pipeline(forward, backward, sends)  # [update, rank]
        busy = (forward + backward).mean(axis=0).sum(axis=2)
        together = alone
        if self.layout.ranks_in_step > 1:
            together = self._pipeline(self._slowest(forward), self._slowest(backward), self._slowest(sends))
        wall = together.max(axis=1)
        parts = {name: times * float(_mean(each)) for name, each in _sums(cells).items()}
        shared = self._once_an_update(wall, forward.shape[-1]) if update and self.layout.zero < 2 else 0.0
        parts["dp"] += times * shared
        parts["bubble"] = times * float((alone - busy).mean(axis=1).sum())
        parts["imbalance"] = times * float((wall - alone.mean(axis=1)).sum())
        parts["optimiser"] = times * len(wall) * self.optimiser if update else 0.0
        return parts

    def _slowest(self, seconds: Floats) -> Floats:
        """The slowest of the ranks that run in step, by micro-batch [..., groups, micro-batch]."""
        *first, ranks, count = seconds.shape
        groups = ranks // self.layout.ranks_in_step
        found: Floats = seconds.reshape(*first, groups, -1, count).max(axis=-2)
        return found

    def _once_an_update(self, wall: Floats, count: int) -> float:
        """Seconds of exchanges once per update. Gradients are reduced during the last backward pass, weights gathered
        during the first forward pass: two thirds and one third of the time of a micro-batch."""
        one = wall / count
        shown = self._shown(self.exchanges.gradients, one * 2 / 3) + self._shown(self.exchanges.weights, one / 3)
        return float(shown.sum())

    def _pipeline(self, forward: Floats, backward: Floats, sends: Floats) -> Floats:
        """Seconds of each rank and update, without waiting for other ranks [update, rank]."""
        stages, updates, ranks, count = forward.shape
        if stages == 1:
            alone: Floats = (forward + backward).sum(axis=(0, 3))
            return alone
        there, back = (np.moveaxis(each, 0, 2).reshape(-1, stages, count) for each in (forward, backward))
        return one_forward_one_backward(there, back, sends.reshape(-1, count)).reshape(updates, ranks)

    def _log_probs(self, cells: _Cells, sends: Floats) -> float:
        """Seconds of forward passes over the batch. Ranks synchronise after each pass, or in every micro-batch."""
        passes = self.settings.forward_passes
        if not passes:
            return 0.0
        forward, sends = self._slowest(cells.all_forward), self._slowest(sends)
        stages, updates, ranks, count = forward.shape
        each = np.moveaxis(forward, 2, 0).reshape(ranks, stages, updates * count)
        seconds = forward_only(each, np.moveaxis(sends, 1, 0).reshape(ranks, -1)).max()
        return passes * float(seconds) + self.exchanges.fetch


def _sums(cells: _Cells) -> dict[str, Floats]:
    return {
        "forward": cells.forward,
        "backward": cells.backward,
        "recompute": cells.recompute,
        "tp": cells.tp_forward + cells.tp_backward,
        "ep": cells.ep_forward + cells.ep_backward,
        "cp": cells.cp_forward + cells.cp_backward,
        "dp": cells.dp_forward + cells.dp_backward,
    }


def _mean(seconds: Floats) -> Floats:
    """The mean over stages and ranks, summed over updates and micro-batches."""
    found: Floats = seconds.mean(axis=(0, 2)).sum()
    return found
