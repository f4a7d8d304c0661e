"""One exchange of gradients: rows are split over core ranks and lanes, and what lanes do not compute the core does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace

import torch

from steelyard.live.train.core import CoreRanks
from steelyard.live.train.frames import Stamp
from steelyard.live.train.lane import Lane, LaneGradient, LaneState
from steelyard.live.train.lanes import Lanes
from steelyard.live.train.replica import Computed, TrainingReplica
from steelyard.live.train.samples import TrainingRow, shares
from steelyard.live.train.settings import TrainerSettings


@dataclass
class TrainingStep:
    """A step that has begun, and what its parts have come to."""

    lanes: list[Lane]  # active since its beginning
    part: int = 0
    tokens: int = 0
    rows: list[TrainingRow] = field(default_factory=list)  # for later passes


@dataclass
class Exchanged:
    """What all replicas have computed of some rows."""

    total: Computed
    lanes: list[str] = field(default_factory=list)  # that have computed a share
    redone: int = 0  # rows that lanes had and did not compute
    lane_tokens: dict[str, int] = field(default_factory=dict)  # generated tokens of each lane's share

    def add(self, places: Sequence[int], computed: Computed) -> None:
        """Take over what one replica has computed of the rows at these places."""
        self.total.tokens += computed.tokens
        self.total.loss += computed.loss
        self.total.truncated += computed.truncated
        self.total.clipped += computed.clipped
        for place, found in zip(places, computed.logprobs, strict=True):
            self.total.logprobs[place] = found


@dataclass(frozen=True)
class _Asked:
    """A lane that computes some rows."""

    lane: Lane
    places: list[int]
    answer: Future[LaneGradient]


class GradientExchange:
    """Carries out exchanges of a group. All gradients end up in core ranks, as sums over tokens."""

    def __init__(self, settings: TrainerSettings, replica: TrainingReplica, core: CoreRanks, lanes: Lanes) -> None:
        self._settings = settings
        self._replica = replica
        self._core = core
        self._lanes = lanes

    def run(self, step: TrainingStep, stamp: Stamp, rows: Sequence[TrainingRow]) -> Exchanged:
        """Compute rows. Lanes that are syncing take part with none, and are not waited for."""
        stamp = _next(step, stamp)
        for lane in self._lanes.those(LaneState.SYNCING, LaneState.READY):
            lane.compute(stamp, ())
        lanes = [lane for lane in step.lanes if lane.state is LaneState.ACTIVE]
        split = shares([row.length for row in rows], self._core.ranks + len(lanes))
        asked = [
            _Asked(lane, places, lane.compute(stamp, [rows[place] for place in places]))
            for lane, places in zip(lanes, split[self._core.ranks :], strict=True)
        ]
        found = Exchanged(Computed([torch.empty(0)] * len(rows)))
        self._core_share(stamp, rows, split[: self._core.ranks], found)
        if missing := self._collect(asked, found):
            again = shares([rows[place].length for place in missing], self._core.ranks)
            split = [[missing[place] for place in places] for places in again]
            self._core_share(_next(step, stamp), rows, split, found)
            found.redone = len(missing)
        return found

    def _core_share(
        self, stamp: Stamp, rows: Sequence[TrainingRow], split: Sequence[Sequence[int]], found: Exchanged
    ) -> None:
        """Have core ranks compute rows, rank 0 among them."""
        own, *others = [[rows[place] for place in places] for places in split]
        self._core.ask(stamp, others)
        computed = [self._replica.accumulate(own), *self._core.answers(stamp, others)]
        for places, each in zip(split, computed, strict=True):
            found.add(places, each)

    def _collect(self, asked: Sequence[_Asked], found: Exchanged) -> list[int]:
        """Wait for gradients of lanes, for a limited time. Returns the rows of those that did not answer."""
        until = time.monotonic() + self._settings.gradient_seconds
        missing: list[int] = []
        for each in asked:
            try:
                answer = each.answer.result(timeout=max(0.0, until - time.monotonic()))
            except CancelledError:  # the lane has ended
                missing += each.places
                continue
            except TimeoutError:
                each.lane.end(f"its gradient took more than {self._settings.gradient_seconds:g} s")
                missing += each.places
                continue
            if answer.gradient is not None:
                self._replica.gradient.add_(answer.gradient.to(self._replica.gradient.device))
                found.lanes.append(each.lane.name)
            found.add(each.places, answer.computed)
            found.lane_tokens[each.lane.name] = answer.computed.tokens
        return missing


def _next(step: TrainingStep, stamp: Stamp) -> Stamp:
    step.part += 1
    return replace(stamp, part=step.part)
