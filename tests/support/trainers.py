"""Training groups for tests: a model with random weights, samples drawn at random, workers as real processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import torch

from steelyard.live.tiny.model import make_tiny
from steelyard.live.train.door import Role
from steelyard.live.train.frames import ChannelFailed
from steelyard.live.train.group import TrainingGroup
from steelyard.live.train.lane import LaneState
from steelyard.live.train.launch import start_worker
from steelyard.live.train.samples import Sample
from steelyard.live.train.settings import TrainerSettings
from steelyard.live.train.weights import MODEL, read_tensors
from steelyard.live.train.worker import work

PATIENCE = 120.0  # seconds until a test gives up; starting a process takes a few
SYMBOLS = 64


def settings_of(folder: Path, run: str, **changed: Any) -> TrainerSettings:
    """Settings of a run in a folder, from a model with random weights that all runs of the folder share."""
    model = folder / "model"
    if not model.exists():
        make_tiny(model, seed=3, warm_up=0)
    return TrainerSettings(model, folder / run, **{"learning_rate": 1e-3, "threads": 1, **changed})


def samples_of(step: int, groups: int = 3, size: int = 4, version: int = 0) -> list[Sample]:
    """Some samples of a step: prompts, generated tokens, and results of tools among them."""
    draw = Random(f"samples {step}")
    return [_sample(draw, f"{step}-{group}", number, version) for group in range(groups) for number in range(size)]


def _sample(draw: Random, group: str, number: int, version: int) -> Sample:
    prompt, length = draw.randint(1, 6), draw.randint(2, 20)
    generated = [False] * prompt + [True] + [draw.random() < 0.8 for _ in range(length - 1)]
    count = sum(generated)
    return Sample(
        trajectory=f"{group}-{number}",
        group=group,
        tokens=[draw.randrange(SYMBOLS) for _ in generated],
        generated=generated,
        logprobs=[-4.2 + draw.uniform(-0.3, 0.3) for _ in range(count)],
        versions=[version] * count,
        reward=draw.random(),
    )


@dataclass
class Running:
    """A group and its workers."""

    group: TrainingGroup
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, role: Role, name: str) -> subprocess.Popen[bytes]:
        """Start a worker as a process."""
        self.processes[name] = start_worker(self.group.address, self.group.secret, role, name)
        return self.processes[name]

    def start_thread(self, name: str) -> None:
        """Start a lane as a thread of this process, which is quicker."""
        Thread(target=self._work, args=(name,), daemon=True).start()

    def _work(self, name: str) -> None:
        try:
            work(self.group.address, self.group.secret, "lane", name)
        except ChannelFailed:
            return  # it has been dropped, or the test is over

    def wait(self, lane: str, *states: LaneState) -> None:
        """Wait until a lane is in one of these states."""
        until = time.monotonic() + PATIENCE
        while (report := self.group.lanes().get(lane)) is None or report.state not in states:
            assert time.monotonic() < until, f"{lane} is {report}, not {states}"
            time.sleep(0.01)

    def make_active(self, lane: str, epoch: int, step: int) -> int:
        """Let a lane join and be active; returns the step that comes next."""
        self.wait(lane, LaneState.IDLE)
        self.group.join(lane, epoch)
        self.wait(lane, LaneState.SYNCING)
        self.group.train(step, samples_of(step), last=True)
        self.wait(lane, LaneState.READY)
        assert self.group.activate(lane)
        return step + 1

    def weights(self) -> dict[str, torch.Tensor]:
        """The present ones, as they are published."""
        return read_tensors(self.group.publish(self.group.progress.version) / MODEL)


@contextmanager
def running(settings: TrainerSettings, ranks: int = 1, resume: bool = False) -> Iterator[Running]:
    """A group with its core ranks. All its processes are gone afterwards."""
    group = (TrainingGroup.resume if resume else TrainingGroup.begin)(settings, ranks)
    found = Running(group)
    try:
        for rank in range(1, ranks):
            found.start("rank", str(rank))
        group.start(PATIENCE)
        yield found
    finally:
        group.close()
        for process in found.processes.values():
            process.kill()
            process.wait()


def trained(settings: TrainerSettings, steps: int) -> dict[str, torch.Tensor]:
    """Weights after so many steps on one rank."""
    with running(settings) as alone:
        for step in range(steps):
            alone.group.train(step, samples_of(step), last=True)
        return alone.weights()


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """The largest difference of any weight."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)
