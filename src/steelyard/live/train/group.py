"""A training group: rank 0 of the core, which all others connect to.

Core ranks never change. Lanes come and go between steps: they get samples and give gradients over connections of their
own, so that no lane can stop the core.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from steelyard.errors import UserError
from steelyard.live.train.checkpoint import Progress, begun, latest, publish, read_checkpoint, write_checkpoint
from steelyard.live.train.core import CoreLost, CoreRanks
from steelyard.live.train.door import Door, Role
from steelyard.live.train.exchange import Exchanged, GradientExchange, TrainingStep
from steelyard.live.train.frames import Channel, ChannelFailed, Frame, Stamp
from steelyard.live.train.lane import Lane, LaneReport, LaneState, Reports, UpdateOrder
from steelyard.live.train.lanes import Lanes
from steelyard.live.train.objective import advantages
from steelyard.live.train.replica import TrainingReplica
from steelyard.live.train.samples import Sample, check, row_of, staleness
from steelyard.live.train.settings import TrainerSettings, TrainReport
from steelyard.live.train.weights import load_model, named, read_config

_GREETING_SECONDS = 60.0  # to tell a worker about the model; chosen


class TrainingGroup:
    """Use `begin` or `resume`, start the other ranks, and call `start`.

    `train`, `checkpoint`, `publish` and `logprobs` wait for each other. `join`, `activate`, `leave`, `drop` and `lanes`
    return at once and may be called from any thread at any time.
    """

    def __init__(
        self, settings: TrainerSettings, replica: TrainingReplica, progress: Progress, ranks: int, host: str, port: int
    ) -> None:
        self.settings = settings
        self.progress = progress
        self.secret = secrets.token_hex(32)
        self._replica = replica
        self._config = read_config(settings.model)
        self._step: TrainingStep | None = None  # whose last part has not come yet
        self._published: tuple[int, Path] | None = None  # the last version, and where it is
        self._busy = Lock()
        self._changing = Lock()  # held while weights change, and while they are copied for a lane
        self._lanes = Lanes(settings, self._snapshot)
        self._core = CoreRanks(settings, ranks, host)
        self._exchange = GradientExchange(settings, replica, self._core, self._lanes)
        self._door = Door(host, port, self.secret, self._entered)

    @classmethod
    def begin(cls, settings: TrainerSettings, ranks: int = 1, host: str = "127.0.0.1", port: int = 0) -> TrainingGroup:
        """A new run, from the weights in `settings.model`. Port 0 chooses a free one."""
        if begun(settings):
            raise UserError(f"{settings.folder}: has checkpoints of a run; resume it, or give another folder")
        torch.manual_seed(settings.seed)
        replica = TrainingReplica(read_config(settings.model), settings, load_model(settings.model))
        return cls(settings, replica, Progress(), ranks, host, port)

    @classmethod
    def resume(cls, settings: TrainerSettings, ranks: int = 1, host: str = "127.0.0.1", port: int = 0) -> TrainingGroup:
        """Go on from the newest checkpoint in `settings.folder`."""
        folder = latest(settings)
        replica = TrainingReplica(read_config(settings.model), settings)
        state, progress = read_checkpoint(folder, settings)
        try:
            replica.load(state, progress.updates)
        except (KeyError, RuntimeError) as problem:
            raise UserError(f"{folder}: not a checkpoint of the model in {settings.model}: {problem}") from None
        return cls(settings, replica, progress, ranks, host, port)

    @property
    def address(self) -> str:
        """Where workers connect, as HOST:PORT."""
        return f"{self._door.host}:{self._door.port}"

    @property
    def reports(self) -> Reports:
        """A queue with a `LaneReport` for every change of a lane."""
        return self._lanes.reports

    def start(self, seconds: float = 300.0) -> None:
        """Wait for the other core ranks, and give them the state."""
        state = Frame("state", self._stamp(), tensors=self._replica.state() if self._core.ranks > 1 else {})
        self._core.start(self._welcome(), state, seconds)

    def close(self) -> None:
        """End all ranks and lanes."""
        self._door.close()
        self._lanes.close()
        self._core.close()

    # Training

    def train(self, step: int, samples: Sequence[Sample], last: bool) -> TrainReport:
        """Compute the gradient of a part of a step, in whole groups. The ``last`` part ends in an update."""
        began = time.monotonic()
        with self._busy:
            version = self.progress.version
            current = self._begun(step, samples)
            compared = advantages([each.group for each in samples], [each.reward for each in samples])
            rows = [row_of(*each) for each in zip(samples, compared, strict=True)]
            found = self._exchange.run(current, self._stamp(), rows)
            current.tokens += found.total.tokens
            if self.settings.passes > 1:
                current.rows += [row.seen(each) for row, each in zip(rows, found.total.logprobs, strict=True)]
            norm = self._finish(current, found) if last else 0.0
        tokens = max(1, found.total.tokens)
        return TrainReport(
            step=step,
            version=self.progress.version,
            updated=last,
            seconds=time.monotonic() - began,
            samples=len(samples),
            tokens=found.total.tokens,
            loss=found.total.loss / tokens,
            mean_reward=sum(each.reward for each in samples) / max(1, len(samples)),
            norm=norm,
            truncated=found.total.truncated / tokens,
            clipped=found.total.clipped / max(1, current.tokens * (self.settings.passes - 1)) if last else 0.0,
            staleness=staleness(samples, version),
            lanes=tuple(dict.fromkeys(found.lanes)),
            redone=found.redone,
            lane_tokens=tuple(sorted(found.lane_tokens.items())),
        )

    def _begun(self, step: int, samples: Sequence[Sample]) -> TrainingStep:
        """The present step. A new one is a barrier: lanes that were activated count from here on."""
        if step != self.progress.step:
            raise UserError(f"step {step}: must be {self.progress.step}, the one that comes next")
        for each in samples:
            check(each, int(self._config["vocab_size"]))
        if self._step is None:
            self._step = TrainingStep(self._lanes.those(LaneState.ACTIVE))
        return self._step

    def _finish(self, step: TrainingStep, found: Exchanged) -> float:
        """Make the step's updates. Returns the norm of the first gradient."""
        passes = self.settings.passes
        norm = self._update(step, ends=passes == 1)
        for number in range(1, passes):
            again = self._exchange.run(step, self._stamp(), step.rows)
            found.total.clipped += again.total.clipped
            found.lanes += again.lanes
            found.redone += again.redone
            self._update(step, ends=number == passes - 1)
        self._step = None
        return norm

    def _update(self, step: TrainingStep, ends: bool) -> float:
        """Make one update, on all ranks and lanes alike."""
        stamp = replace(self._stamp(), part=step.part)
        with self._changing:
            norm = self._core.update(stamp, self._replica, step.tokens)
            if not isfinite(norm):
                raise CoreLost(f"step {stamp.step}: the gradient is not finite; resume with another learning rate")
            gradient = self._replica.gradient.to("cpu", copy=True) if self._lanes.followed else None
            self._replica.apply()
            now = self.progress
            self.progress = Progress(now.step + ends, now.version + ends, now.updates + 1)
            if gradient is not None:
                compared = self._lanes.those(LaneState.SYNCING, LaneState.READY)
                digest = self._replica.digest() if compared else None
                self._lanes.update(UpdateOrder(stamp, self._stamp(), gradient, digest))
        self._core.updated(stamp)
        return norm

    # Weights

    def checkpoint(self) -> Path:
        """Write what is needed to resume. In the middle of a step that is the state before it."""
        with self._busy:
            return write_checkpoint(self.settings, self._config, self._replica.state(), self.progress)

    def publish(self, version: int) -> Path:
        """Write the weights for engines, as a Hugging Face style folder."""
        with self._busy:
            if version != self.progress.version:
                raise UserError(f"version {version}: must be {self.progress.version}, that of the present weights")
            if self._published is None or self._published[0] != version:
                weights = named(self._replica.model)
                self._published = version, publish(self.settings, self._config, weights, version)
            return self._published[1]

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first by the present weights, to compare with engines."""
        with self._busy:
            return self._replica.logprobs(tokens)

    # Lanes

    def join(self, lane: str, epoch: int) -> None:
        """Let a lane fetch state and sync, in the background; `reports` tells when it is ready."""
        self._lanes.join(lane, epoch)

    def activate(self, lane: str) -> bool:
        """Give a lane a share of the samples from the next step on. False if it is not ready."""
        found = self._lanes.find(lane)
        return found is not None and found.activate()

    def leave(self, lane: str) -> None:
        """Let a lane go when it has done what it was asked for. It stays connected and may join again."""
        if (found := self._lanes.find(lane)) is not None:
            found.leave()

    def drop(self, lane: str, reason: str = "it was dropped") -> None:
        """Roll a lane back, whatever it is doing. Its process ends."""
        self._lanes.drop(lane, reason)

    def lanes(self) -> dict[str, LaneReport]:
        """The last report of each lane."""
        return self._lanes.reported()

    def _snapshot(self, lane: Lane) -> tuple[Stamp, dict[str, Tensor]]:
        """The present state for a lane, which gets all updates from here on."""
        with self._changing:
            lane.follow()
            return replace(self._stamp(), epoch=lane.epoch), self._replica.state()

    # Connections

    def _entered(self, role: Role, name: str, channel: Channel) -> None:
        if role == "rank":
            self._core.arrive(name, channel)
            return
        try:
            channel.send(self._welcome(), _GREETING_SECONDS)
        except ChannelFailed:
            channel.close()
            return
        self._lanes.run(name, channel)

    def _welcome(self) -> Frame:
        return Frame("welcome", facts={"settings": self.settings.told(), "config": self._config})

    def _stamp(self) -> Stamp:
        return Stamp(0, self.progress.step, self.progress.version, self.progress.updates)
